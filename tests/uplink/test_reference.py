"""The running median of magnitudes, and who may not move it."""

import json
import math
from typing import Any

import pytest

from fedmpdd.errors import InputError
from fedmpdd.uplink.reference import FEW, ROUNDS, Reference, lower_median


def test_of_two_the_smaller_one() -> None:
    assert lower_median([3.0, 1.0]) == 1.0
    assert lower_median([3.0, 1.0, 2.0]) == 2.0
    assert lower_median([4.0, 3.0, 1.0, 2.0]) == 2.0


def test_who_answers_alone_sets_nothing() -> None:
    reference = Reference()
    reference.add([1e9], asked=10)
    assert reference.median() is None
    assert reference.largest is None
    reference.add([2.0], asked=1)  # nobody else was asked: then it is all there is
    assert reference.median() == 2.0


def test_one_round_of_liars_does_not_move_the_median() -> None:
    reference = Reference()
    for _ in range(3):
        reference.add([1.0, 1.1, 0.9, 1.0], asked=4)
    reference.add([1e6] * 3 + [1.0], asked=4)
    assert reference.median() == pytest.approx(1.0, abs=0.1)
    assert reference.median([1e6] * 3) == pytest.approx(1.0, abs=0.1)


def test_it_follows_gradients_that_shrink() -> None:
    reference = Reference()
    for k in range(20):
        reference.add([2.0**-k] * 5, asked=5)
    assert reference.median() == 2.0 ** -(19 - ROUNDS // 2)
    assert reference.largest == 1.0


def test_few_magnitudes_of_a_round_do_not_count() -> None:
    reference = Reference()
    assert reference.median([5.0] * (FEW - 1)) is None
    assert reference.median([5.0] * FEW) == 5.0


def test_a_checkpoint_brings_it_back() -> None:
    reference = Reference()
    reference.add([1.0, 2.0, 3.0], asked=3)
    reference.add([4.0, 5.0, 6.0], asked=3)
    again = Reference.from_state(json.loads(json.dumps(reference.state())))
    assert (again.median(), again.largest) == (reference.median(), reference.largest)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"rounds": [[1.0]]},
        {"rounds": 3, "largest": None},
        {"rounds": [[-1.0]], "largest": 1.0},
        {"rounds": [[1.0]], "largest": math.nan},
        {"rounds": [["x"]], "largest": 1.0},
    ],
)
def test_what_is_no_reference_is_refused(state: Any) -> None:
    with pytest.raises(InputError, match="not a reference"):
        Reference.from_state(state)
