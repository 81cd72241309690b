"""How much of an estimated step the server takes, where its user names no step size."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedmpdd.errors import InputError
from fedmpdd.flower.layout import Float32
from fedmpdd.uplink import Mean

MARGIN = 2.0  # times the share of errors that was undone: too short a step takes longer, too long a one diverges
HARMLESS = 1.0  # full steps of which nothing was undone, before the first: one round alone says little
MOST_ERROR = 90.0  # f · e of any step, see Caution: docs/results/flower-steps.md has what other limits did


class DecodedMean(Mean):
    """A mean that is decoded once, though the rule and the step both need it."""

    def estimate(self) -> Any:
        """See Mean."""
        return self._estimate

    @cached_property
    def _estimate(self) -> Any:
        return super().estimate()


@dataclass(frozen=True)
class Tally:
    """What a `Caution` knows of the rounds before, but for the last estimate.

    Args:
        undone: the sum of what clients undid of each step's error.
        steps: the sum of the factors of these steps.
        factor: of the last step: how much of its estimate was taken.
        error: of the last estimate, relative and squared.

    """

    undone: float = 0.0
    steps: float = 0.0
    factor: float = 1.0
    error: float = 0.0


class Caution:
    """Full steps, until an estimate is mostly error or clients undo the errors of the steps before.

    An estimate ĝ of the mean update g has an error of e · ‖g‖². What that costs depends on the clients. If they train
    all the way to an optimum, the next updates undo the whole error: the share 1 / (1 + e) of a step is best then, and
    twice as much diverges. After a few local steps they undo next to nothing, and a full step is best. The server can
    see which it is. Let h be the share of an error that clients undo. A step by the factor f leads to an update with
    ⟨ĝ′, ĝ⟩ = (1 / (1 + e) − f · h) · ‖ĝ‖² on average, since the errors of two rounds are independent. The sum over all
    rounds, divided by the sum of the factors, tells h, and the share is 1 / (1 + h · e). One round tells little: h is
    taken to be 0 for one full step before the first. And it is doubled: with half of what it is steps would diverge.

    Errors that nobody undoes add up. By the time the model has come a given way, their squares have added up to f · e
    for every unit of it, in steps of any length. So f · e is at most `MOST_ERROR`.

    Only the mean is looked at, no single update.

    Example:
        >>> Caution().share(np.ones(4, np.float32), error=180.0)
        0.5

    """

    def __init__(
        self, last: Float32 | None = None, tally: Tally | None = None, *, most_error: float = MOST_ERROR
    ) -> None:
        self.last = last  # estimate along which the server stepped
        self._tally = tally or Tally()
        self._most_error = most_error

    def share(self, estimate: Float32, error: float) -> float:
        """Return how much of the step along an estimate to take, above 0 and at most 1.

        Args:
            estimate: the mean of a round.
            error: what it is expected to be off, relative to the mean it stands for, both squared.

        """
        tally = self._observed(estimate)
        undone = min(1.0, max(0.0, MARGIN * tally.undone / (HARMLESS + tally.steps)))
        return min(1 / (1 + undone * error), self._most_error / max(error, self._most_error))

    def remember(self, estimate: Float32, error: float, factor: float) -> None:
        """Take note of a step that was taken: by so much of an estimate that has this error."""
        tally = self._observed(estimate)
        self._tally = Tally(tally.undone, tally.steps, factor, error)
        self.last = estimate

    def _observed(self, estimate: Float32) -> Tally:
        """What is known with the next estimate in view."""
        tally = self._tally
        square = 0.0 if self.last is None else _product(self.last, self.last)
        if self.last is None or not 0 < square < math.inf:
            return tally
        undone = 1 / (1 + tally.error) - _product(estimate, self.last) / square
        if not math.isfinite(undone):
            return tally
        undone = min(1.0, max(-1.0, undone))  # along a few directions an estimate can be next to nothing by chance
        return Tally(tally.undone + undone, tally.steps + tally.factor, tally.factor, tally.error)

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, float]:
        """Return what a checkpoint holds beside the last estimate, ready for JSON."""
        return dict(vars(self._tally))

    @classmethod
    def from_state(cls, last: Float32, state: object) -> "Caution":
        """Return the caution of a checkpoint, or raise InputError if that is none."""
        try:
            tally = Tally(**{name: float(value) for name, value in state.items()})  # type: ignore[attr-defined]
            if not (all(map(math.isfinite, vars(tally).values())) and min(tally.steps, tally.error) >= 0):
                raise ValueError("a sum of steps or an error is negative or not finite")
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"this is not what clients undid of earlier steps: {error}; start without it") from None
        return cls(last, tally)


def _product(a: Float32, b: Float32) -> float:
    """The inner product in float64, without copies: squares of float32 may leave its range."""
    return float(np.einsum("i,i->", a, b, dtype=np.float64, casting="same_kind"))
