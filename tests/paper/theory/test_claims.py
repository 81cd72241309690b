"""Verdicts follow from intervals, and intervals are as wide as they say."""

import math
import statistics

import numpy as np
import pytest

from fedmpdd_paper.theory import PARTS, verify
from fedmpdd_paper.theory.claims import (
    JOINT_LEVEL,
    MAX_INTERVALS,
    Interval,
    Row,
    agrees,
    exact,
    mean_interval,
    share_interval,
    slope_interval,
    student_quantile,
)


def row(measured: Interval, relation: str = "=", expected: float = 1.0, **others: str) -> Row:
    return Row("claim", "how", measured, relation, expected, **others)  # type: ignore[arg-type]


def test_only_what_is_beyond_the_interval_contradicts() -> None:
    around = Interval(1.5, 0.9, 2.1)
    assert row(around).verdict == "holds"
    assert row(around, "≤", 1.0).verdict == "holds"
    assert row(around, "≥", 2.0).verdict == "holds"
    assert row(around, "≤", 0.8).verdict == "fails"
    assert row(around, "≥", 2.2).verdict == "fails"
    assert row(around, "=", 3.0).verdict == "fails"
    assert row(around, "=", 3.0, only_if="pigs fly").verdict == "holds only if pigs fly"
    assert row(around, only_if="pigs fly").verdict == "holds"


def test_exact_values_do_not_fail_by_rounding() -> None:
    assert agrees(exact(1e-15), "=", 0.0)
    assert not agrees(exact(1e-6), "=", 0.0)


def test_a_row_is_a_document_with_the_agreed_keys() -> None:
    document = row(Interval(2.0, 1.9, 2.1)).as_dict()
    assert {"claim", "verdict", "measured", "expected"} <= set(document)
    assert document["measured"] == 2.0
    assert document["interval"] == [1.9, 2.1]
    assert document["corrected_holds"] is None


def test_the_quantile_is_that_of_student_and_at_last_the_normal_one() -> None:
    """Known by formula for 1 and 2 degrees of freedom; p is the probability of one tail."""
    p = JOINT_LEVEL / MAX_INTERVALS / 2
    assert student_quantile(1) == pytest.approx(1 / math.tan(math.pi * p), rel=1e-4)
    assert student_quantile(2) == pytest.approx((1 - 2 * p) / math.sqrt(2 * p * (1 - p)), rel=1e-4)
    assert student_quantile(10_000) == pytest.approx(statistics.NormalDist().inv_cdf(1 - p), rel=2e-3)


def test_intervals_hold_the_truth() -> None:
    """500 intervals miss with a chance of at most 500 · 1.25e-6 = 0.07 % each, three kinds: fails once in 500."""
    rng = np.random.default_rng(1)
    for _ in range(500):
        low, high = mean_interval(rng.standard_normal(6))[1:]
        assert low < 0 < high
        assert agrees(share_interval(int(rng.binomial(50, 0.3)), 50), "=", 0.3)
        powers = np.array([[k**-0.5 * math.exp(rng.normal(0, 0.1)) for k in (16, 64, 256)] for _ in range(5)])
        assert agrees(slope_interval((16, 64, 256), powers), "=", -0.5)


def test_an_unknown_part_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'norm' is unknown: expected estimator, norms") as problem:
        verify(lambda text: None, ["norm"])
    assert all(part in str(problem.value) for part in PARTS)
