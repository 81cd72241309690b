from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedmpdd.errors import ConfigError
from fedmpdd.privacy.text_victim import Embeddings
from fedmpdd.torch.parameters import TrainedParameters
from tests.privacy.text_cases import Answers, classifier, symbols, victim_of
from tests.tasks import tiny


def plain(model: nn.Module, batch: Any) -> torch.Tensor:
    *inputs, targets = batch
    functional.cross_entropy(model(*inputs), targets).backward()  # type: ignore[no-untyped-call]
    return TrainedParameters(model).gradient()


def test_gradients_are_those_of_a_plain_loop() -> None:
    model, examples = classifier(), symbols()
    numbers = np.array([[4, 7], [9, 1], [0, 3]])
    gradients = victim_of(model).gradients_of(numbers)
    for row, batch in zip(gradients, numbers, strict=True):
        model.zero_grad()
        assert torch.allclose(row, plain(model, tuple(leaf[batch] for leaf in examples)), atol=1e-6)


def test_all_of_a_model_may_be_trained_and_its_dropout_is_off() -> None:
    model = Bert()
    numbers = np.array([[4, 7], [9, 1]])
    victim = victim_of(model)
    again = victim.gradients_of(numbers)
    assert torch.equal(victim.gradients_of(numbers), again)
    assert torch.allclose(again[0], plain(model.eval(), tuple(leaf[numbers[0]] for leaf in symbols())), atol=1e-6)


class Bert(nn.Module):
    """All of it is trained but embeddings, and in train mode it has dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny.bert().train()
        self.model.bert.embeddings.requires_grad_(False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask).logits


@pytest.mark.parametrize("model", [classifier, Bert])
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_true_embeddings_give_the_gradients_of_tokens_and_can_be_improved(model: Any) -> None:
    victim = victim_of(model())
    ids, mask, labels = (leaf[:3, None] for leaf in symbols())
    assert victim.embeddings is not None
    unknown = torch.ones(3, 6, dtype=torch.bool)
    unknown[:, -1] = False
    values = victim.embeddings[ids[:, 0]].clone().requires_grad_()
    hidden = torch.where(unknown[:, None], 0, ids)
    guessed = victim.gradients((hidden, mask, labels), Embeddings(values, unknown))
    assert torch.allclose(guessed, victim.gradients((ids, mask, labels)), atol=1e-6)
    (slopes,) = torch.autograd.grad(guessed.square().sum(), values)
    assert bool(slopes[:, :-1].abs().sum(dim=2).gt(0).all())
    assert not bool(slopes[:, -1].any())


def test_at_the_start_of_adapters_half_of_the_gradient_is_zero() -> None:
    """B is zero, and the gradient of A goes through it: docs/privacy.md says so."""
    for moved in (False, True):
        model = classifier(moved=moved)
        (row,) = victim_of(model).gradients_of(np.array([[5]]))
        parameters = TrainedParameters(model)
        parts = torch.split(row, [value.numel() for value in parameters.parameters])
        of_a = [part for name, part in zip(parameters.names, parts, strict=True) if ".lora_A." in name]
        assert all(bool(part.any()) == moved for part in of_a)


def test_targets_can_be_others() -> None:
    victim, numbers = victim_of(), np.array([[5], [6]])
    labels = symbols()[2][numbers]
    assert torch.equal(victim.gradients_of(numbers, targets=labels), victim.gradients_of(numbers))
    assert not torch.allclose(victim.gradients_of(numbers, targets=1 - labels), victim.gradients_of(numbers))


def test_examples_that_are_no_tuple_are_refused() -> None:
    with pytest.raises(ConfigError, match="a batch is a dict"):
        victim_of(examples={"left": torch.zeros(9, 2), "right": torch.zeros(9)})


def test_progress_counts_examples() -> None:
    seen: list[int] = []
    victim_of().gradients_of(np.arange(40)[:, None], seen.append)
    assert sum(seen) == 40


def test_a_model_that_cannot_be_attacked_says_why() -> None:
    class Odd(Answers):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            if len(ids) > 2:
                raise RuntimeError("too many")
            return super().forward(ids, mask)

    with pytest.raises(ConfigError, match="cannot be attacked with these texts: RuntimeError: too many"):
        victim_of(Odd(tiny_lora())).gradients_of(np.arange(9)[:, None])


def tiny_lora() -> Any:
    import fedmpdd as fm

    return fm.lora(tiny.llama(), 2)
