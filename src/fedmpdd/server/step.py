"""The server's step, for who has the server's vectors as tensors and for clients that follow without PyTorch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fedmpdd.documents import check_number
from fedmpdd.errors import ConfigError

Vector = TypeVar("Vector")  # an array of float32, or a tensor
OPTIMISERS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("velocity",), "adam": ("first", "second")}


@dataclass(frozen=True)
class StepRule:
    """How a server steps along the decoded gradient, in a config and in what clients follow.

    Args:
        optimiser: `sgd`, `momentum` or `adam`.
        momentum: of `momentum`.
        beta1: of `adam`, as are the others.
        beta2: see there.
        epsilon: see there.

    Example:
        >>> StepRule("adam", beta2=0.999).optimiser
        'adam'

    """

    optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Raise ConfigError for a step that nobody can take."""
        if self.optimiser not in OPTIMISERS:
            raise ConfigError(f"optimiser = {self.optimiser!r}: expected 'sgd', 'momentum' or 'adam'")
        for name in ("momentum", "beta1", "beta2"):
            check_number(name, getattr(self, name), 0, 1, "a number from 0 to below 1")
        check_number("epsilon", self.epsilon, math.ulp(0.0), math.inf, "a finite number above 0")


class Step(Generic[Vector]):
    """SGD (the paper's), SGD with momentum, or Adam; its state is a few vectors that a checkpoint holds.

    Every client that follows the model takes the same step, on whatever it has, and must come to the same bits. So: one
    correctly rounded operation at a time, none that a GPU would fuse, and no division by a constant, which it would
    turn into a product. Constants are Python's floats, which NumPy and PyTorch both round to float32 first.
    """

    def __init__(self, rule: StepRule, lr: float, zeros: Callable[[], Vector]) -> None:
        self._rule = rule
        # It multiplies model differences too: with several local steps 1.0 is plain averaging.
        self._lr = float(lr)  # NumPy would compute in float64 with one of its own
        self.state: dict[str, Vector] = {name: zeros() for name in OPTIMISERS[rule.optimiser]}

    def __call__(self, flat: Vector, gradient: Vector, round_number: int) -> Vector:
        """Algorithm 2, line 22: x_{k+1} = x_k − η ĝ, or its relative."""
        with np.errstate(all="ignore"):  # a model that is not finite is for the caller to notice
            stepped: Vector = self._stepped(flat, gradient, round_number)
        return stepped

    def _stepped(self, flat: Any, gradient: Any, round_number: int) -> Any:
        c = self._rule
        state: dict[str, Any] = self.state
        if c.optimiser == "sgd":
            return flat - self._lr * gradient
        if c.optimiser == "momentum":
            velocity = state["velocity"]
            velocity *= c.momentum
            velocity += gradient
            return flat - self._lr * velocity
        first, second = state["first"], state["second"]
        first *= c.beta1
        first += (1 - c.beta1) * gradient
        second *= c.beta2
        second += (1 - c.beta2) * (gradient * gradient)
        steps = round_number + 1
        first_unbiased = first * (1 / (1 - c.beta1**steps))
        second_unbiased = second * (1 / (1 - c.beta2**steps))
        return flat - self._lr * first_unbiased / (_root(second_unbiased) + c.epsilon)


def _root(values: Any) -> Any:
    """√values, correctly rounded.

    PyTorch's own is not on a CPU: 15 of 100 roots are one unit in the last place off, as its MKL takes them. A root in
    float64, wrong by as much, is still right once it is rounded to float32: no root of a float32 is closer to the
    middle of two of them than 2^-50 of itself.
    """
    return np.sqrt(values) if isinstance(values, np.ndarray) else values.double().sqrt().float()
