"""What is FedMPDD's own: the paper's algorithm, the bits of a scalar, the one-bit scale, partitioned rounds."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import MPDD, Key, partitioned_keys
from fedmpdd.codecs.mpdd import _expected_largest_square
from fedmpdd.directions import reference
from fedmpdd.errors import CodecError, KeyRangeError
from tests.conftest import gaussian


def test_float32_rademacher_is_algorithm_2() -> None:
    """Lines 7 to 20 of the paper, word for word in NumPy, over three clients."""
    d, m, seeds = 1_000, 12, [11, 22, 33]
    gradients = gaussian(3, d)
    total = np.zeros(d)
    for g, seed in zip(gradients.astype(np.float64), seeds, strict=True):
        for j in range(m):
            u = reference.signs(seed, j, d).astype(np.float64)
            total += (u @ g) / m * u
    codec = MPDD(m=m)
    assert np.allclose(codec.decode_mean(codec.encode(gradients, seeds)), total / 3, rtol=1e-4, atol=1e-5)


def test_one_direction_is_fedpdd() -> None:
    g = gaussian(1, 64)
    codec = MPDD(m=1)
    u = reference.signs(9, 0, 64)
    assert np.allclose(codec.decode_mean(codec.encode(g, [9])), (u @ g[0]) * u, rtol=1e-5)
    assert codec.variance(64) == 63  # Lemma 3: (d − 1)/m


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_rounding_is_unbiased_given_the_directions(bits: int, family: str) -> None:
    """Same seed, so same directions; another slot would change both, so the words are looked at directly.

    False alarm: largest of 40 z-scores above 5, less than 3e-5 with fresh seeds.
    """
    d, m, trials = 100, 40, 3_000
    g = gaussian(1, d)
    rounded, plain = MPDD(m=m, bits=bits, family=family), MPDD(m=m, family=family)
    fractions = []
    for seed in range(trials):
        update = rounded.encode(g, [seed])[0]
        exact = plain.encode(g, [seed])[0].arrays[0].astype(np.float64)
        scale = float(update.arrays[0][0])
        levels = np.asarray(rounded._unpack(update.arrays[1]), dtype=np.float64)
        error = levels - exact / scale
        assert np.abs(error).max() < 1  # never more than one level off
        assert np.abs(levels).max() >= rounded.levels - 1  # the largest scalar is on the last level, or a hair below
        fractions.append(error)
    errors = np.array(fractions)
    z = errors.mean(axis=0) / (errors.std(axis=0) / math.sqrt(trials))
    assert np.abs(z).max() < 5


def one_bit_expectation(g: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[sign(uᵀg) u] over all 2^d directions, exactly."""
    u = 1.0 - 2.0 * ((np.arange(2**g.size)[:, np.newaxis] >> np.arange(g.size)) & 1)
    signs = np.where(u @ g < 0, -1.0, 1.0)
    return np.asarray((signs[:, np.newaxis] * u).mean(axis=0))


@pytest.mark.parametrize("seed", range(6))
def test_one_bit_scale_and_its_residual_bias_by_enumeration(seed: int) -> None:
    """docs/codec.md: along g the bias left is below q²/10, and below the q/12 that √(π/2)·‖g‖ alone would leave."""
    g = gaussian(1, 14, seed=seed)
    exact = g[0].astype(np.float64)
    norm2 = exact @ exact
    q = (exact**4).sum() / norm2**2
    expectation = one_bit_expectation(exact)
    scale = float(MPDD(m=4, bits=1).encode(g, [1])[0].arrays[0][0])
    along = scale * (expectation @ exact) / norm2 - 1
    uncorrected = math.sqrt(math.pi / 2 * norm2) * (expectation @ exact) / norm2 - 1
    assert abs(along) < q * q / 10
    assert abs(along) < abs(uncorrected) / 3
    residual = np.linalg.norm(scale * expectation - exact) / math.sqrt(norm2)
    assert residual < 0.15  # d = 14 is tiny; it falls as 1/d


def test_one_bit_bias_of_the_worst_gradient_is_as_documented() -> None:
    """All weight on one coordinate: the scale is 15.7 % too large (25.3 % without the correction)."""
    g = np.zeros((1, 10), dtype=np.float32)
    g[0, 4] = 2.0
    estimate = MPDD(m=50, bits=1).decode_mean(MPDD(m=50, bits=1).encode(g, [3]))
    assert estimate[4] / 2.0 == pytest.approx(math.sqrt(math.pi / 2) / (13 / 12), rel=1e-6)


def test_one_bit_decode_counts_votes() -> None:
    d, m = 77, 9
    codec = MPDD(m=m, bits=1)
    update = codec.encode(gaussian(1, d), [6])[0]
    bits = np.unpackbits(update.arrays[1].astype(np.uint8), count=m, bitorder="little")
    votes = sum((1 - 2 * int(b)) * reference.signs(6, j, d) for j, b in enumerate(bits))
    factor = np.float32(float(update.arrays[0][0]) / m)
    assert codec.decode_mean([update]).tobytes() == (factor * np.asarray(votes, dtype=np.float32)).tobytes()


@pytest.mark.parametrize("bits", [32, 8, 1])
@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("same", [True, False])
def test_partitioned_variance(bits: int, n: int, same: bool) -> None:
    """Hadamard rows shared out in one round, all clients alike or unrelated; with n = 12 rows repeat.

    False alarm: z above 5, 6e-7 each with fresh seeds. 1.5 % on top, since the formulas take projections to be
    normally distributed and, for one bit, clients to be equally alike.
    """
    d, m, trials = 220, 40, 800  # order 224
    codec = MPDD(m=m, bits=bits, family="hadamard")
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
    assert abs(errors.mean() - expected) < 5 * errors.std() / math.sqrt(trials) + 0.015 * expected
    assert codec.variance(d, n, partitioned=True) == pytest.approx(codec.variance(d, n))


def test_all_rows_together_recover_what_clients_have_in_common() -> None:
    d, m, n = 224, 28, 8  # order 224: eight clients hold every row once
    g = np.tile(gaussian(1, d), (n, 1))
    codec = MPDD(m=m, family="hadamard")
    assert np.allclose(codec.decode_mean(codec.encode(g, partitioned_keys(1, n))), g[0], atol=1e-4)
    assert codec.variance(d, n, partitioned=True, alignment=1.0) == pytest.approx(0, abs=1e-12)


def test_largest_square_of_normals_is_the_known_one() -> None:
    assert _expected_largest_square(1) == pytest.approx(1, rel=1e-6)
    assert _expected_largest_square(2) == pytest.approx(1 + 2 / math.pi, rel=1e-6)
    simulated = (np.random.default_rng(0).standard_normal((40_000, 50)) ** 2).max(axis=1).mean()
    assert _expected_largest_square(50) == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize(("bits", "payload"), [(32, 200), (16, 104), (8, 54), (4, 29), (1, 11)])
def test_bytes_per_update(bits: int, payload: int) -> None:
    assert MPDD(m=50, bits=bits).bytes_per_update(10**6) == payload


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"m": 0}, "m = 0"),
        ({"m": -3}, "m = -3"),
        ({"m": 2**32}, "from 1 to"),
        ({"m": 2.5}, "expected an integer"),
        ({"m": True}, "expected an integer"),
        ({"m": 5, "bits": 2}, "expected one of 32, 16, 8, 4, 1"),
        ({"m": 5, "family": "gaussian"}, "expected one of rademacher, hadamard"),
    ],
)
def test_parameters_that_no_codec_has(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        MPDD(**parameters)


def test_m_above_d_is_for_rademacher_only() -> None:
    g = gaussian(1, 5)
    assert len(MPDD(m=6).encode(g, [1])) == 1
    with pytest.raises(CodecError, match="use rademacher"):
        MPDD(m=6, family="hadamard").encode(g, [1])


def test_slots_beyond_a_seed_are_refused() -> None:
    with pytest.raises(KeyRangeError, match="a seed has 2\\^32"):
        MPDD(m=2).encode(gaussian(1, 5), [Key(1, 2**31)])
