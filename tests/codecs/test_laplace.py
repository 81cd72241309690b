"""What is Laplace's own, and that it is a codec with noise as noise.py has it."""

import numpy as np

from fedmpdd import Key
from fedmpdd.codecs import Laplace
from tests.codecs import noise
from tests.conftest import gaussian


def test_update_is_gradient_plus_laplace_noise_of_the_key() -> None:
    g = gaussian(1, 1_000)
    drawn = np.random.Generator(np.random.Philox(key=np.array([5, 2], dtype=np.uint64))).laplace(0, 0.5**0.5, 1_000)
    assert np.array_equal(Laplace(1.0).encode(g, [Key(5, 2)])[0].arrays[0], (g[0] + drawn).astype(np.float32))


def test_noise() -> None:
    noise.check_moments(Laplace, fourth=6, eighth=2_520)
    noise.check_error_of_the_mean(Laplace)
    noise.check_key(Laplace)


def test_parameters() -> None:
    noise.check_parameters(Laplace)
    noise.check_extremes(Laplace)
