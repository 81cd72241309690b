"""When a server steps, and what late updates count for."""

from typing import Any

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.simulation import make_federation, parse_config
from fedmpdd.uplink.arrivals import SYNCHRONOUS, Arrivals


def test_synchronous_rounds_wait_for_everybody_and_take_nothing_late() -> None:
    assert SYNCHRONOUS.target(50) == 50
    assert SYNCHRONOUS.max_age == 0
    assert SYNCHRONOUS.wait is None


def test_a_round_has_enough_at_the_latest_when_all_came() -> None:
    assert [Arrivals(enough=20).target(asked) for asked in (50, 20, 3)] == [20, 20, 3]


def test_weights_are_products() -> None:
    weights = [Arrivals(max_age=3, decay=0.7).weight(age) for age in range(4)]
    assert weights == [1.0, 0.7, 0.7 * 0.7, 0.7 * 0.7 * 0.7]
    assert Arrivals(decay=1).weight(200) == 1.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"enough": 0}, "enough = 0"),
        ({"enough": -3}, "enough"),
        ({"enough": 2.0}, "enough"),
        ({"enough": True}, "enough"),
        ({"enough": "20"}, "enough"),
        ({"wait": 0}, "wait"),
        ({"wait": float("nan")}, "wait"),
        ({"wait": float("inf")}, "wait"),
        ({"wait": "1"}, "wait"),
        ({"max_age": -1}, "max_age"),
        ({"max_age": 256}, "max_age"),
        ({"max_age": 1.0}, "max_age"),
        ({"decay": 0}, "decay"),
        ({"decay": 1.5}, "decay"),
        ({"decay": float("nan")}, "decay"),
    ],
)
def test_arrivals_that_nobody_can_wait_for(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Arrivals(**values)


CONFIG: dict[str, Any] = {
    "dataset": "mnist-5k",
    "model": "logistic",
    "clients": 4,
    "batch": 2,
    "lr": 0.1,
    "rounds": 2,
    "device": "cpu",
    "codec": {"name": "mpdd", "m": 8},
}


def test_a_config_has_them_as_a_table_and_the_local_engine_refuses_them() -> None:
    config = parse_config({**CONFIG, "arrivals": {"enough": 3, "max_age": 2}})
    assert config.arrivals == Arrivals(enough=3, max_age=2)
    with pytest.raises(ConfigError, match="fedmpdd mqtt serve"):
        make_federation(config)
    assert parse_config(CONFIG).arrivals == SYNCHRONOUS
    with pytest.raises(ConfigError, match="max_age"):
        parse_config({**CONFIG, "arrivals": {"max_age": 300}})
    with pytest.raises(ConfigError, match="sooner"):
        parse_config({**CONFIG, "arrivals": {"sooner": 1}})
