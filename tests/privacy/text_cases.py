"""Texts of symbols with a class each, and a tiny language model with adapters that is a classifier of them."""

from typing import Any

import torch
from torch import Tensor, nn

import fedmpdd as fm
from fedmpdd.privacy.observation import ObservedUpdate
from fedmpdd.privacy.text_victim import TextVictim
from fedmpdd.tasks.losses import as_loss
from fedmpdd.tasks.stores import as_store
from fedmpdd.wire.frames import Session
from tests.tasks import tiny


class Answers(nn.Module):
    """The logits of two symbols after the last one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        outputs: Any = self.model(input_ids=ids, attention_mask=mask)
        logits: Tensor = outputs.logits[:, -1, :2]
        return logits


def symbols(count: int = 300, length: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Texts that end with symbol 7, a prompt; their class says in which half of the symbols the first one is."""
    ids = torch.randint(8, tiny.SYMBOLS, (count, length), generator=torch.Generator().manual_seed(seed))
    ids[:, -1] = 7
    return ids, torch.ones_like(ids), (ids[:, 0] > tiny.SYMBOLS // 2).long()


def classifier(*, moved: bool = True, rank: int = 4) -> nn.Module:
    """With B away from zero, as after some steps, or at its start."""
    model = fm.lora(tiny.llama(), rank)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if moved and ".lora_B." in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return Answers(model)


def victim_of(model: nn.Module | None = None, examples: Any = None) -> TextVictim:
    store = as_store(symbols() if examples is None else examples)
    return TextVictim(model or classifier(), as_loss(nn.functional.cross_entropy), store, "cpu")


def sent(gradient: Tensor, codec: fm.Codec, seed: int = 1) -> ObservedUpdate:
    """What is seen of the update of one gradient [d]."""
    key = fm.Key(seed)
    session = Session(codec, len(gradient), sends_seed=False)
    frame = session.pack(codec.encode(gradient[None].numpy(), [key])[0])
    return ObservedUpdate(torch.zeros(len(gradient)), frame, codec, key)
