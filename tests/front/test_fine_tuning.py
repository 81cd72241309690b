"""Adapters of models of transformers, trained by the front door: on one base, with files that know it by its hash."""

import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import fedmpdd as fm
from fedmpdd.errors import JournalError, RunError
from fedmpdd.runs.folders import Run
from fedmpdd.server import checkpoints
from fedmpdd.server.journal import JOURNAL, JournalReader
from fedmpdd.simulation.engine import federation_of
from fedmpdd.simulation.replay import JournalReplica, replay, write_model
from fedmpdd.torch.frozen import frozen_sha256
from tests.tasks import tiny
from tests.torch.test_adapters import trained

SETTINGS: dict[str, Any] = {
    "rounds": 6,
    "per_round": 4,
    "batch": 4,
    "lr": 0.5,
    "evaluate_every": 3,
    "progress": False,
    "gradients": "loop",
}


def flat(model: Any) -> Any:
    return torch.cat([value.detach().flatten() for value in trained(model).values()])


@pytest.mark.parametrize("gradients", ["loop", "auto"])
@pytest.mark.parametrize("name", ["llama", "bert", "llama in bfloat16"])
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_adapters_are_trained_and_saved(name: str, gradients: str, tmp_path: Path) -> None:
    import peft

    if name == "bert":  # with dropout, which follows from seed, round and client
        base = tiny.bert()
        task = tiny.classes_task(fm.lora(base, targets=("query", "value"), head="classifier"))
    else:
        base = tiny.llama().bfloat16() if "16" in name else tiny.llama()
        task = tiny.language_task(fm.lora(base))
    settings = {**SETTINGS, "gradients": gradients, "server": "adam", "lr": 0.05}
    histories = [fm.simulate(task, fm.FedSGD(), **settings) for _ in range(2)]
    losses = [row.loss_of_test for row in histories[0].evaluations if row.loss_of_test is not None]
    assert losses[-1] < losses[0] - 0.02
    model = histories[0].model
    assert isinstance(model, peft.PeftModel)
    assert not torch.equal(flat(model), flat(task.model))
    assert torch.equal(flat(model), flat(histories[1].model))
    fm.save_adapter(model, tmp_path)
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path)).eval()
    assert torch.allclose(loaded(tiny.texts(3)).logits, model(tiny.texts(3)).logits, atol=1e-6)


def test_a_federation_holds_the_base_once() -> None:
    base = tiny.llama()
    task = tiny.language_task(fm.lora(base))
    federation = federation_of(fm.load_config("demo", _settings()), task)
    copy = federation._objective.copy()  # of a thread
    history = fm.simulate(task, fm.FedSGD(), **SETTINGS)
    address = base.model.embed_tokens.weight.data_ptr()
    for module in (federation.model.module, copy.network, federation.trained_model, history.model):
        (weight,) = [value for name, value in module.named_parameters() if name.endswith("embed_tokens.weight")]
        assert weight.data_ptr() == address
    assert base.model.embed_tokens.weight.requires_grad


def _settings() -> list[str]:
    return ["clients=8", "clients_per_round=4", "batch=4", "gradients=loop"]


def test_a_model_that_goes_elsewhere_to_compute_comes_back_to_the_same_base() -> None:
    """As to a GPU; here to the device without numbers."""
    base = tiny.llama()
    objective, parameters = tiny.language_task(fm.lora(base)).build("default", 1)
    objective.move_to("meta")
    weight = objective.trained(parameters).get_base_model().model.embed_tokens.weight  # type: ignore[operator]
    assert weight.data_ptr() == base.model.embed_tokens.weight.data_ptr()
    assert weight.device.type == "cpu"


def test_gradient_checkpointing_changes_no_number() -> None:
    """It would run blocks again when the parameters of the call are gone, and give gradients at other ones."""
    plain = tiny.llama()
    saving = tiny.llama()
    saving.activation_checkpointing_enable()
    saving.enable_input_require_grads()
    models = [fm.simulate(tiny.language_task(fm.lora(one)), fm.FedSGD(), **SETTINGS).model for one in (plain, saving)]
    assert torch.equal(flat(models[0]), flat(models[1]))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gradients_are_those_of_a_plain_loop(attention: str) -> None:
    model = fm.lora(tiny.llama(attn_implementation=attention))
    task = tiny.language_task(model)
    history = fm.simulate(task, fm.FedSGD(), **{**SETTINGS, "rounds": 1, "per_round": 8, "batch": 8, "lr": 1.0})
    # All clients, all of their examples: one step down the gradient of the whole.
    ids = tiny.texts()
    loss: Any = tiny.next_symbol(model, (ids, ids))
    loss.backward()
    gradient = torch.cat([value.grad.flatten() for value in trained(model).values()])
    assert torch.allclose(flat(history.model), flat(model) - gradient, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- files


def journaled(folder: Path, model: Any, codec: Any = None, **settings: Any) -> Any:
    codec = fm.Peaks(m=4) if codec is None else codec
    options = {**SETTINGS, "journal": True, "keys": "derived", "checkpoint_every": 3, **settings}
    return fm.simulate(tiny.language_task(model), codec, out=folder, **options)


def other_base() -> Any:
    base = tiny.llama()
    with torch.no_grad():
        base.model.layers[0].mlp.up_proj.weight[0, 0] += 1
    return fm.lora(base)


def test_journal_and_checkpoint_have_the_hash_of_the_base_and_not_the_base(tmp_path: Path) -> None:
    model = fm.lora(tiny.llama())
    journaled(tmp_path / "run", model)
    expected = frozen_sha256(model)
    with JournalReader(tmp_path / "run" / JOURNAL) as reader:
        assert reader.header.frozen_sha256 == expected
        assert reader.header.d == fm.torch.count_trained(model)
    with safe_open(tmp_path / "run" / "checkpoint.safetensors", "pt") as file:
        assert file.metadata()["frozen_sha256"] == expected
    size = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    assert size < sum(4 * value.numel() for value in model.parameters()) / 2


def test_files_of_a_model_that_is_all_trained_say_nothing_of_it(tmp_path: Path) -> None:
    fm.train(fm.load_config("demo", ["rounds=1", "journal=true"]), out=tmp_path / "run", progress=False)
    with JournalReader(tmp_path / "run" / JOURNAL) as reader:
        assert reader.header.frozen_sha256 is None
        assert b"frozen" not in reader.header.pack()
    with safe_open(tmp_path / "run" / "checkpoint.safetensors", "pt") as file:
        assert set(file.metadata()) == {"next_round", "config", "sha256"}


def test_a_run_goes_on_on_the_same_base_and_on_no_other(tmp_path: Path) -> None:
    whole = journaled(tmp_path / "whole", fm.lora(tiny.llama()))
    model = fm.lora(tiny.llama())
    journaled(tmp_path / "run", model, rounds=3)
    expected, current = (str(frozen_sha256(one))[:16] for one in (model, other_base()))
    with pytest.raises(RunError, match=rf"{JOURNAL} was made with .* hash {expected}…, .* here is {current}…; load"):
        journaled(tmp_path / "run", other_base())
    history = journaled(tmp_path / "run", fm.lora(tiny.llama()))
    assert torch.equal(flat(history.model), flat(whole.model))


def test_a_checkpoint_alone_refuses_another_base_too(tmp_path: Path) -> None:
    journaled(tmp_path / "run", fm.lora(tiny.llama()), rounds=3, journal=False)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors was made with a frozen model of hash"):
        journaled(tmp_path / "run", other_base(), journal=False)
    path = tmp_path / "run" / "checkpoint.safetensors"  # as an earlier version wrote it: it says nothing, and is read
    kept = checkpoints.read_checkpoint(path, 1344, "", ())
    notes = {name: text for name, text in kept.notes.items() if name != "frozen_sha256"}
    checkpoints.write_checkpoint(path, kept.vectors, notes)
    assert len(journaled(tmp_path / "run", fm.lora(tiny.llama()), journal=False)) == 6


def test_another_alpha_is_another_task(tmp_path: Path) -> None:
    journaled(tmp_path / "run", fm.lora(tiny.llama()), rounds=3)
    with pytest.raises(RunError, match="was trained with another model"):
        journaled(tmp_path / "run", fm.lora(tiny.llama(), alpha=3))


def test_a_journal_without_the_hash_is_read_as_before(tmp_path: Path) -> None:
    journaled(tmp_path / "run", fm.lora(tiny.llama()), rounds=3)
    path = tmp_path / "run" / JOURNAL
    with JournalReader(path) as reader:
        header = reader.header
    data = path.read_bytes()
    path.write_bytes(header._replace(frozen_sha256=None).pack(2) + data[len(header.pack(2)) :])
    assert len(journaled(tmp_path / "run", fm.lora(tiny.llama()))) == 6


def test_replay_needs_no_base_and_its_numbers_make_the_adapter(tmp_path: Path) -> None:
    """In another process too, which has neither the task nor the model."""
    model = fm.lora(tiny.llama())
    history = journaled(tmp_path / "run", model)
    command = [sys.executable, "-m", "fedmpdd", "replay", "run", "--json", "--model", "flat.safetensors"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["matches"]
    fm.save_adapter(history.model, tmp_path / "trained")
    fm.save_adapter(fm.lora(tiny.llama()), tmp_path / "replayed", tmp_path / "flat.safetensors")
    fm.save_adapter(model, tmp_path / "checkpointed", tmp_path / "run" / "checkpoint.safetensors")
    name = "adapter_model.safetensors"
    weights = {(tmp_path / folder / name).read_bytes() for folder in ("trained", "replayed", "checkpointed")}
    assert len(weights) == 1
    with pytest.raises(RunError, match=r"flat\.safetensors was made with a frozen model of hash"):
        fm.save_adapter(other_base(), tmp_path / "replayed", tmp_path / "flat.safetensors")


def frozen_network(seed: int = 0) -> torch.nn.Module:
    """A model that a config can name, part of which is frozen."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 12), torch.nn.Tanh(), torch.nn.Linear(12, 10))
    module[1].requires_grad_(False)
    return module


def other_network() -> torch.nn.Module:
    return frozen_network(1)


def test_replay_makes_the_model_where_the_codec_knows_matrices_and_then_it_must_be_the_same(tmp_path: Path) -> None:
    name = "tests.front.test_fine_tuning:frozen_network"
    settings = ["rounds=2", "journal=true", f"model={name}", "codec.name=sa-fedlora"]
    Run.create(tmp_path / "run", fm.load_config("demo", settings)).train()
    assert replay(tmp_path / "run", trust_imports={"model": name}).matches
    with pytest.raises(RunError, match="would import and run that code"):
        replay(tmp_path / "run")
    with JournalReader(tmp_path / "run" / JOURNAL) as reader:
        header, initial = reader.header, reader.initial_model()
    other = "tests.front.test_fine_tuning:other_network"
    changed = header._replace(config={**header.config, "model": other})
    with pytest.raises(RunError, match="the journal was made with a frozen model of hash"):
        JournalReplica(changed, initial=initial, trust_imports=True)


def test_a_replayed_model_says_what_base_it_belongs_to(tmp_path: Path) -> None:
    journaled(tmp_path / "run", fm.lora(tiny.llama()))
    rebuilt = replay(tmp_path / "run", until=2)
    write_model(tmp_path / "flat.safetensors", rebuilt)
    with safe_open(tmp_path / "flat.safetensors", "pt") as file:
        assert file.metadata() == {"next_round": "2", "frozen_sha256": rebuilt.frozen_sha256}


@pytest.mark.parametrize("value", [7, "ab", "AB" * 32, None])
def test_a_hash_of_another_form_is_refused(tmp_path: Path, value: Any) -> None:
    journaled(tmp_path / "run", fm.lora(tiny.llama()), rounds=1)
    path = tmp_path / "run" / JOURNAL
    with JournalReader(path) as reader:
        header = reader.header
    data = path.read_bytes()
    text = header.pack(2).replace(json.dumps(header.frozen_sha256).encode(), json.dumps(value).encode())
    body = text[:-4]
    body = body[:8] + struct.pack("<I", len(body) - 12) + body[12:]
    path.write_bytes(body + struct.pack("<I", zlib.crc32(body)) + data[len(header.pack(2)) :])
    with pytest.raises(JournalError, match=r"frozen_sha256 = .*, expected 64 hexadecimal digits"):
        JournalReader(path)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_the_page_on_fine_tuning_runs_with_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    page = (Path(__file__).parents[2] / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    known = sorted(set(re.findall(r"\w+", blocks[0])))
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(["</s>", "<unk>", *known])}, "<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = tiny.transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="</s>")

    def load_pretrained(name: str, layers: int) -> Any:
        return tiny.llama(symbols=len(known) + 2, width=160), tokenizer

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fm, "load_pretrained", load_pretrained)
    names: dict[str, Any] = {"__name__": "fine_tuning"}
    for block in blocks:
        exec(block, names)
    assert len(names["history"]) == 3
    texts = names["ids"]["input_ids"]
    assert torch.equal(names["restored"].eval()(texts).logits, names["history"].model(texts).logits)
