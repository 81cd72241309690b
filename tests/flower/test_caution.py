"""How much of an estimated step is taken: what clients undo of an error decides."""

import json
import math

import numpy as np
import pytest

from fedmpdd.errors import InputError
from fedmpdd.flower.caution import HARMLESS, MARGIN, MOST_ERROR, Caution
from fedmpdd.flower.layout import Float32

D = 4_000
TARGET = np.linspace(-1, 1, D, dtype=np.float32)


def shares(undone: float, error: float, rounds: int = 12, *, seed: int = 1) -> list[float]:
    """What is taken of each step where clients go a part of the way to TARGET, and estimates have normal errors."""
    rng = np.random.default_rng(seed)
    caution, model, taken = Caution(), np.zeros(D), []
    update = TARGET - model  # as long as if clients went all the way
    for _ in range(rounds):
        noise = rng.standard_normal(D) * np.linalg.norm(update) * math.sqrt(error / D)
        estimate = (update + noise).astype(np.float32)
        taken.append(caution.share(estimate, error))
        caution.remember(estimate, error, taken[-1])
        update = update - undone * taken[-1] * estimate
    return taken


def test_the_first_step_is_a_full_one_unless_it_is_mostly_error() -> None:
    estimate = np.ones(4, np.float32)
    assert Caution().share(estimate, 0.0) == 1
    assert Caution().share(estimate, MOST_ERROR) == 1
    assert Caution().share(estimate, 10 * MOST_ERROR) == 0.1


@pytest.mark.parametrize("error", [0.5, 5.0, 50.0])
def test_where_all_of_an_error_is_undone_the_share_is_the_best_one(error: float) -> None:
    assert shares(1.0, error)[1:] == pytest.approx([1 / (1 + error)] * 11, rel=0.25)


def test_where_a_tenth_of_an_error_is_undone_two_tenths_count() -> None:
    assert shares(0.1, 20.0, 40)[20:] == pytest.approx([1 / (1 + MARGIN * 0.1 * 20)] * 20, rel=0.25)


@pytest.mark.parametrize("error", [0.5, 5.0, 20.0])
def test_where_none_of_an_error_is_undone_steps_stay_nearly_full(error: float) -> None:
    assert min(shares(0.0, error)) > 0.6


def test_a_step_that_was_shortened_for_another_reason_counts_as_what_it_was() -> None:
    rng = np.random.default_rng(2)
    first, second = (rng.standard_normal(D).astype(np.float32) for _ in range(2))
    caution = Caution()
    caution.remember(first, 9.0, 0.1)
    # All of the first's error is undone: ⟨second, first⟩ = (1 / (1 + 9) − 0.1 · 1) · ‖first‖² = 0
    second -= np.float32(second @ first / (first @ first)) * first
    undone = MARGIN * 0.1 / (HARMLESS + 0.1)
    assert caution.share(second, 9.0) == pytest.approx(1 / (1 + undone * 9), rel=1e-3)


def test_an_estimate_of_nothing_says_nothing() -> None:
    caution = Caution()
    caution.remember(np.zeros(4, np.float32), 5.0, 1.0)
    assert caution.share(np.ones(4, np.float32), 5.0) == 1


def test_numbers_whose_squares_float32_cannot_hold() -> None:
    caution = Caution()
    caution.remember(np.full(4, 1e30, np.float32), 1.0, 1.0)
    assert caution.share(np.full(4, -1e30, np.float32), 1.0) == 0.5


def test_the_state_goes_on_as_if_nothing_had_been_between() -> None:
    rng = np.random.default_rng(3)
    estimates: list[Float32] = [rng.standard_normal(D).astype(np.float32) for _ in range(3)]
    caution = Caution()
    for estimate in estimates[:2]:
        caution.remember(estimate, 30.0, 0.3)
    assert caution.last is not None
    again = Caution.from_state(caution.last, json.loads(json.dumps(caution.state())))
    assert again.share(estimates[2], 30.0) == caution.share(estimates[2], 30.0) < 1


@pytest.mark.parametrize(
    "state", [[], {"steps": -1.0}, {"error": -1.0}, {"factor": math.inf}, {"undone": "x"}, {"speed": 1.0}]
)
def test_a_damaged_state_is_refused(state: object) -> None:
    with pytest.raises(InputError, match="start without it"):
        Caution.from_state(np.ones(4, np.float32), state)
