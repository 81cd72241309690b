"""What the directions must be like as random vectors.

Statistical tests here have fixed seeds and compare a z-score with 5: were the seeds drawn anew, each would
fail by chance less than once in a million times.
"""

import numpy as np
import pytest

from fedmpdd.directions import FAMILIES, Family, Key, family_named, reference, spec
from fedmpdd.errors import CodecError, KeyRangeError
from tests.conftest import gaussian


def test_rademacher_signs_are_balanced_and_uncorrelated() -> None:
    d, m = 4_096, 200
    u = np.array([reference.signs(17, j, d) for j in range(m)], dtype=np.float64)
    assert abs(u.sum()) / np.sqrt(d * m) < 5
    products = (u @ u.T)[np.triu_indices(m, 1)] / np.sqrt(d)  # about standard normal, and uncorrelated in pairs
    assert abs((products**2).mean() - 1) / np.sqrt(2 / products.size) < 5
    neighbours = (u[:, 1:] * u[:, :-1]).sum() / np.sqrt(m * (d - 1))
    assert abs(neighbours) < 5


@pytest.mark.parametrize("d", [4, 12, 16, 28, 56])
def test_pairs_of_rows_are_uniform(d: int) -> None:
    """The variance formula needs any two rows to be a uniform pair of different rows, at the smallest sizes too."""
    size, trials = spec.hadamard_size(d), 6_000
    counts = np.zeros((size, size))
    for seed in range(trials):
        counts[reference.hadamard_row(seed, d, 0), reference.hadamard_row(seed, d, 1)] += 1
    assert np.trace(counts) == 0
    observed = counts[~np.eye(size, dtype=bool)]
    expected = trials / observed.size
    freedom = observed.size - 1
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert (chi_square - freedom) / np.sqrt(2 * freedom) < 5


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_overlap_is_the_measured_one(family: Family) -> None:
    """E[(uᵀg)(u′ᵀg) uᵀu′] / ‖g‖², over seeds."""
    d, trials = 33, 4_000  # below the order 40, so that there is padding
    g = gaussian(d).astype(np.float64)
    values = []
    for seed in range(trials):
        if family.name == "hadamard":
            u, v = (reference.hadamard_direction(seed, d, j).astype(np.float64) for j in range(2))
        else:
            u, v = (reference.signs(seed, j, d).astype(np.float64) for j in range(2))
        values.append((u @ g) * (v @ g) * (u @ v) / (g @ g))
    error = np.std(values) / np.sqrt(trials)
    assert abs(np.mean(values) - family.overlap(d)) < 5 * error


def test_slots_are_later_directions_of_the_same_seed() -> None:
    g = gaussian(1, 500)
    for family in FAMILIES.values():
        whole = family.encode(g, [Key(3)], 20)
        second = family.encode(g, [Key(3, 1)], 10)
        assert second.tolist() == whole[:, 10:].tolist()


def test_impossible_sizes_are_refused() -> None:
    rademacher, hadamard = FAMILIES["rademacher"], FAMILIES["hadamard"]
    rademacher.check(10, 1_000, 0)  # more directions than coordinates are allowed
    hadamard.check(10, 10, 0)
    with pytest.raises(CodecError, match="must not exceed d"):
        hadamard.check(10, 11, 0)
    for family in FAMILIES.values():
        for d, m in [(0, 1), (2**40 + 1, 1), (5, 0)]:
            with pytest.raises(CodecError, match="out of range"):
                family.check(d, m, 0)
    with pytest.raises(KeyRangeError, match="seeds of their own"):
        rademacher.check(10, 2**20, 2**12)
    with pytest.raises(CodecError, match="expected one of rademacher, hadamard"):
        family_named("gaussian")
