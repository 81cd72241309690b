from typing import Any

import pytest

from fedmpdd.codecs import MPDD, Peaks
from fedmpdd.errors import CodecError, ConfigError
from fedmpdd.tasks.models import count_parameters
from fedmpdd.uplink.codec_config import parse_codec
from fedmpdd.uplink.plan import MODELS, dimension, plan_of, plans, why_nothing_fits


def of_mpdd(rows: Any) -> list[Any]:
    return [row for row in rows if row.group is None]


def test_a_budget_is_used_up_and_not_exceeded() -> None:
    rows = of_mpdd(plans(13_426, 50, frame_budget=64))
    assert len(rows) == 10
    assert all(row.frame_bytes <= 64 for row in rows)
    assert [row.error for row in rows] == sorted(row.error for row in rows)
    best = rows[0]
    assert (best.family, best.bits, best.partitioned, best.m) == ("hadamard", 1, True, 416)
    assert best.revealed_bits == 416 + 32
    assert best.error == MPDD(416, bits=1, family="hadamard").variance(13_426, 50, partitioned=True)


def test_an_error_is_kept_with_the_smallest_m() -> None:
    for row in of_mpdd(plans(13_426, 50, error=1.0)):
        codec = MPDD(row.m, bits=row.bits, family=row.family)
        assert row.error <= 1.0
        smaller = MPDD(row.m - 1, bits=codec.bits, family=codec.family)
        assert smaller.variance(13_426, 50, partitioned=row.partitioned) > 1.0
    sizes = [row.frame_bytes for row in of_mpdd(plans(13_426, 50, error=1.0))]
    assert sizes == sorted(sizes)


def test_what_cannot_be_had_is_left_out() -> None:
    assert plans(1_000, 1, frame_budget=16, error=0.1) == []
    assert {row.bits for row in of_mpdd(plans(1_000, 1, frame_budget=13))} == {1, 4, 8, 32}


@pytest.mark.parametrize(("n", "budget"), [(1, 30), (20, 30), (3, 60)])
def test_of_peaks_the_best_groups_are_planned(n: int, budget: int) -> None:
    """Held to brute force over all groups, both families and both kinds of keys."""
    d, tried = 400, []
    for group in (2**k for k in range(2, 9)):
        for m in range(1, d // group + 1):
            for keys in ("partitioned", "sent"):
                for family in ("hadamard", "rademacher"):
                    try:
                        plan = plan_of(d, n, f"peaks:m={m}:group={group}:family={family}:keys={keys}")
                    except CodecError:
                        continue
                    if plan.frame_bytes <= budget and plan.error is not None:
                        tried.append(plan)
    rows = [row for row in plans(d, n, frame_budget=budget) if row.group is not None]
    assert {row.family for row in rows} == {"hadamard", "rademacher"}
    assert min(row.error or 0 for row in rows) == min(plan.error or 0 for plan in tried)
    assert all(row.frame_bytes <= budget for row in rows)


def test_the_words_of_a_plan_are_its_codec() -> None:
    for row in plans(13_426, 50, frame_budget=64):
        codec = MPDD(row.m, row.bits, row.family) if row.group is None else Peaks(row.m, row.group, row.family)  # type: ignore[arg-type]
        config = parse_codec(row.codec)
        assert (config.build(), config.keys == "partitioned") == (codec, row.partitioned)
        assert row.step_share == pytest.approx(1 / (1 + (row.error or 0)))


def test_codecs_by_words_stand_beside_them() -> None:
    row = plan_of(1_000, 10, "randk:k=50")
    assert (row.frame_bytes, row.m) == (8 + 8 + 200, None)
    assert row.error == pytest.approx(1.9)
    assert plan_of(1_000, 10, "topk:k=50").error is None
    assert plan_of(1_000, 10, "tests.uplink.test_codec_config:Mine(m=5)").frame_bytes == 8 + 2_000


@pytest.mark.parametrize(
    ("goals", "word"),
    [
        ({"frame_budget": 4}, "give --budget 10 or more"),
        ({"frame_budget": 64, "error": 0.1}, "or a larger --error"),
        ({"error": 0.0}, "the smallest error is"),
    ],
)
def test_where_nothing_fits_it_says_what_would(goals: dict[str, Any], word: str) -> None:
    d = 13_426
    assert plans(d, 50, **goals) == []
    message = str(why_nothing_fits(d, 50, **goals))
    assert word in message
    if "--budget" in message:
        budget = int(message.split("--budget ")[1].split()[0])
        assert plans(d, 50, **{**goals, "frame_budget": budget})
        assert not plans(d, 50, **{**goals, "frame_budget": budget - 1})


def test_a_plan_needs_a_goal_and_a_size() -> None:
    with pytest.raises(ConfigError, match="needs a goal"):
        plans(100, 5)
    with pytest.raises(ConfigError, match="at least 1"):
        plans(0, 5, error=1.0)
    assert dimension(None, "lenet") == 13_426
    assert dimension(77, None) == 77
    shapes = {
        "cnn-mcmahan2017": ((3, 32, 32), 10),
        "transformer": ((1, 1, 256), 256),
        "transformer-tiny": ((1, 1, 256), 256),
    }
    assert {name: count_parameters(name, *shapes.get(name, ((1, 28, 28), 10))) for name in MODELS} == MODELS
    for d, model in ((None, None), (5, "lenet"), (None, "resnet")):
        with pytest.raises(ConfigError):
            dimension(d, model)


def test_the_best_m_is_not_always_the_largest() -> None:
    """Two equal clients and 1,024 rows: 512 each recover the gradient exactly, more do worse. Held to brute force."""
    best = next(row for row in of_mpdd(plans(1_000, 2, frame_budget=3_000, alignment=1.0)) if row.family == "hadamard")
    assert (best.m, best.bits) == (512, 32)
    assert best.error == pytest.approx(0, abs=1e-12)
    for bits in (32, 8, 1):
        codecs = {m: MPDD(m, bits=bits, family="hadamard") for m in range(1, 61)}
        tried = {m: codec.variance(60, 3, partitioned=True, alignment=0.9) for m, codec in codecs.items()}
        for error in (0.05, 0.3, 1.0, 5.0):
            smallest = next((m for m in tried if tried[m] <= error), None)
            found = [
                p.m
                for p in of_mpdd(plans(60, 3, error=error, alignment=0.9))
                if (p.family, p.bits) == ("hadamard", bits)
            ]
            assert found == ([] if smallest is None else [smallest])


def test_errors_that_are_no_errors_are_refused() -> None:
    for error in (float("nan"), -1.0):
        with pytest.raises(ConfigError, match="expected a number"):
            plans(100, 5, error=error)
    assert all(row.m is not None and row.m < 2**31 for row in plans(3_000_000_000, 50, error=0.5))
