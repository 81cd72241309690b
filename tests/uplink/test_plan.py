import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.errors import ConfigError
from fedmpdd.uplink.plan import dimension, plans


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


def test_the_best_m_is_not_always_the_largest() -> None:
    """Two equal clients and 1,024 rows: 512 each recover the gradient exactly, more do worse. Held to brute force."""
    best = next(row for row in plans(1_000, 2, frame_budget=3_000, alignment=1.0) if row.family == "hadamard")
    assert (best.m, best.bits) == (512, 32)
    assert best.error == pytest.approx(0, abs=1e-12)
    for bits in (32, 8, 1):
        codecs = {m: MPDD(m, bits=bits, family="hadamard") for m in range(1, 61)}
        tried = {m: codec.variance(60, 3, partitioned=True, alignment=0.9) for m, codec in codecs.items()}
        for error in (0.05, 0.3, 1.0, 5.0):
            smallest = next((m for m in tried if tried[m] <= error), None)
            found = [p.m for p in plans(60, 3, error=error, alignment=0.9) if (p.family, p.bits) == ("hadamard", bits)]
            assert found == ([] if smallest is None else [smallest])


def test_errors_that_are_no_errors_are_refused() -> None:
    for error in (float("nan"), -1.0):
        with pytest.raises(ConfigError, match="expected a number"):
            plans(100, 5, error=error)
    assert all(row.m < 2**31 for row in plans(3_000_000_000, 50, error=0.5))
