"""What is Gaussian's own, and that it is a codec with noise as noise.py has it."""

import numpy as np

from fedmpdd import Key
from fedmpdd.codecs import Gaussian
from tests.codecs import noise
from tests.conftest import gaussian


def test_update_is_gradient_plus_normal_noise_of_the_key() -> None:
    g = gaussian(1, 1_000)
    drawn = np.random.Generator(np.random.Philox(key=np.array([5, 2], dtype=np.uint64))).normal(0, 2, 1_000)
    assert np.array_equal(Gaussian(4.0).encode(g, [Key(5, 2)])[0].arrays[0], (g[0] + drawn).astype(np.float32))


def test_noise() -> None:
    noise.check_moments(Gaussian, fourth=3, eighth=105)
    noise.check_error_of_the_mean(Gaussian)
    noise.check_key(Gaussian)


def test_parameters() -> None:
    noise.check_parameters(Gaussian)
    noise.check_extremes(Gaussian)
