"""The server's step by an optimiser of PyTorch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmpdd.errors import ConfigError
from fedmpdd.server.step import Schedule
from fedmpdd.torch.step import TorchStep

SHAPES = [torch.Size([2, 3]), torch.Size([2])]
OPTIMISERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.3, weight_decay=0.1),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.3, amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.3),
}


def gradient(k: int) -> Tensor:
    return torch.randn(8, generator=torch.Generator().manual_seed(k))


def plain(make: Any, rounds: int) -> Tensor:
    """The same steps with parameters of a module."""
    parameters = [nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimiser = make(parameters)
    for k in range(rounds):
        for parameter, part in zip(parameters, torch.split(gradient(k), [6, 2]), strict=True):
            parameter.grad = part.view(parameter.shape)
        optimiser.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=list(OPTIMISERS))
def test_steps_are_those_of_the_optimiser_also_after_a_checkpoint(make: Any) -> None:
    step, flat = TorchStep(make, 0.3, SHAPES), torch.ones(8)
    for k in range(3):
        flat = step(flat, gradient(k), k)
    later = TorchStep(make, 0.3, SHAPES)
    assert set(later.state) == set(step.state)
    for name, vector in step.state.items():
        assert vector.numel() in later.lengths[f"server.{name}"]
    later.state = {name: vector.clone() for name, vector in step.state.items()}
    for k in range(3, 6):
        flat = later(flat, gradient(k), k)
    torch.testing.assert_close(flat, plain(make, 6), rtol=0, atol=0)


def test_a_schedule_scales_every_group() -> None:
    def two_groups(parameters: Any) -> torch.optim.Optimizer:
        first, second = parameters
        groups: Any = [{"params": [first]}, {"params": [second], "lr": 0.01}]
        return torch.optim.SGD(groups, lr=0.1)

    step = TorchStep(two_groups, 0.1, SHAPES, Schedule("linear", rounds=2))
    flat = step(torch.zeros(8), torch.ones(8), 0)
    torch.testing.assert_close(flat, torch.tensor([-0.1] * 6 + [-0.01] * 2))
    torch.testing.assert_close(step(flat, torch.ones(8), 1), 1.5 * flat)


BAD: dict[str, tuple[Any, str]] = {
    "no optimiser": (lambda parameters: 3, "gives a int; expected a function from parameters"),
    "fails": (lambda parameters: torch.optim.SGD(parameters, lr=-1), "cannot be made of parameters"),
    "some parameters": (lambda parameters: torch.optim.SGD(list(parameters)[:1], lr=0.1), "does not step all"),
    "other shapes": (lambda parameters: torch.optim.Adafactor(parameters, lr=0.1), "another shape"),
    "a history": (lambda parameters: torch.optim.LBFGS(parameters, lr=0.1), "server.optimiser"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=list(BAD))
def test_what_cannot_step_is_refused_in_a_line(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TorchStep(make, 0.1, SHAPES)
    assert "\n" not in str(caught.value)
