"""What is lp-proj's own: one matrix for all, its subspace, its memory."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import Limits, pack, unpack
from fedmpdd.codecs import LpProj
from fedmpdd.codecs.lp_proj import MATRIX_SEED
from fedmpdd.errors import CodecError, ContentError, LimitError
from tests.conftest import gaussian


def matrix(size: int, d: int) -> NDArray[np.float64]:
    """P as docs/codecs.md has it."""
    rows = []
    for r in range(size):
        stream = np.random.Generator(np.random.Philox(key=np.array([MATRIX_SEED, r], dtype=np.uint64)))
        row = stream.standard_normal(d, dtype=np.float32).astype(np.float64)
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


@pytest.mark.parametrize(("size", "d"), [(1, 1), (7, 90), (30, 90_000)])  # the last in chunks of 11 rows
def test_estimate_is_the_definition(size: int, d: int) -> None:
    gradients = gaussian(3, d)
    p = matrix(size, d)
    codec = LpProj(size)
    updates = codec.encode(gradients, [1, 2, 3])
    scalars = gradients.astype(np.float64) @ p.T
    assert np.allclose([update.arrays[0] for update in updates], scalars, rtol=1e-4, atol=1e-4)
    assert np.allclose(codec.decode_mean(updates), p.T @ scalars.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_entries_are_normal_and_rows_independent() -> None:
    """Moments and products of rows. False alarm: z above 5, 6e-7 each, were the seed drawn anew."""
    size, d = 40, 5_000
    p = matrix(size, d) * np.sqrt(d)
    assert abs((p**4).mean() - 3) / np.sqrt(96 / p.size) < 5
    products = (p @ p.T)[np.triu_indices(size, 1)] / np.sqrt(d)
    assert abs((products**2).mean() - 1) / np.sqrt(2 / products.size) < 5


def test_what_is_orthogonal_to_the_subspace_is_lost_for_good() -> None:
    p = matrix(20, 100)
    inside = np.linalg.qr(p.T)[0]
    g = gaussian(100).astype(np.float64)
    outside = (g - inside @ (inside.T @ g)).astype(np.float32)
    codec = LpProj(20)
    assert np.abs(codec.decode_mean(codec.encode(outside[np.newaxis], [1]))).max() < 1e-5
    assert not codec.unbiased
    assert codec.variance(100) is None


def test_the_matrix_is_never_held() -> None:
    """size·d floats would be 80 MB."""
    codec, g = LpProj(200), gaussian(2, 100_000)
    tracemalloc.start()
    codec.decode_mean(codec.encode(g, [1, 2]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_work_is_that_of_the_whole_matrix() -> None:
    """A frame of 4·size bytes must not buy more than the receiver allows."""
    codec = LpProj(50)
    assert codec.work(300) == 1_024 * 50 * 300  # a normal number takes as long as 1,024 additions
    frame = pack(codec.encode(gaussian(1, 300), [1])[0])
    with pytest.raises(LimitError, match=r"raise Limits\.max_work"):
        unpack(frame, Limits(max_work=codec.work(300) - 1))
    assert unpack(frame, Limits(max_work=codec.work(300))).codec == codec


def test_bytes() -> None:
    assert LpProj(400).bytes_per_update(10**6) == 4 * 400


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ContentError, match="NaN or infinite"):
        LpProj(2).check_content((np.array([1, np.nan], dtype=np.float32),), 5)


@pytest.mark.parametrize("size", [0, -1, 2**32, 1.5, True, None])
def test_sizes_that_no_codec_has(size: Any) -> None:
    with pytest.raises(CodecError, match="expected an integer"):
        LpProj(size)


def test_more_rows_than_coordinates_are_refused() -> None:
    with pytest.raises(CodecError, match="at most d dimensions"):
        LpProj(6).encode(gaussian(1, 5), [1])
