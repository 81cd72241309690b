"""What a row says: a claim of the paper, what was measured, and the verdict that follows from the two."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Relation = Literal["=", "≤", "≥"]
Say = Callable[[str], None]  # how a part tells that it goes on

JOINT_LEVEL = 1e-4  # the chance that any interval of a whole run misses the truth
MAX_INTERVALS = 80  # intervals that share it (Bonferroni); a run has fewer


class Interval(NamedTuple):
    """A measured value and where the truth lies; low = high = value where the value is exact."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One claim, measured.

    `expected` is the paper's number and `relation` how the measured one should compare with it. `true_value` is what
    the corrected statement gives instead, where it gives a number.
    """

    claim: str
    how: str
    measured: Interval
    relation: Relation
    expected: float
    only_if: str = ""
    corrected: str = ""
    true_relation: Relation = "="
    true_value: float | None = None

    @property
    def verdict(self) -> str:
        """What the measurement says about the claim: only what is beyond the interval contradicts it."""
        if agrees(self.measured, self.relation, self.expected):
            return "holds"
        return f"holds only if {self.only_if}" if self.only_if else "fails"

    @property
    def corrected_holds(self) -> bool | None:
        """Whether the measurement agrees with the corrected number; None where there is no such number."""
        return None if self.true_value is None else agrees(self.measured, self.true_relation, self.true_value)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        plain = asdict(self)
        plain |= {"measured": self.measured.value, "interval": [self.measured.low, self.measured.high]}
        del plain["only_if"]
        return {**plain, "verdict": self.verdict, "corrected_holds": self.corrected_holds}


def agrees(measured: Interval, relation: Relation, expected: float) -> bool:
    """Whether some value in the interval stands in that relation to what was expected."""
    # Values that are exact up to rounding must not fail by their last bit.
    slack = 1e-9 * max(1.0, abs(expected))
    below = measured.low <= expected + slack
    above = measured.high >= expected - slack
    return {"=": below and above, "≤": below, "≥": above}[relation]


def exact(value: float) -> Interval:
    """A value that no chance had a hand in."""
    return Interval(value, value, value)


def mean_interval(samples: ArrayLike) -> Interval:
    """Return the mean of independent samples and its interval by Student's t."""
    values = np.asarray(samples, dtype=np.float64)
    half = student_quantile(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    mean = float(values.mean())
    return Interval(mean, mean - half, mean + half)


def share_interval(hits: int, trials: int) -> Interval:
    """Return a share of independent trials and its interval by Hoeffding's inequality, which needs no large numbers."""
    half = math.sqrt(math.log(2 * MAX_INTERVALS / JOINT_LEVEL) / (2 * trials))
    share = hits / trials
    return Interval(share, max(0.0, share - half), min(1.0, share + half))


def slope_interval(rounds: ArrayLike, values: NDArray[np.float64]) -> Interval:
    """Return the slope of log values [seeds, rounds] on log rounds: a line through each seed's, then their mean."""
    x = np.log(np.asarray(rounds, dtype=np.float64))
    x -= x.mean()
    return mean_interval(np.log(values) @ x / (x @ x))


@cache
def student_quantile(freedom: int) -> float:
    """Return the t beyond which, on both sides together, one interval's share of the joint level lies.

    With t = √ν·tan θ the density becomes cos^(ν−1) θ; its tail is added up by the midpoint rule and t found by halving.
    """

    def tail(angle: float) -> float:
        steps = 4000
        theta = angle + (np.arange(steps) + 0.5) * (math.pi / 2 - angle) / steps
        area = float(np.sum(np.cos(theta) ** (freedom - 1))) * (math.pi / 2 - angle) / steps
        return area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    wanted = JOINT_LEVEL / MAX_INTERVALS / 2
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > wanted else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)
