"""Tiny models of transformers with random numbers, and examples for them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedmpdd.tasks.task import Task, partition

transformers = pytest.importorskip("transformers", reason="the extra `llm` is not installed")
pytest.importorskip("peft", reason="the extra `llm` is not installed")

SYMBOLS, LENGTH, BLOCKS, CLASSES = 50, 6, 3, 4


def llama(kind: str = "LlamaForCausalLM", symbols: int = SYMBOLS, width: int = 32, **settings: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=symbols,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        num_labels=CLASSES,
        **settings,
    )
    return getattr(transformers, kind)(config).eval()


def bert(**settings: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=SYMBOLS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        max_position_embeddings=32,
        num_labels=CLASSES,
        **settings,
    )
    return transformers.BertForSequenceClassification(config).eval()


def gpt2() -> Any:
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=SYMBOLS, n_embd=32, n_layer=BLOCKS, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def texts(count: int = 64, seed: int = 0) -> Tensor:
    """Texts that go through few of the symbols, in steps of one."""
    first = torch.randint(0, 7, (count, 1), generator=torch.Generator().manual_seed(seed))
    return 1 + (first + torch.arange(LENGTH)) % 7


def next_symbol(model: Any, batch: Any) -> Tensor:
    """The loss of predicting every symbol from those before it."""
    ids, _ = batch
    logits = model(ids).logits[:, :-1].float()
    return functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])


def language_task(model: Any, **options: Any) -> Task:
    ids = texts()
    return Task(model, partition((ids, ids), 8), (texts(16, 1), texts(16, 1)), loss=next_symbol, **options)


def classes_task(model: Any) -> Task:
    ids, tests = texts(), texts(16, 1)
    return Task(model, partition((ids, ids[:, 0] % CLASSES), 8), (tests, tests[:, 0] % CLASSES))
