"""What Laplace and Gaussian have in common: noise of the stated variance, from the key, that no update gives away."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import Key, pack
from fedmpdd.codecs import NO_KEY, Gaussian, Laplace, Parameters
from fedmpdd.errors import CodecError
from tests.conftest import gaussian

NoiseCodec = type[Laplace] | type[Gaussian]


def noise_of(codec: Laplace | Gaussian, d: int, key: Key) -> NDArray[np.float64]:
    return codec.encode(np.zeros((1, d), dtype=np.float32), [key])[0].arrays[0].astype(np.float64)


def check_moments(kind: NoiseCodec, fourth: float, eighth: float) -> None:
    """Mean, variance and kurtosis. False alarm: z above 5, less than 6e-7 each with fresh seeds."""
    d, variance = 400_000, 2.5
    z = noise_of(kind(variance), d, Key(11)) / math.sqrt(variance)
    assert abs(z.mean()) * math.sqrt(d) < 5
    assert abs((z**2).mean() - 1) / math.sqrt((fourth - 1) / d) < 5
    assert abs((z**4).mean() - fourth) / math.sqrt((eighth - fourth**2) / d) < 5


def check_error_of_the_mean(kind: NoiseCodec) -> None:
    """E‖mean − mean gradient‖² = d·noise/n, whatever the gradients. False alarm: z above 5, 6e-7 with fresh seeds."""
    d, n, trials = 500, 8, 400
    codec = kind(0.04)
    gradients = gaussian(n, d)
    mean = gradients.mean(axis=0, dtype=np.float64)
    errors = np.array(
        [
            ((codec.decode_mean(codec.encode(gradients, [t * n + i for i in range(n)])) - mean) ** 2).sum()
            for t in range(trials)
        ]
    )
    expected = codec.noise_variance(d, n)
    assert expected == pytest.approx(d * 0.04 / n)
    assert abs(errors.mean() - expected) < 5 * errors.std() / math.sqrt(trials) + 1e-6 * expected
    assert codec.variance(d, n) is None


def check_key(kind: NoiseCodec) -> None:
    """Each seed and each slot has noise of its own, and no frame says which it was."""
    codec = kind(1.0)
    draws = np.array([noise_of(codec, 10_000, key) for key in (Key(1), Key(2), Key(1, 1), Key(2**64 - 1, 7))])
    correlations = np.corrcoef(draws)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() * 100 < 5  # z-scores: false alarm 4e-6 with fresh seeds
    update = codec.encode(gaussian(1, 50), [Key(0x1122334455667788, 9)])[0]
    assert update.key == NO_KEY
    assert pack(update)[20:32] == bytes(12)


def check_parameters(kind: NoiseCodec) -> None:
    codec = kind(0.1)
    assert codec.noise == float(np.float32(0.1))
    assert codec.parameters() == Parameters(0, 0, 0x3DCCCCCD)
    assert kind.from_parameters(codec.parameters()) == codec == kind(float(np.float32(0.1)))
    assert codec.bytes_per_update(1_000) == 4_000
    bad: Any
    for bad in (0, -1.0, math.nan, math.inf, 1e39, 10**400, 1e-50, True, "1", None):
        with pytest.raises(CodecError, match="without noise use FedSGD"):
            kind(bad)
    for bits in (0x7F800000, 0x7FC00000, 0x80000001, 0xBF800000):
        with pytest.raises(CodecError, match="is not a variance"):
            kind.from_parameters(Parameters(size=bits))


def check_extremes(kind: NoiseCodec) -> None:
    """The largest noise there is does not reach the last digit of the largest gradient, so that nothing overflows."""
    largest = np.full((1, 1_000), np.finfo(np.float32).max)
    codec = kind(float(largest[0, 0]))
    assert np.array_equal(codec.encode(largest, [1])[0].arrays[0], largest[0])
    assert np.isfinite(codec.encode(largest * 0, [1])[0].arrays[0]).all()
