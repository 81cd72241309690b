"""What is EDEN's own: the quantiser, the rotation, the scale, and the variance at every rate."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import Key
from fedmpdd.codecs import EDEN, Parameters
from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.eden import LLOYD_MAX, distortion
from fedmpdd.codecs.packing import unpack_indices
from fedmpdd.directions import hadamard_size, reference
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


def normal_cells(edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probability, and integral of z, of a standard normal z between neighbouring edges."""
    below = np.array([0.5 * math.erfc(-edge / math.sqrt(2)) for edge in edges])
    density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    return np.diff(below), -np.diff(density)


def lloyd_max(bits: int) -> NDArray[np.float64]:
    """Lloyd's iteration: thresholds half-way, levels at the mean of what falls on them, until nothing moves."""
    levels = np.linspace(-2.5, 2.5, 2**bits)
    while True:
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        probability, integral = normal_cells(edges)
        moved = integral / probability
        if np.abs(moved - levels).max() < 1e-13:
            return np.asarray(moved)
        levels = moved


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_levels_are_lloyd_max(bits: int) -> None:
    levels = lloyd_max(bits)
    assert np.allclose(LLOYD_MAX[bits], levels[levels > 0], rtol=0, atol=2e-10)
    probability, _ = normal_cells(np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]]))
    assert distortion(bits) == pytest.approx(1 - (probability * levels**2).sum(), rel=1e-8)


def test_errors_are_the_published_ones() -> None:
    """The vNMSE of EDEN at 1, 2 and 3 bits."""
    for bits, published in [(1, 0.571), (2, 0.133), (3, 0.036)]:
        assert EDEN(bits).variance(2**20) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize(("bits", "rows", "slot"), [(1, None, 0), (2, None, 3), (3, 10, 0), (4, 40, 2), (1, 24, 5)])
def test_estimate_is_the_definition(bits: int, rows: int | None, slot: int) -> None:
    """R = rotation, Q = nearest level at unit variance, ĝ = N/rows · ‖g‖²/⟨Rg, Q⟩ · Rᵀ Q on the rows that are sent."""
    d, n, seed = 33, 40, 99
    g = gaussian(1, d)
    exact = g[0].astype(np.float64)
    rotation = np.array([reference.hadamard_direction(seed, d, j) for j in range(n)], dtype=np.float64) / math.sqrt(n)
    rotated = rotation @ exact
    levels = lloyd_max(bits)
    q = levels[np.abs(rotated[:, np.newaxis] * math.sqrt(n / (exact @ exact)) - levels).argmin(axis=1)]
    sent = np.arange(n) if rows is None else (slot * rows + np.arange(rows)) % n
    estimate = n / len(sent) * (exact @ exact) / (rotated @ q) * rotation[sent].T @ q[sent]
    codec = EDEN(bits, rows)
    update = codec.encode(g, [Key(seed, slot)])[0]
    assert np.allclose(codec.decode_mean([update]), estimate, rtol=1e-4, atol=1e-5)
    (indices,) = unpack_indices(HOST, update.arrays[1][np.newaxis], bits, len(sent))
    assert np.allclose(levels[indices], q[sent])


def test_along_the_gradient_nothing_is_lost() -> None:
    g = gaussian(1, 700)
    exact = g[0].astype(np.float64)
    for bits in (1, 2, 3, 4):
        estimate = EDEN(bits).decode_mean(EDEN(bits).encode(g, [3])).astype(np.float64)
        assert estimate @ exact == pytest.approx(exact @ exact, rel=1e-5)


def test_one_coordinate_alone_is_exact() -> None:
    """The worst gradient for one-bit FedMPDD: here the scale makes up for it, since all |s_j| are equal."""
    g = np.zeros((1, 224), dtype=np.float32)
    g[0, 17] = -3
    assert np.allclose(EDEN(1).decode_mean(EDEN(1).encode(g, [3])), g[0], atol=1e-5)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize(("d", "rows"), [(2_048, None), (1_700, None), (2_048, 512), (1_700, 100), (1_700, 1_792)])
def test_variance_is_that_of_the_formula_within_two_percent(bits: int, d: int, rows: int | None) -> None:
    """d = 1,700 is padded to 1,792. False alarm: an error of 2 % is above 5 standard errors, 6e-7 with fresh seeds."""
    trials = 600 if rows is None or rows > d else 1_400
    codec, g = EDEN(bits, rows), gaussian(1, d)
    exact = g[0].astype(np.float64)
    updates = (codec.encode(g, [seed]) for seed in range(trials))
    errors = np.array([((codec.decode_mean(update) - exact) ** 2).sum() / (exact @ exact) for update in updates])
    expected = codec.variance(d)
    assert expected is not None
    assert errors.std() / math.sqrt(trials) < 0.004 * expected
    assert errors.mean() == pytest.approx(expected, rel=0.02)


def test_variance_of_special_cases() -> None:
    assert EDEN(1).variance(1) == 0
    assert EDEN(1).decode_mean(EDEN(1).encode(np.array([[-2.5]], dtype=np.float32), [1])) == pytest.approx(-2.5)
    assert EDEN(1).variance(300, 4, partitioned=True) is None
    assert EDEN(1).variance(300, 1, partitioned=True) == EDEN(1).variance(300)
    assert EDEN(2, rows=320).variance(300) == EDEN(2).variance(300)


@pytest.mark.parametrize(("bits", "rows", "payload"), [(1, None, 4 + 128), (3, None, 4 + 384), (3, 11, 4 + 5)])
def test_bytes(bits: int, rows: int | None, payload: int) -> None:
    assert hadamard_size(1_000) == 1_024
    assert EDEN(bits, rows).bytes_per_update(1_000) == payload


def test_content_that_is_never_written_is_refused() -> None:
    codec, scale = EDEN(3, rows=3), np.ones(1, dtype=np.float32)
    codec.check_content((scale, np.array([0xFF, 1], dtype=np.uint8)), 100)
    for bad in (np.nan, np.inf, -1.0, -0.0):
        with pytest.raises(ContentError, match="the scale is"):
            codec.check_content((np.array([bad], dtype=np.float32), np.zeros(2, dtype=np.uint8)), 100)
    with pytest.raises(ContentError, match="a scalar is not"):
        codec.check_content((scale * 0, np.array([1, 0], dtype=np.uint8)), 100)
    with pytest.raises(ContentError, match="the 7 bits after the last"):
        codec.check_content((scale, np.array([0, 2], dtype=np.uint8)), 100)


@pytest.mark.parametrize("bits", [0, 5, True, 1.0, None])
def test_bits_that_no_codec_has(bits: Any) -> None:
    with pytest.raises(CodecError, match="expected one of 1, 2, 3, 4"):
        EDEN(bits)


def test_rows_that_no_codec_has() -> None:
    rows: Any
    for rows in (0, -1, 2**32, 1.5, True):
        with pytest.raises(CodecError, match="expected an integer"):
            EDEN(1, rows)
    with pytest.raises(CodecError, match="leave rows out"):
        EDEN(1, 321).encode(gaussian(1, 300), [1])
    EDEN(1, 320).check(300)
    with pytest.raises(CodecError, match="is no eden codec"):
        EDEN.from_parameters(Parameters(1, 0, 5))  # all rows have no number
    with pytest.raises(CodecError, match="is no eden codec"):
        EDEN.from_parameters(Parameters(1, 2, 5))


def test_slots_far_out_are_used_as_they_come() -> None:
    g = gaussian(1, 300)
    for codec in (EDEN(1), EDEN(1, rows=64)):
        update = codec.encode(g, [Key(1, 2**32 - 1)])
        assert float(codec.decode_mean(update).astype(np.float64) @ g[0]) > 0
