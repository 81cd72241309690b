"""What is RandK's own: which coordinates a key chooses, the exact variance, partitioned rounds."""

import math
from typing import Any

import numpy as np
import pytest

from fedmpdd import Key, partitioned_keys
from fedmpdd.codecs import RandK
from fedmpdd.directions import distinct_coordinates, reference
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


def test_estimate_is_the_definition() -> None:
    """d/k times the gradient on the key's coordinates, the mean over clients."""
    d, k, keys = 300, 20, [Key(5), Key(6), Key(6, 2)]
    gradients = gaussian(3, d)
    expected = np.zeros(d)
    for g, key in zip(gradients.astype(np.float64), keys, strict=True):
        for c in reference.coordinates(key.seed, d, key.slot, k):
            expected[c] += d / k * g[c] / 3
    assert np.allclose(RandK(k).decode_mean(RandK(k).encode(gradients, keys)), expected, rtol=1e-5)


def test_all_coordinates_are_the_gradient() -> None:
    g = gaussian(1, 77)
    assert RandK(77).decode_mean(RandK(77).encode(g, [Key(4, 9)])).tobytes() == g.tobytes()


@pytest.mark.parametrize(("d", "k"), [(33, 5), (1_000, 300)])
def test_variance_is_exact(d: int, k: int) -> None:
    """False alarm: z above 5, 6e-7 each with fresh seeds. No slack: the formula is exact."""
    g, trials = gaussian(1, d), 4_000
    codec = RandK(k)
    chosen = distinct_coordinates([Key(seed) for seed in range(trials)], d, k)
    exact = g[0].astype(np.float64)
    kept = (exact[chosen] ** 2).sum(axis=1)
    errors = (d / k - 1) ** 2 * kept / (exact @ exact) + 1 - kept / (exact @ exact)
    estimate = codec.decode_mean(codec.encode(g, [0])).astype(np.float64)
    assert ((estimate - exact) ** 2).sum() / (exact @ exact) == pytest.approx(errors[0], rel=1e-5)
    assert abs(errors.mean() - (d / k - 1)) < 5 * errors.std() / math.sqrt(trials)
    assert codec.variance(d) == d / k - 1
    assert codec.variance(d, 10) == (d / k - 1) / 10


@pytest.mark.parametrize("n", [4, 9])  # 9·30 > 200: coordinates repeat
@pytest.mark.parametrize("same", [True, False])
def test_partitioned_variance(n: int, same: bool) -> None:
    """False alarm: z above 5, 6e-7 each with fresh seeds."""
    d, k, trials = 200, 30, 1_000
    codec = RandK(k)
    gradients = np.tile(gaussian(1, d), (n, 1)) if same else gaussian(n, d)
    mean = gradients.mean(axis=0, dtype=np.float64)
    norm = (gradients.astype(np.float64) ** 2).sum(axis=1).mean()
    errors = np.array(
        [
            ((codec.decode_mean(codec.encode(gradients, partitioned_keys(t, n))) - mean) ** 2).sum() / norm
            for t in range(trials)
        ]
    )
    expected = codec.variance(d, n, partitioned=True, alignment=float(mean @ mean / norm))
    assert abs(errors.mean() - expected) < 5 * errors.std() / math.sqrt(trials)
    assert codec.variance(d, n, partitioned=True) == codec.variance(d, n)


def test_a_partitioned_round_that_has_every_coordinate_once_is_exact_for_equal_gradients() -> None:
    g = np.tile(gaussian(1, 120), (4, 1))
    codec = RandK(30)
    assert np.allclose(codec.decode_mean(codec.encode(g, partitioned_keys(1, 4))), g[0], rtol=1e-6)
    assert codec.variance(120, 4, partitioned=True, alignment=1.0) == pytest.approx(0, abs=1e-12)


def test_bytes_are_those_of_the_paper() -> None:
    assert RandK(400).bytes_per_update(10**6) == 4 * 400


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ContentError, match="NaN or infinite"):
        RandK(2).check_content((np.array([1, np.inf], dtype=np.float32),), 5)


@pytest.mark.parametrize("k", [0, -1, 2**32, 1.5, True, None])
def test_sizes_that_no_codec_has(k: Any) -> None:
    with pytest.raises(CodecError, match="expected an integer"):
        RandK(k)


def test_k_above_d_is_refused() -> None:
    with pytest.raises(CodecError, match="must not exceed d"):
        RandK(6).encode(gaussian(1, 5), [1])
