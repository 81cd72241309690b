"""What tests of examples/flower-llm need: a tiny language model with its tokenizer in a folder, and films to judge."""

import importlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.tasks.data import Texts
from tests.tasks import tiny

APP = Path(__file__).parents[2] / "examples" / "flower-llm"
WORDS = (
    "It",
    "was",
    "terrible",
    "great",
    "good",
    "bad",
    "a",
    "film",
    "very",
    "long",
    "fun",
    "dull",
    "and",
    "of",
    "the",
)
_FILLING, _VERDICTS = ("a", "film", "very", "long", "and", "of", "the"), (("bad", "dull"), ("good", "fun"))


def save_model(folder: Path, kind: str = "llama", **settings: Any) -> Path:
    """Write a language model of random numbers, or a sequence classifier ("bert"), and a tokenizer of words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokens = ["</s>", "<unk>", *WORDS]
    shape = {
        "vocab_size": len(tokens),
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "pad_token_id": 0,
        **settings,
    }
    torch.manual_seed(1)
    if kind == "llama":
        sizes = {"hidden_size": 32, "num_key_value_heads": 2, "max_position_embeddings": 32}
        model: Any = tiny.transformers.LlamaForCausalLM(tiny.transformers.LlamaConfig(**sizes, **shape))
    else:  # wide enough for the 3,584 directions of fourteen peaks
        config = tiny.transformers.BertConfig(hidden_size=384, max_position_embeddings=64, **shape)
        model = tiny.transformers.BertForSequenceClassification(config)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(tokens)}, "<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = tiny.transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    return folder


def write_films(path: Path, count: int, seed: int) -> Path:
    """Write sentences of which one word says whether the film was liked."""
    generator = np.random.default_rng(seed)
    lines = ["sentence,label"]
    for number in range(count):
        words = [*generator.choice(_FILLING, int(generator.integers(2, 6))), generator.choice(_VERDICTS[number % 2])]
        lines.append(f"{' '.join(generator.permutation(words))},{number % 2}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def app_config(**changes: Any) -> dict[str, Any]:
    """Return the run config of the app, changed."""
    table = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    return {**table["tool"]["flwr"]["app"]["config"], **changes}


def app_module(name: str) -> Any:
    """Return a module of the app."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(APP))
        return importlib.import_module(f"flower_llm.{name}")


def trained_here(config: dict[str, Any], files: Sequence[Path], dev: Path, folder: Path) -> tuple[fm.History, bytes]:
    """Train what the app trains, by the local engine, and return how it went and the adapter's file."""
    task = app_module("task")
    classifier = task.Classifier(config, config["model"])
    parts = [task.read(str(path), classifier.classes) for path in files]
    labels = np.concatenate([part.labels for part in parts])
    texts = Texts(tuple(text for part in parts for text in part.texts), labels, classifier.classes)
    groups = [number for number, part in enumerate(parts) for _ in part.texts]
    codec, _, keys = str(config["codec"]).partition(":keys=")
    history = fm.simulate(
        fm.Task(
            classifier.model,
            fm.partition(classifier.encoder.examples(texts), kind="natural", groups=groups),
            classifier.encoder.examples(task.read(str(dev), classifier.classes)),
        ),
        codec,
        rounds=config["num-server-rounds"],
        batch=config["batch"],
        lr=config["lr"],
        seed=config["seed"],
        server="adam",
        keys=keys,
        gradients="loop",
        evaluate_every=config["evaluate-every"],
        progress=False,
    )
    fm.save_adapter(history.model.model, folder)
    return history, (folder / "adapter_model.safetensors").read_bytes()
