"""What is dropped before a mean is taken, for every codec."""

import numpy as np
import pytest

from fedmpdd.codecs import Codec, FedSGD
from fedmpdd.directions import Key
from fedmpdd.uplink import Candidate, Screening
from tests.codecs.table import BARE_SIGNS, CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

# Signs without a scale have one magnitude, whatever the gradient.
SIZED = [codec for codec in CODECS_UNDER_TEST if codec not in BARE_SIGNS]


def candidates(codec: Codec, *factors: float, weights: list[float] | None = None) -> list[Candidate]:
    gradients = 0.1 * gaussian(1, D) + 0.02 * gaussian(len(factors), D, seed=1)
    scaled = (gradients * np.array(factors)[:, np.newaxis]).astype(np.float32)
    updates = codec.encode(scaled, [Key(7)] * len(factors))
    claims = weights or [1.0] * len(factors)
    return [Candidate(i, update, weight) for i, (update, weight) in enumerate(zip(updates, claims, strict=True))]


def screening() -> Screening:
    return Screening(1e6, 1e3, weighted=True)


@pytest.mark.parametrize("codec", SIZED, ids=label)
def test_an_update_that_is_much_too_large_is_dropped(codec: Codec) -> None:
    kept, rejections = screening().screen(candidates(codec, 1, 1, -1e5, 1, 1), asked=5)
    assert [one.client for one in kept] == [0, 1, 3, 4]
    assert [(one.client, "times larger than the median" in one.reason) for one in rejections] == [(2, True)]


@pytest.mark.parametrize("codec", SIZED, ids=label)
def test_an_update_above_every_limit_is_dropped(codec: Codec) -> None:
    kept, rejections = screening().screen(candidates(codec, 1, 1e8, 1), asked=3)
    assert [one.client for one in kept] == [0, 2]
    assert "above max_value = 1e+06" in rejections[0].reason


@pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)
def test_ordinary_updates_count(codec: Codec) -> None:
    screen = screening()
    for factor in (1, 0.5, 0.1, 2):
        kept, rejections = screen.screen(candidates(codec, factor, 2 * factor, 0.5 * factor, factor), asked=4)
        assert len(kept) == 4
        assert rejections == []


@pytest.mark.parametrize("codec", SIZED, ids=label)
def test_who_answers_alone_is_held_to_the_rounds_before(codec: Codec) -> None:
    screen = screening()
    assert "answered alone of 5" in screen.screen(candidates(codec, 1.0), asked=5)[1][0].reason
    screen.screen(candidates(codec, 1, 1, 1), asked=5)
    assert len(screen.screen(candidates(codec, 2.0), asked=5)[0]) == 1
    (rejection,) = screen.screen(candidates(codec, -1e5), asked=5)[1]
    assert "times larger than the median update of any round" in rejection.reason
    median = screen.reference.median()
    assert median is not None
    assert median < 2 * candidates(codec, 1.0)[0].magnitude


@pytest.mark.parametrize("asked", [1, 2])
def test_who_is_half_of_those_asked_counts(asked: int) -> None:
    screen = screening()
    for _ in range(3):  # the other one never comes
        kept, _ = screen.screen(candidates(CODECS_UNDER_TEST[0], 1.0), asked=asked)
        assert len(kept) == 1
    assert (screen.reference.median() is None) == (asked == 2)


def test_claims_of_examples_are_bounded_where_they_weigh() -> None:
    liars = candidates(CODECS_UNDER_TEST[0], 1, 1, 1, weights=[10.0, 10.0, 1e6])
    kept, rejections = screening().screen(liars, asked=3)
    assert len(kept) == 2
    assert "times more examples than the median" in rejections[0].reason
    assert len(Screening(1e6, 1e3, weighted=False).screen(liars, asked=3)[0]) == 3


def test_what_all_are_held_against_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians of a round take as long as sorting it; found for each client anew, ten thousand would take minutes."""
    medians: list[int] = []

    def counted(values: list[float]) -> float:
        medians.append(len(values))
        return sorted(values)[0]

    monkeypatch.setattr("fedmpdd.uplink.screening.lower_median", counted)
    screening = Screening(1e6, 1e3, weighted=True)
    updates = FedSGD().encode(np.ones((50, 3), np.float32), [Key(1)] * 50)
    screening.screen([Candidate(i, update) for i, update in enumerate(updates)], 50)
    assert len(medians) <= 2
