"""Noise on integers: its distribution, against the formula."""

import math

import numpy as np
import pytest

from fedmpdd.codecs.discrete_gaussian import closeness, discrete_gaussian
from fedmpdd.codecs.private import SystemNoise
from fedmpdd.errors import CodecError

DRAWN = 200_000


@pytest.mark.parametrize("deviation", [0.3, 0.8, 1.0, 3.7, 50.0])
def test_frequencies_are_those_of_the_formula(deviation: float) -> None:
    """Chi-square with k − 1 degrees: mean k − 1, deviation √(2(k − 1)); the bound at 5 deviations, seed fixed."""
    values = discrete_gaussian(deviation, DRAWN, np.random.default_rng(3))
    reach = math.ceil(12 * deviation) + 2
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * deviation**2))
    expected = DRAWN * weights / weights.sum()
    counts = np.bincount(values + reach, minlength=x.size)
    often = expected > 10
    rest_counts, rest_expected = counts[~often].sum(), expected[~often].sum()
    chi = ((counts[often] - expected[often]) ** 2 / expected[often]).sum()
    if rest_expected > 1:
        chi += (rest_counts - rest_expected) ** 2 / rest_expected
    freedom = often.sum() - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom) + 5
    assert counts.sum() == DRAWN


def test_the_operating_system_is_a_source_too() -> None:
    """2,000 numbers of deviation 10: the mean within 6 deviations of it, 1.3; false alarm 2e-9."""
    values = discrete_gaussian(10.0, 2_000, SystemNoise())
    assert abs(values.mean()) < 6 * 10 / math.sqrt(2_000)
    assert values.dtype == np.int64


def test_no_noise_is_no_noise() -> None:
    assert (discrete_gaussian(0.0, 5, SystemNoise()) == 0).all()
    assert discrete_gaussian(1.0, 0, SystemNoise()).size == 0
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(CodecError, match="deviation"):
            discrete_gaussian(wrong, 5, SystemNoise())


@pytest.mark.parametrize("deviation", [0.75, 0.9, 1.1])
@pytest.mark.parametrize("clients", [2, 3, 6])
def test_sums_are_as_close_to_one_draw_as_the_bound_says(deviation: float, clients: int) -> None:
    """Exactly, by convolution, wherever float64 still has digits."""

    def pmf(sigma: float, reach: int) -> np.ndarray:
        x = np.arange(-reach, reach + 1)
        weights = np.exp(-(x**2) / (2 * sigma**2))
        return np.asarray(weights / weights.sum())

    reach = 12
    total = pmf(deviation, reach)
    for _ in range(clients - 1):
        total = np.convolve(total, pmf(deviation, reach))
    single = pmf(deviation * math.sqrt(clients), clients * reach)
    seen = single > 1e-9
    worst = np.abs(np.log(total[seen] / single[seen])).max()
    assert 0 < worst <= closeness(deviation, clients)


def test_wide_noise_adds_up_for_all_purposes() -> None:
    assert closeness(4.0, 1000) < 1e-60
    assert closeness(0.2, 10) == math.inf
    assert closeness(0.2, 1) == 0
