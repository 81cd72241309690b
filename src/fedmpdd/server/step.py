"""The server's step, for who has the server's vectors as tensors and for clients that follow without PyTorch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from fedmpdd.documents import check_number
from fedmpdd.errors import ConfigError, FedmpddError
from fedmpdd.imports import is_named, named_object, words_and_line_of

Vector = TypeVar("Vector")  # an array of float32, or a tensor
FALLING = ("cosine", "linear")  # schedules that end after some rounds
SCHEDULES = ("constant", *FALLING)
OPTIMISERS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("velocity",), "adam": ("first", "second")}


@dataclass(frozen=True)
class StepRule:
    """How a server steps along the decoded gradient, in a config and in what clients follow.

    Args:
        optimiser: `sgd`, `momentum` or `adam`; in the local engine also the import path of one of PyTorch, such as
            `torch.optim:AdamW(weight_decay=0.01)`.
        momentum: of `momentum`.
        beta1: of `adam`, as are the others.
        beta2: see there.
        epsilon: see there.

    Example:
        >>> StepRule("adam", beta2=0.999).optimiser
        'adam'

    """

    optimiser: str = "sgd"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Raise ConfigError for a step that nobody can take."""
        if self.optimiser not in OPTIMISERS and not (isinstance(self.optimiser, str) and is_named(self.optimiser)):
            raise ConfigError(f"optimiser = {self.optimiser!r}: expected 'sgd', 'momentum' or 'adam'")
        for name in ("momentum", "beta1", "beta2"):
            check_number(name, getattr(self, name), 0, 1, "a number from 0 to below 1")
        check_number("epsilon", self.epsilon, math.ulp(0.0), math.inf, "a finite number above 0")


@dataclass(frozen=True)
class Schedule:
    """How the step size changes over the rounds: a factor of `lr` for each of them.

    Args:
        kind: `constant`, `cosine` or `linear`, which go from 1 to `final`; or the import path of a function from the
            number of a round, from 0, to its factor.
        rounds: over how many rounds; in a config all of the run's by default. 0 for `constant`.
        warmup: rounds in which the factor grows from near 0 to 1 before that.
        final: the factor from `rounds` on.

    Example:
        >>> [Schedule("linear", rounds=4).factor(k) for k in range(6)]
        [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]

    """

    kind: str = "constant"
    rounds: int = 0
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError for a schedule that nobody can keep."""
        if self.kind not in SCHEDULES and not (isinstance(self.kind, str) and is_named(self.kind)):
            raise ConfigError(
                f"kind = {self.kind!r}: expected {', '.join(map(repr, SCHEDULES))}, or an import path such as "
                "mysteps.py:factor"
            )
        for name in ("rounds", "warmup"):
            check_number(name, getattr(self, name), 0, math.inf, "a number of rounds")
        check_number("final", self.final, 0, math.inf, "a finite number, not negative")
        if self.kind in FALLING and self.rounds <= self.warmup:
            raise ConfigError(
                f"rounds = {self.rounds} with warmup = {self.warmup}: a {self.kind} schedule ends after its warmup; "
                "say over how many rounds"
            )

    def factor(self, round_number: int) -> float:
        """Return what the step size of a round is multiplied with."""
        if round_number < self.warmup:
            return (round_number + 1) / self.warmup
        if self.kind not in SCHEDULES:
            return self._factor_of_own(round_number)
        if self.kind == "constant":
            return 1.0
        done = min(1.0, (round_number - self.warmup) / (self.rounds - self.warmup))
        share = 1 - done if self.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return round(self.final + (1 - self.final) * share, 12)  # the last bits of a cosine depend on the machine

    def _factor_of_own(self, round_number: int) -> float:
        try:
            factor = float(named_object(self.kind, "schedule.kind")(round_number))
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's function
            raise ConfigError(
                f"schedule cannot be called with the number of a round, {round_number}: {words_and_line_of(error)}"
            ) from error
        if not 0 <= factor < math.inf:
            raise ConfigError(f"schedule gives {factor} for round {round_number}; expected a factor of lr, 0 or more")
        return factor


CONSTANT = Schedule()


class Step(Generic[Vector]):
    """SGD (the paper's), SGD with momentum, or Adam; its state is a few vectors that a checkpoint holds.

    Every client that follows the model takes the same step, on whatever it has, and must come to the same bits. So: one
    correctly rounded operation at a time, none that a GPU would fuse, and no division by a constant, which it would
    turn into a product. Constants are Python's floats, which NumPy and PyTorch both round to float32 first.
    """

    def __init__(self, rule: StepRule, lr: float, zeros: Callable[[], Vector], schedule: Schedule = CONSTANT) -> None:
        if rule.optimiser not in OPTIMISERS:
            raise ConfigError(
                f"server.optimiser = {rule.optimiser!r}: who follows the model, as a reader of its journal does, has "
                f"to take the same step, to the same bits; use {', '.join(OPTIMISERS)}"
            )
        self._rule = rule
        self._schedule = schedule
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
        lr = self._lr * self._schedule.factor(round_number)
        state: dict[str, Any] = self.state
        if c.optimiser == "sgd":
            return flat - lr * gradient
        if c.optimiser == "momentum":
            velocity = state["velocity"]
            velocity *= c.momentum
            velocity += gradient
            return flat - lr * velocity
        first, second = state["first"], state["second"]
        first *= c.beta1
        first += (1 - c.beta1) * gradient
        second *= c.beta2
        second += (1 - c.beta2) * (gradient * gradient)
        steps = round_number + 1
        first_unbiased = first * (1 / (1 - c.beta1**steps))
        second_unbiased = second * (1 / (1 - c.beta2**steps))
        return flat - lr * first_unbiased / (_root(second_unbiased) + c.epsilon)


def _root(values: Any) -> Any:
    """√values, correctly rounded.

    PyTorch's own is not on a CPU: 15 of 100 roots are one unit in the last place off, as its MKL takes them. A root in
    float64, wrong by as much, is still right once it is rounded to float32: no root of a float32 is closer to the
    middle of two of them than 2^-50 of itself.
    """
    return np.sqrt(values) if isinstance(values, np.ndarray) else values.double().sqrt().float()
