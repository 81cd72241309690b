from typing import Any

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.simulation import ClientWork, client_work, parse_config

LOCAL = {"local_lr": 0.1}
SHARED: dict[str, Any] = {"keys": "shared"}
CASES: dict[str, tuple[dict[str, Any], ClientWork]] = {
    "a gradient": ({}, ClientWork(1, 1, 1, 0, True)),
    "local steps": ({"local_steps": 4, **LOCAL}, ClientWork(4, 4, 4, 0, True)),
    "forward": ({"client": "forward", "codec": {"name": "mpdd", "m": 8}}, ClientWork(1, 0, 0, 8, False)),
    "peaks, forward": (
        {"client": "forward", "codec": {"name": "peaks", "m": 3, "group": 16}},
        ClientWork(1, 0, 0, 48, False),
    ),
    "decomfl": ({"codec": {"name": "decomfl", "m": 6, **SHARED}}, ClientWork(1, 12, 0, 0, False)),
    "decomfl, steps": (
        {"codec": {"name": "decomfl", "m": 6, **SHARED}, "local_steps": 3, **LOCAL},
        ClientWork(3, 12, 0, 0, False),
    ),
    "fedkseed": (
        {"codec": {"name": "fedkseed", "m": 6, "keys": "derived"}, "local_steps": 6, **LOCAL},
        ClientWork(6, 12, 0, 0, False),
    ),
    "decomfl, more steps than directions": (
        {"codec": {"name": "decomfl", "m": 6, **SHARED}, "local_steps": 8, **LOCAL},
        ClientWork(8, 16, 0, 0, False),
    ),
    "forward, steps": (
        {"client": "forward", "codec": {"name": "mpdd", "m": 6}, "local_steps": 3, **LOCAL},
        ClientWork(3, 0, 0, 6, False),
    ),
    "feedsign": ({"codec": {"name": "feedsign", **SHARED}}, ClientWork(1, 2, 0, 0, False)),
}


@pytest.mark.parametrize(("settings", "expected"), CASES.values(), ids=CASES.keys())
def test_passes_of_a_client(settings: dict[str, Any], expected: ClientWork) -> None:
    assert client_work(parse_config(settings)) == expected


def test_epochs_need_the_examples_of_the_client() -> None:
    config = parse_config({"local_epochs": 2, "batch": 4, **LOCAL})
    assert client_work(config, examples=11).steps == 4
    assert client_work(parse_config({"local_epochs": 2, "local_steps": 3, "batch": 4}), examples=11).steps == 3
    with pytest.raises(ConfigError, match="give examples="):
        client_work(config)


def test_directions_may_grow_with_the_rounds() -> None:
    codec = {"name": "peaks", "m": 1, "group": 4, "grows_to": 4, "grows_after": 2}
    config = parse_config({"client": "forward", "codec": codec})
    assert [client_work(config, round_number=k).tangents for k in (0, 2, 4)] == [4, 8, 16]
