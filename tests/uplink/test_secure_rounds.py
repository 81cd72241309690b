"""Shares of a round's clients become numbers of clients."""

from typing import Any

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.uplink import SecureRounds


@pytest.mark.parametrize(
    ("clients", "dropouts", "colluding", "threshold", "colluders"),
    [(10, 0.3, 0.0, 7, 0), (10, 0.3, 0.1, 7, 1), (10, 0.49, 0.29, 6, 2), (3, 0.3, 0.4, 3, 1), (50, 0.02, 0.0, 49, 0)],
)
def test_shares_are_rounded_down(
    clients: int, dropouts: float, colluding: float, threshold: int, colluders: int
) -> None:
    rounds = SecureRounds(1.0, dropouts=dropouts, colluding=colluding)
    assert rounds.threshold(clients) == threshold
    assert rounds.colluders(clients) == colluders
    assert rounds.honest_minimum(clients) == threshold - colluders


@pytest.mark.parametrize(
    "values",
    [
        {"clip": 0.0},
        {"clip": float("inf")},
        {"clip": float("nan")},
        {"clip": True},
        {"clip": "1"},
        {"noise_multiplier": -0.1},
        {"dropouts": 0.5},
        {"colluding": -0.1},
        {"neighbours": 3},
        {"neighbours": 2.0},
        {"neighbours": -2},
    ],
)
def test_values_that_no_round_can_have_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(values))} = "):
        SecureRounds(**{"clip": 1.0, **values})


def test_a_crowd_that_hides_nobody_is_refused() -> None:
    for clients, changes, words in (
        (1, {}, "is no sum"),
        (5, {"colluding": 0.45, "dropouts": 0.45}, "a sum of one hides nothing"),
        (10, {"neighbours": 8, "dropouts": 0.45}, "need 0, everybody"),
        (10, {"neighbours": 4}, "need 8 or more, below 9"),
    ):
        with pytest.raises(ConfigError, match=words):
            SecureRounds(1.0, **changes).check(clients)
    SecureRounds(1.0, neighbours=8).check(10)


def test_the_ring_has_room_for_the_noise_of_all() -> None:
    rounds = SecureRounds(2.0, noise_multiplier=0.5, ring_bits=24, dropouts=0.2, colluding=0.1)
    # Room for twenty clients, rounding, and twelve deviations of the noise of all.
    assert rounds.noise_in_steps(20) == pytest.approx(0.5 * (2**23 - 1) / (21 + 12 * 20**0.5 * 0.5))
