"""What is Top-k's own: which coordinates, in which order, and indices that cannot be believed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd.codecs import TopK
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_the_largest_of_smallest_index(values: list[int], data: st.DataObject) -> None:
    """Small integers, so that ties are everywhere."""
    k = data.draw(st.integers(1, len(values)))
    indices, sent = TopK(k).encode(np.array([values], dtype=np.float32), [1])[0].arrays
    expected = sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k])
    assert indices.tolist() == expected
    assert sent.tolist() == [values[i] for i in expected]


def test_decode_is_the_mean_of_what_was_sent() -> None:
    gradients = gaussian(3, 1_000)
    expected = np.zeros(1_000)
    for g in gradients.astype(np.float64):
        largest = np.argsort(-np.abs(g))[:50]
        expected[largest] += g[largest] / 3
    assert np.allclose(TopK(50).decode_mean(TopK(50).encode(gradients, [1, 2, 3])), expected, rtol=1e-6)


def test_all_coordinates_are_the_gradient() -> None:
    g = gaussian(1, 64)
    assert TopK(64).decode_mean(TopK(64).encode(g, [1])).tobytes() == g.tobytes()


def test_bytes_are_those_of_the_paper() -> None:
    assert TopK(400).bytes_per_update(10**6) == 8 * 400


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        ([0, 5, 5], [1, 1, 1], "not ascending"),
        ([5, 0, 7], [1, 1, 1], "not ascending"),
        ([0, 5, 10], [1, 1, 1], "below d = 10"),
        ([0, 5, 2**32 - 1], [1, 1, 1], "below d = 10"),
        ([0, 5, 9], [1, np.nan, 1], "NaN or infinite"),
    ],
)
def test_content_that_is_never_written_is_refused(indices: list[int], values: list[float], message: str) -> None:
    arrays = np.array(indices, dtype="<u4"), np.array(values, dtype=np.float32)
    with pytest.raises(ContentError, match=message):
        TopK(3).check_content(arrays, 10)
    TopK(3).check_content((np.array([0, 5, 9], dtype="<u4"), np.zeros(3, dtype=np.float32)), 10)


@pytest.mark.parametrize("k", [0, -1, 2**32, 1.5, True, None])
def test_sizes_that_no_codec_has(k: Any) -> None:
    with pytest.raises(CodecError, match="expected an integer"):
        TopK(k)


def test_sizes_that_do_not_fit_the_gradient() -> None:
    with pytest.raises(CodecError, match="must not exceed d"):
        TopK(6).encode(gaussian(1, 5), [1])
    with pytest.raises(CodecError, match="use randk"):
        TopK(6).check(2**32 + 1)
    TopK(6).check(2**32)
