"""What is FedSGD's own: nothing is lost."""

import numpy as np
import pytest

from fedmpdd.codecs import FedSGD, Parameters
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


def test_one_update_is_the_gradient_bit_for_bit() -> None:
    g = gaussian(1, 70_001)  # more than one chunk
    assert FedSGD().decode_mean(FedSGD().encode(g, [1])).tobytes() == g.tobytes()


def test_decode_is_the_mean_in_float64() -> None:
    gradients = gaussian(5, 40_000)
    expected = gradients.astype(np.float64).mean(axis=0)
    assert np.allclose(FedSGD().decode_mean(FedSGD().encode(gradients, range(5))), expected, rtol=1e-6, atol=1e-12)
    assert FedSGD().variance(40_000, 5) == 0


def test_bytes_are_those_of_the_paper() -> None:
    assert FedSGD().bytes_per_update(319_242) == 4 * 319_242


def test_values_that_are_not_finite_are_refused() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ContentError, match="NaN or infinite"):
            FedSGD().check_content((np.array([1, bad, 2], dtype=np.float32),), 3)


def test_there_is_one_fedsgd() -> None:
    assert FedSGD.from_parameters(Parameters()) == FedSGD()
    for other in (Parameters(first=1), Parameters(second=1), Parameters(size=2)):
        with pytest.raises(CodecError, match="is no fedsgd codec"):
            FedSGD.from_parameters(other)
    with pytest.raises(CodecError, match="out of range"):
        FedSGD().check(2**40 + 1)
