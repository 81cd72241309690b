"""A tokenizer of words and tiny language models that are drawn at random: what tests of texts need of transformers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmpdd.runs.history import History
from fedmpdd.tasks.data import Texts

WORDS = 97
REVIEWS = (
    "good fun",
    "bad",
    "a good film , all in all",
    "what a bad and very long film",
    "fun from the first minute",
    "long , very long",
    "good",
    "the worst of all films , and bad in every minute of it",
)
LABELS = (1, 0, 1, 0, 1, 0, 1, 0)


class Tokenizer:
    """Words with the blank before them as tokens, numbered as they come; longer ones fall apart at every dash."""

    def __init__(self, limit: float = 1e30, *, pad: int | None = 0, eos: int | None = 1, end: bool = False) -> None:
        self.pad_token_id, self.eos_token_id, self.model_max_length, self.end = pad, eos, limit, end
        self.all_special_ids = [0, 1]
        self.known: dict[str, int] = {}

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        tokens = [part for part in re.split(r"(?= )|(?<=-)", text) if part]
        ids = [self.known.setdefault(token, 2 + len(self.known)) for token in tokens]
        return {"input_ids": [*ids, 1] if self.end and add_special_tokens else ids}


def reviews() -> Texts:
    return Texts(REVIEWS, np.array(LABELS), ("negative", "positive"))


def ends_of(history: History) -> tuple[float, float]:
    """The losses of the first and of the last round."""
    first, last = history.rounds[0].loss, history.last.loss
    assert first is not None
    assert last is not None
    return first, last


def write_reviews(path: Path) -> None:
    """The same as a CSV file with the columns review, stars and user."""
    rows = [f'"{text}",{5 * label},user {len(text) % 2}' for text, label in zip(REVIEWS, LABELS, strict=True)]
    path.write_text("\n".join(["review,stars,user", *rows]), encoding="utf-8")


def tiny(kind: str = "llama", layers: int = 3, **settings: Any) -> Any:
    """A model of transformers with numbers drawn at random, in eval mode."""
    transformers = pytest.importorskip("transformers", reason="the extra `llm` is not installed")
    torch.manual_seed(5)
    shape = {"vocab_size": WORDS, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": layers}
    if kind == "llama":
        config = transformers.LlamaConfig(
            **shape, intermediate_size=32, num_key_value_heads=1, max_position_embeddings=64, **settings
        )
        network: torch.nn.Module = transformers.LlamaForCausalLM(config)
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_head=2, n_layer=layers, n_positions=64, bos_token_id=1, eos_token_id=1
        )
        network = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.BertConfig(
            **shape, intermediate_size=32, max_position_embeddings=64, pad_token_id=0, num_labels=2, **settings
        )
        network = transformers.BertForSequenceClassification(config)
    return network.eval()
