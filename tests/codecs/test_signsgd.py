"""What is signSGD's own: bits, the scale, and what zero becomes."""

from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import SignSGD
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


@pytest.mark.parametrize("d", [1, 8, 13, 70_001])
@pytest.mark.parametrize("scaled", [True, False])
def test_estimate_is_the_definition(d: int, scaled: bool) -> None:
    gradients = gaussian(3, d)
    codec = SignSGD(scaled)
    scales = np.abs(gradients.astype(np.float64)).mean(axis=1, keepdims=True) if scaled else 1.0
    expected = (scales * np.where(gradients < 0, -1, 1)).mean(axis=0)
    assert np.allclose(codec.decode_mean(codec.encode(gradients, [1, 2, 3])), expected, rtol=1e-6, atol=1e-7)


def test_bits_byte_by_byte() -> None:
    g = np.array([[-1, 2, -0.0, 0, -5, 1, 1, 1, -3]], dtype=np.float32)
    scale, signs = SignSGD().encode(g, [1])[0].arrays
    assert signs.tolist() == [0b00010001, 1]  # −0 is not negative
    assert scale[0] == np.float32(14 / 9)
    (plain,) = SignSGD(scaled=False).encode(g, [1])[0].arrays
    assert plain.tolist() == signs.tolist()


def test_a_scale_too_small_for_float32_sends_nothing() -> None:
    g = np.zeros((1, 10), dtype=np.float32)
    g[0, 3] = -1e-45
    scale, signs = SignSGD().encode(g, [1])[0].arrays
    assert not scale.any()
    assert not signs.any()


def test_the_scale_is_the_one_of_least_error() -> None:
    """‖g‖₁/d minimises ‖g − scale·sign(g)‖², which leaves 1 − ‖g‖₁²/(d‖g‖²) of it: error feedback needs it below 1."""
    g = gaussian(1, 500)
    exact = g[0].astype(np.float64)
    error = ((SignSGD().decode_mean(SignSGD().encode(g, [1])) - exact) ** 2).sum() / (exact @ exact)
    assert error == pytest.approx(1 - np.abs(exact).sum() ** 2 / (500 * (exact @ exact)), rel=1e-5)


def test_bytes() -> None:
    assert SignSGD().bytes_per_update(1_001) == 4 + 126
    assert SignSGD(scaled=False).bytes_per_update(1_001) == 126


def test_content_that_is_never_written_is_refused() -> None:
    signs = np.array([1, 0], dtype=np.uint8)
    for bad in (np.nan, np.inf, -1.0, -0.0):
        with pytest.raises(ContentError, match="the scale is"):
            SignSGD().check_content((np.array([bad], dtype=np.float32), signs), 9)
    with pytest.raises(ContentError, match="a scalar is not"):
        SignSGD().check_content((np.zeros(1, dtype=np.float32), signs), 9)
    for codec, arrays in [(SignSGD(), (np.ones(1, dtype=np.float32),)), (SignSGD(scaled=False), ())]:
        codec.check_content((*arrays, signs), 9)
        with pytest.raises(ContentError, match="bits after the last"):
            codec.check_content((*arrays, np.array([1, 2], dtype=np.uint8)), 9)


@pytest.mark.parametrize("scaled", [1, 0, None, "yes"])
def test_scaled_is_a_bool(scaled: Any) -> None:
    with pytest.raises(CodecError, match="neither True nor False"):
        SignSGD(scaled)
