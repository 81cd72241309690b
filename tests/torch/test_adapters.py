"""Adapters: what is trained, what it begins with, and what is written of it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedmpdd as fm
from fedmpdd.errors import ConfigError, MissingDependencyError, RunError
from fedmpdd.torch.adapters import count_trained, lora, save_adapter
from tests.tasks import tiny


def trained(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def moved(model: Any) -> Any:
    """The model with other numbers than those it began with, at which it does what the base does."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def test_only_adapters_are_trained_and_the_first_model_is_the_base() -> None:
    base = tiny.llama()
    model = fm.lora(base, rank=2)
    assert all(".lora_A." in name or ".lora_B." in name for name in trained(model))
    assert len(trained(model)) == tiny.BLOCKS * 2 * 2
    assert count_trained(model) == tiny.BLOCKS * 2 * (32 + 32 + 32 + 16)
    assert torch.equal(model(tiny.texts(3)).logits, base(tiny.texts(3)).logits)


def test_the_base_is_not_changed_and_not_copied() -> None:
    base = tiny.llama()
    names = [name for name, _ in base.named_parameters()]
    model = lora(base)
    assert [name for name, _ in base.named_parameters()] == names
    assert all(value.requires_grad for value in base.parameters())
    assert base.config.use_cache
    inner = model.get_base_model().model.embed_tokens.weight
    assert inner.data_ptr() == base.model.embed_tokens.weight.data_ptr()


def test_the_first_numbers_follow_from_the_seed_alone() -> None:
    base = tiny.llama()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, same, other = lora(base, seed=3), lora(base, seed=3), lora(base, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    first = next(iter(trained(one)))
    assert torch.equal(trained(one)[first], trained(same)[first])
    assert not torch.equal(trained(one)[first], trained(other)[first])
    drawn = np.random.default_rng(3).random((4, 32), dtype=np.float32)  # of NumPy, the same on every machine
    assert trained(one)[first].detach().numpy() == pytest.approx((2 * drawn - 1) / 32**0.5, abs=1e-7)


def test_without_a_seed_it_comes_from_the_generator_that_a_task_seeds() -> None:
    base = tiny.llama()
    task = tiny.language_task(lambda: lora(base, seed=None))
    flats = [task.build("default", seed)[1] for seed in (1, 1, 2)]
    assert torch.equal(flats[0], flats[1])
    assert not torch.equal(flats[0], flats[2])


@pytest.mark.parametrize(
    ("layers", "blocks"),
    [(None, {0, 1, 2}), (1, {2}), (2, {1, 2}), ([0], {0}), ([0, -1], {0, 2}), (range(2), {0, 1})],
)
def test_layers_are_the_last_blocks_or_those_of_a_list(layers: Any, blocks: set[int]) -> None:
    names = trained(lora(tiny.llama(), layers=layers))
    assert {int(name.split("layers.")[1].split(".")[0]) for name in names} == blocks


def test_alpha_is_twice_the_rank_unless_it_is_given() -> None:
    for alpha, factor in ((None, 2.0), (4, 0.5)):
        layers = [one for one in lora(tiny.llama(), rank=8, alpha=alpha).modules() if hasattr(one, "lora_A")]
        assert {layer.scaling["default"] for layer in layers} == {factor}


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_head_is_trained_if_it_is_named_and_is_a_copy(name: str) -> None:
    base = tiny.llama("LlamaForSequenceClassification") if name == "llama" else tiny.bert()
    head, targets = ("score", ("q_proj",)) if name == "llama" else ("classifier", ("query",))
    assert not any(head in one for one in trained(lora(base, targets=targets)))
    model = lora(base, targets=targets, head=(head,))
    with_head = {one for one in trained(model) if "lora" not in one}
    assert with_head
    assert all(f"{head}.modules_to_save." in one for one in with_head)
    before = getattr(base, head).weight.clone()
    moved(model)
    assert torch.equal(getattr(base, head).weight, before)


def test_layers_within_a_head_are_trained_whole_and_get_no_adapters() -> None:
    model = lora(tiny.bert(), targets=("dense",), head=("pooler",))
    assert not any("pooler" in name and "lora" in name for name in trained(model))
    assert any("pooler.modules_to_save" in name for name in trained(model))
    with pytest.raises(ConfigError, match="all layers of targets are in head"):
        lora(tiny.bert(), targets=("classifier",), head=("classifier",))


def test_adapters_and_head_are_float32_on_a_base_in_bfloat16() -> None:
    base = tiny.llama("LlamaForSequenceClassification").bfloat16()
    model = lora(base, head="score")
    assert {value.dtype for value in trained(model).values()} == {torch.float32}
    assert model.get_base_model().model.embed_tokens.weight.dtype == torch.bfloat16
    logits = model(tiny.texts(3)).logits
    assert logits.dtype == torch.float32
    logits.square().sum().backward()
    assert all(value.grad is not None for value in trained(model).values())


@pytest.mark.parametrize("name", ["llama", "classifier", "bert", "gpt2"])
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_what_is_saved_is_loaded_by_peft_to_the_same_outputs(name: str, tmp_path: Path) -> None:
    import peft

    def base() -> Any:
        if name in ("bert", "gpt2"):
            return tiny.bert() if name == "bert" else tiny.gpt2()
        return tiny.llama("LlamaForCausalLM" if name == "llama" else "LlamaForSequenceClassification")

    heads = {"classifier": ("score",), "bert": ("classifier",)}
    targets = {"bert": ("query", "value"), "gpt2": ("c_attn",)}.get(name, ("q_proj", "v_proj"))
    model = moved(lora(base(), rank=3, targets=targets, layers=2, alpha=5, head=heads.get(name, ()))).eval()
    assert save_adapter(model, tmp_path / "adapter") == tmp_path / "adapter"
    loaded = peft.PeftModel.from_pretrained(base(), str(tmp_path / "adapter")).eval()
    ids = tiny.texts(5)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert not torch.equal(base()(ids).logits, model(ids).logits)
    size = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    assert size < 4 * count_trained(model) + 4000  # the base is not in it


def test_other_parameters_than_those_of_the_model_can_be_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = lora(tiny.llama(), layers=1)
    d = count_trained(model)
    save_adapter(model, tmp_path, torch.arange(d, dtype=torch.float32))
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert sorted(torch.cat([value.flatten() for value in saved.values()]).tolist()) == list(range(d))
    for wrong, message in (
        (torch.zeros(d + 1), "the model trains"),
        (torch.zeros(d, dtype=torch.float64), "the model trains"),
        (torch.full((d,), torch.nan), "NaN"),
    ):
        with pytest.raises(ConfigError, match=message):
            save_adapter(model, tmp_path, wrong)
    with pytest.raises(RunError, match="cannot be read"):
        save_adapter(model, tmp_path, tmp_path / "nothing.safetensors")
    with pytest.raises(RunError, match="no vector of that name"):
        save_adapter(model, tmp_path, tmp_path / "adapter_model.safetensors")
    with pytest.raises(RunError, match="cannot be written"):
        save_adapter(model, tmp_path / "adapter_config.json")
    with pytest.raises(ConfigError, match="without adapters"):
        save_adapter(tiny.llama(), tmp_path)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_what_wraps_a_model_with_adapters_is_saved_by_these(tmp_path: Path) -> None:
    from peft import PeftModel

    model = moved(fm.lora(tiny.llama(), rank=2))
    save_adapter(nn.ModuleDict({"inner": model}), tmp_path)
    again = PeftModel.from_pretrained(tiny.llama(), str(tmp_path))
    assert torch.equal(again(tiny.texts(3)).logits, model(tiny.texts(3)).logits)
    with pytest.raises(ConfigError, match="2 models that have adapters"):
        save_adapter(nn.ModuleList([model, fm.lora(tiny.llama(), rank=2)]), tmp_path)
    with pytest.raises(ConfigError, match="a str without adapters"):
        save_adapter("model", tmp_path)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rank 0": ({"rank": 0}, r"rank = 0: expected a whole number, 1 or more"),
    "rank true": ({"rank": True}, "rank = True"),
    "rank in words": ({"rank": "4"}, "rank = '4'"),
    "alpha": ({"alpha": 0}, "alpha = 0: expected a number above 0"),
    "no such layers": (
        {"targets": ("query",)},
        "targets has 'query', and the model has no linear layer of that name; it has q_proj, k_proj, v_proj, o_proj, "
        "gate_proj, up_proj, down_proj, lm_head",
    ),
    "no targets": ({"targets": ()}, "targets has no names"),
    "targets of numbers": ({"targets": (1,)}, "expected names of layers"),
    "no blocks": ({"layers": 0}, "layers = 0: expected how many of the last blocks, from 1 to 3"),
    "more blocks": ({"layers": 4}, "layers = 4: .* from 1 to 3"),
    "a block that is not there": ({"layers": [3]}, "layers has 3: expected numbers of blocks, from 0 to 2"),
    "an empty list": ({"layers": []}, "a list of their numbers"),
    "layers in words": ({"layers": "all"}, "layers = 'all'"),
    "layers of layers without blocks": ({"targets": ("lm_head",), "layers": 1}, "no numbered blocks"),
    "no such head": ({"head": ("score",)}, "head has 'score', and the model has no such module; it has model, lm_head"),
    "seed": ({"seed": -1}, "seed = -1"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_meant_is_refused_in_a_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as got:
        lora(tiny.llama(), **arguments)
    assert "\n" not in str(got.value)


def test_models_that_cannot_have_adapters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected a model of transformers"):
        lora("smollm2-135m")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"float16 .*torch\.bfloat16"):
        lora(tiny.llama().half())
    with pytest.raises(ConfigError, match="has adapters already"):
        lora(lora(tiny.llama()))
    with pytest.raises(ConfigError, match="it has none"):
        lora(nn.Conv2d(1, 1, 1))


def test_a_block_without_the_layers_is_named() -> None:
    module = nn.ModuleList(
        [nn.ModuleDict({"q_proj": nn.Linear(2, 2)}), nn.Tanh(), nn.ModuleDict({"q_proj": nn.Linear(2, 2)})]
    )
    with pytest.raises(ConfigError, match="layers has block 1, which has none"):
        lora(module, targets=("q_proj",), layers=2)


@pytest.mark.parametrize("call", ["lora", "save_adapter"])
def test_without_peft_it_says_what_to_install(call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingDependencyError, match=r"fm\.\w+ needs the package peft.*pip install 'fedmpdd\[llm\]'$"):
        lora(tiny.llama()) if call == "lora" else save_adapter(tiny.llama(), tmp_path)
