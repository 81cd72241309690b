"""How large an update is expected to be, by what honest majorities sent so far."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from fedmpdd.errors import InputError

ROUNDS = 5  # whose magnitudes count: gradients shrink while a model learns, and grow again when it leaves a plateau
FEW = 3  # of fewer than so many nobody is a majority


def lower_median(values: Sequence[float]) -> float:
    """Return the middle value, of two the smaller one: up to half of them may be lies."""
    return sorted(values)[(len(values) - 1) // 2]


class Reference:
    """The running median of magnitudes, and the largest median that any round had.

    A single answer out of several that were asked for is left out: one client must not say what is normal.

    Example:
        >>> reference = Reference()
        >>> reference.add([1.0, 1.2, 0.9], asked=3)
        >>> reference.median()
        1.0

    """

    def __init__(self) -> None:
        self._rounds: deque[list[float]] = deque(maxlen=ROUNDS)
        self.largest: float | None = None

    def median(self, magnitudes: Sequence[float] = ()) -> float | None:
        """Return the median of the last rounds and of these magnitudes; None where nothing is known.

        Args:
            magnitudes: of the round at work. Fewer than three of them do not count.

        """
        pool = [value for values in self._rounds for value in values]
        if len(magnitudes) >= FEW:
            pool += magnitudes
        return lower_median(pool) if pool else None

    def add(self, magnitudes: Sequence[float], asked: int) -> None:
        """Take note of the magnitudes that counted in a round, to which `asked` clients were asked."""
        if not magnitudes or (len(magnitudes) == 1 and asked > 1):
            return
        self._rounds.append(list(magnitudes))
        self.largest = max(self.largest or 0.0, lower_median(magnitudes))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds, ready for JSON."""
        return {"rounds": [list(values) for values in self._rounds], "largest": self.largest}

    @classmethod
    def from_state(cls, state: object) -> "Reference":
        """Return the reference of a checkpoint, or raise InputError if that is none."""
        reference = cls()
        try:
            rounds, largest = state["rounds"], state["largest"]  # type: ignore[index]
            numbers = [float(value) for values in rounds for value in values] + [float(largest or 0.0)]
            if not all(math.isfinite(value) and value >= 0 for value in numbers):
                raise ValueError("a magnitude is negative or not finite")
            reference._rounds.extend([float(value) for value in values] for values in rounds)
            reference.largest = None if largest is None else float(largest)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise InputError(f"this is not a reference of magnitudes: {error}; start without one") from None
        return reference
