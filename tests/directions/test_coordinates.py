"""Coordinates chosen by a key: those of the slow reference, each as often as the others."""

import numpy as np
import pytest

from fedmpdd.directions import Key, available_isas, distinct_coordinates, reference, using


@pytest.mark.parametrize(("d", "k"), [(1, 1), (7, 7), (224, 40), (4_100, 4_099)])
def test_they_are_those_of_the_reference_on_every_path(d: int, k: int) -> None:
    keys = [Key(2**64 - 1, 1), Key(3, 2), Key(3, 2**32 - 1)]
    expected = [reference.coordinates(key.seed, d, key.slot, k) for key in keys]
    for isa in available_isas():
        with using(isa=isa):
            assert distinct_coordinates(keys, d, k).tolist() == expected


@pytest.mark.parametrize(("d", "k"), [(100_000, 70_000), (200_000, 3)])
def test_many_are_different_and_in_range(d: int, k: int) -> None:
    found = distinct_coordinates([Key(1), Key(1, 1)], d, k)
    assert 0 <= found.min() <= found.max() < d
    assert all(len(set(row.tolist())) == k for row in found)


def test_slots_share_out_all_coordinates() -> None:
    found = distinct_coordinates([Key(9, slot) for slot in range(10)], 90, 9)
    assert sorted(found.ravel().tolist()) == list(range(90))
    assert distinct_coordinates([Key(9, 10)], 90, 9).tolist() == found[:1].tolist()


@pytest.mark.parametrize("d", [5, 33, 200])
def test_pairs_are_uniform(d: int) -> None:
    """The first two coordinates are a uniform pair of different ones. False alarm: z above 5, 6e-7 with fresh seeds."""
    trials = 40_000
    first, second = distinct_coordinates([Key(seed) for seed in range(trials)], d, 2).T
    counts = np.zeros((d, d))
    np.add.at(counts, (first, second), 1)
    assert np.trace(counts) == 0
    observed = counts[~np.eye(d, dtype=bool)]
    expected = trials / observed.size
    freedom = observed.size - 1
    assert ((((observed - expected) ** 2 / expected).sum()) - freedom) / np.sqrt(2 * freedom) < 5
