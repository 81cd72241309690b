import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.errors import ConfigError
from fedmpdd.federation.plan import dimension, plans


def test_a_budget_is_used_up_and_not_exceeded() -> None:
    rows = plans(13_426, 50, frame_budget=64)
    assert len(rows) == 10
    assert all(row.frame_bytes <= 64 for row in rows)
    assert [row.error for row in rows] == sorted(row.error for row in rows)
    best = rows[0]
    assert (best.family, best.bits, best.partitioned, best.m) == ("hadamard", 1, True, 416)
    assert best.revealed_bits == 416 + 32
    assert best.error == MPDD(416, bits=1, family="hadamard").variance(13_426, 50, partitioned=True)


def test_an_error_is_kept_with_the_smallest_m() -> None:
    for row in plans(13_426, 50, error=1.0):
        codec = MPDD(row.m, bits=row.bits, family=row.family)
        assert row.error <= 1.0
        smaller = MPDD(row.m - 1, bits=codec.bits, family=codec.family)
        assert smaller.variance(13_426, 50, partitioned=row.partitioned) > 1.0
    sizes = [row.frame_bytes for row in plans(13_426, 50, error=1.0)]
    assert sizes == sorted(sizes)


def test_what_cannot_be_had_is_left_out() -> None:
    assert plans(1_000, 1, frame_budget=16, error=0.1) == []
    assert {row.bits for row in plans(1_000, 1, frame_budget=13)} == {1, 4, 8, 32}


def test_a_plan_needs_a_goal_and_a_size() -> None:
    with pytest.raises(ConfigError, match="needs a goal"):
        plans(100, 5)
    with pytest.raises(ConfigError, match="at least 1"):
        plans(0, 5, error=1.0)
    assert dimension(None, "lenet") == 13_426
    assert dimension(77, None) == 77
    for d, model in ((None, None), (5, "lenet"), (None, "resnet")):
        with pytest.raises(ConfigError):
            dimension(d, model)
