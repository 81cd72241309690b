"""What is QSGD's own: its definition, its bound, and levels that never leave their range."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmpdd import Key, partitioned_keys
from fedmpdd.codecs import QSGD
from fedmpdd.codecs.backends import HOST
from fedmpdd.directions import rounding_words
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


def levels_of(codec: QSGD, g: NDArray[np.float32], key: Key) -> tuple[float, NDArray[Any]]:
    norm, packed = codec.encode(g[np.newaxis], [key])[0].arrays
    return float(norm[0]), codec._unpack(HOST, packed, slice(0, g.size))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("d", [1, 7, 500, 40_001])
def test_levels_are_those_of_the_definition(bits: int, d: int) -> None:
    """ℓ = ⌊s|v|/‖v‖⌋, one more with probability s|v|/‖v‖ − ℓ; the word that decides is the mirrored one below zero."""
    codec, g, key = QSGD(bits), gaussian(d), Key(77, 3)
    norm, levels = levels_of(codec, g, key)
    scaled = codec.levels * np.abs(g.astype(np.float64)) / norm
    uniform = (rounding_words([key], d)[0] + 0.5) / 2**32
    up = scaled - np.floor(scaled) >= np.where(g < 0, uniform, 1 - uniform)
    assert np.array_equal(levels, np.sign(g) * (np.floor(scaled) + up))
    assert norm == np.float32(np.linalg.norm(g.astype(np.float64)))
    estimate = codec.decode_mean(codec.encode(g[np.newaxis], [key]))
    assert np.allclose(estimate, norm / codec.levels * levels, rtol=1e-6)


@pytest.mark.parametrize("bits", [8, 4])
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-45, 1e-40, 1e-38, 1e-3, 1.0, 1e30, 1e38]))
def test_no_level_is_out_of_range_whatever_the_norm_rounds_to(bits: int, seed: int, scale: float) -> None:
    """One coordinate holds nearly all of the norm, where a norm rounded down would need one level more."""
    rng = np.random.default_rng(seed)
    g = (rng.standard_normal(9) * scale * np.array([1, *[1e-4] * 8])).astype(np.float32)
    codec = QSGD(bits)
    norm, levels = levels_of(codec, g, Key(seed))
    assert np.abs(levels).max() <= codec.levels
    assert norm >= np.abs(g).max()
    codec.check_content(codec.encode(g[np.newaxis], [seed])[0].arrays, 9)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("d", [50, 20_000])
def test_error_is_within_the_bound_and_that_of_its_fractions(bits: int, d: int) -> None:
    """E = (‖v‖/s)² Σ f(1 − f), f the fraction of a level. False alarm: z above 5, 6e-7 each with fresh seeds."""
    codec, g, trials = QSGD(bits), gaussian(1, d), 200
    exact = g[0].astype(np.float64)
    norm = np.linalg.norm(exact)
    fraction = codec.levels * np.abs(exact) / norm % 1
    expected = (fraction * (1 - fraction)).sum() / codec.levels**2
    updates = codec.encode(np.repeat(g, trials, axis=0), range(trials))
    errors = np.array([((codec.decode_mean([update]) - exact) ** 2).sum() / norm**2 for update in updates])
    assert abs(errors.mean() - expected) < 5 * errors.std() / math.sqrt(trials) + 1e-5 * expected
    assert expected <= codec.variance(d)
    assert codec.variance(d, 10) == codec.variance(d) / 10
    assert codec.variance(d) == pytest.approx(min(d / codec.levels**2, math.sqrt(d) / codec.levels))


def test_slots_of_one_seed_round_differently() -> None:
    g = np.tile(gaussian(1, 300), (2, 1))
    first, second = QSGD(4).encode(g, partitioned_keys(5, 2))
    assert first != second


@pytest.mark.parametrize(("bits", "d", "payload"), [(8, 1_000, 1_004), (4, 1_000, 504), (4, 1_001, 505)])
def test_bytes_are_those_of_the_paper(bits: int, d: int, payload: int) -> None:
    assert QSGD(bits).bytes_per_update(d) == payload


def test_content_that_is_never_written_is_refused() -> None:
    norm = np.array([2.0], dtype=np.float32)
    for bad_norm in (np.nan, np.inf, -1.0, -0.0):
        with pytest.raises(ContentError, match="the scale is"):
            QSGD(8).check_content((np.array([bad_norm], dtype=np.float32), np.zeros(3, dtype=np.int8)), 3)
    with pytest.raises(ContentError, match="a scalar is not"):
        QSGD(8).check_content((norm * 0, np.array([0, 1, 0], dtype=np.int8)), 3)
    with pytest.raises(ContentError, match="level is -128"):
        QSGD(8).check_content((norm, np.array([0, -128, 0], dtype=np.int8)), 3)
    with pytest.raises(ContentError, match="level is -8"):
        QSGD(4).check_content((norm, np.array([0x80, 0], dtype=np.uint8)), 3)
    with pytest.raises(ContentError, match="bits after the last"):
        QSGD(4).check_content((norm, np.array([0, 0x10], dtype=np.uint8)), 3)


@pytest.mark.parametrize("bits", [0, 2, 16, True, 8.0, "8"])
def test_bits_that_no_codec_has(bits: Any) -> None:
    with pytest.raises(CodecError, match="expected one of 8, 4"):
        QSGD(bits)
