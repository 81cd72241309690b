import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.errors import ConfigError
from fedmpdd.runs.compare import codec_config, compare
from fedmpdd.simulation import load_config, parse_config
from tests.simulation.test_engine import BASE

CONFIG = parse_config({**BASE, "rounds": 40, "evaluate_every": 5})


def test_codecs_are_described_in_a_word() -> None:
    config = codec_config(CONFIG, "mpdd:m=8:bits=1:family=hadamard:keys=partitioned")
    assert config.codec.build() == MPDD(8, bits=1, family="hadamard")
    assert config.codec.keys == "partitioned"
    assert codec_config(CONFIG, "mpdd:m=9").codec.keys == "sent"


def test_targets_and_budgets() -> None:
    target, budget = 0.5, 30_000
    compared = compare(CONFIG, ["mpdd:m=400", "mpdd:m=400:bits=1"], target=target, budget=budget)
    full, bit = (comparison.as_dict() for comparison in compared)
    assert full["rounds"] == bit["rounds"] == 40
    for row in (full, bit):
        reached = next((rounds, sent) for rounds, sent, accuracy in row["history"] if accuracy >= target)
        assert (row["rounds_to_target"], row["bytes_to_target"]) == reached
        assert row["uplink_bytes"] == row["history"][-1][1]
        assert row["final_accuracy"] == row["history"][-1][2]
    assert full["accuracy_at_budget"] is None  # five rounds of float32 are over it already
    assert bit["accuracy_at_budget"] == next(a for _, sent, a in reversed(bit["history"]) if sent <= budget)


def test_it_can_stop_at_the_target_and_say_that_it_was_not_reached() -> None:
    (comparison,) = compare(CONFIG, ["mpdd:m=400"], target=0.3, stop_at_target=True)
    early = comparison.as_dict()
    assert early["rounds"] == early["rounds_to_target"] < 40
    assert comparison.run.state == "ended early"
    (comparison,) = compare(CONFIG, ["mpdd:m=1"], target=0.99)
    assert comparison.as_dict()["bytes_to_target"] is comparison.as_dict()["rounds_to_target"] is None


def test_everything_is_checked_before_the_first_round() -> None:
    rounds = []
    with pytest.raises(ConfigError, match="m = 0"):
        list(compare(CONFIG, ["mpdd:m=4", "mpdd:m=0"], on_round=lambda *seen: rounds.append(seen)))
    with pytest.raises(ConfigError, match="must not exceed d"):
        list(compare(CONFIG, ["mpdd:m=4", "mpdd:m=9000:family=hadamard"], on_round=lambda *seen: rounds.append(seen)))
    assert rounds == []
    with pytest.raises(ConfigError, match="needs a --target"):
        list(compare(CONFIG, ["mpdd:m=4"], stop_at_target=True))
    with pytest.raises(ConfigError, match="nothing to compare"):
        list(compare(CONFIG, []))


def test_a_codec_that_fails_does_not_take_the_others_along() -> None:
    config = parse_config({**BASE, "rounds": 8, "evaluate_every": 2, "lr": 1e37})
    failed, sound = compare(config, ["mpdd:m=4", "laplace:noise=0.1"])
    assert failed.error is not None
    assert "finite" in failed.error or "too large" in failed.error
    assert failed.run.state == "diverged"
    assert sound.codec.startswith("laplace")


def test_order_of_overrides_does_not_matter_for_the_codec() -> None:
    config = load_config("demo", ["codec.bits=1", "codec.name=mpdd", "codec.m=40"])
    assert config.codec.build() == MPDD(40, bits=1)
