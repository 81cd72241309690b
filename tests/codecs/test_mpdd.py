"""What is FedMPDD's own: the paper's algorithm, the bits of a scalar, the one-bit scale, partitioned rounds."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import MPDD, Key, partitioned_keys
from fedmpdd.codecs.arithmetic import largest_normal
from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.scalar_codes import LevelCode
from fedmpdd.directions import hadamard_size, reference
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
def test_rounding_is_unbiased_given_the_scalars(bits: int) -> None:
    """The same scalars, rounded with the words of many keys.

    False alarm: largest of 40 z-scores above 5, less than 3e-5 with fresh seeds.
    """
    m, trials = 40, 4_000
    code = LevelCode(bits)
    scalars = gaussian(1, m)
    rounded = []
    for seed in range(trials):
        columns = code.write(HOST, scalars, None, [Key(seed)])
        numbers, scales, _ = code.read(HOST, columns, m)
        rounded.append(np.asarray(numbers, dtype=np.float64)[0])
    exact = scalars[0] / float(scales[0])
    errors = np.array(rounded) - exact
    assert np.abs(errors).max() < 1  # never more than one level off
    assert np.abs(rounded).max() in (
        code.levels,
        code.levels - 1,
    )  # the largest scalar is on the last, or a hair below
    spread = errors.std(axis=0)
    moving = spread > 0  # the largest scalar never moves
    assert moving.sum() >= m - 1
    assert np.abs(errors.mean(axis=0)[moving] / (spread[moving] / math.sqrt(trials))).max() < 5


def test_slots_round_with_words_of_their_own() -> None:
    """Clients of a partitioned round share a seed; their rounding errors must not be the same."""
    first, second = (LevelCode(4).write(HOST, gaussian(1, 50), None, [Key(7, slot)])[1] for slot in (0, 1))
    assert first.tolist() != second.tolist()


def test_one_scalar_is_never_rounded() -> None:
    """It sits on the last level, so four bits cost m = 1 nothing, and the formula knows."""
    assert MPDD(1, bits=4).variance(100) == MPDD(1).variance(100)
    assert MPDD(2, bits=4).variance(100) > MPDD(2).variance(100)


def test_a_projection_beyond_float32_is_noticed_at_the_edge() -> None:
    with pytest.raises(CodecError, match="too large"):
        MPDD(m=8).encode(np.full((1, 2), 2e38, dtype=np.float32), [1])


@pytest.mark.parametrize(
    ("d", "n", "options"), [(0, 1, {}), (5, 0, {}), (5, 2, {"alignment": 5.0}), (5, 2, {"alignment": -0.1})]
)
def test_variance_of_nonsense_is_refused(d: int, n: int, options: dict[str, float]) -> None:
    with pytest.raises(CodecError, match=r"."):
        MPDD(3).variance(d, n, partitioned=True, **options)
    with pytest.raises(CodecError, match="must not exceed"):
        MPDD(400, family="hadamard").variance(10)


def one_bit_expectation(g: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[sign(uᵀg) u] over all 2^d directions, exactly."""
    u = 1.0 - 2.0 * ((np.arange(2**g.size)[:, np.newaxis] >> np.arange(g.size)) & 1)
    signs = np.where(u @ g < 0, -1.0, 1.0)
    return np.asarray((signs[:, np.newaxis] * u).mean(axis=0))


@pytest.mark.parametrize("seed", range(40))
def test_one_bit_scale_and_its_residual_bias_by_enumeration(seed: int) -> None:
    """docs/codec.md: along g the bias left is of order q², and a fraction of what √(π/2)·‖g‖ alone would leave."""
    g = gaussian(1, 14, seed=seed)
    exact = g[0].astype(np.float64)
    norm2 = exact @ exact
    q = (exact**4).sum() / norm2**2
    expectation = one_bit_expectation(exact)
    scale = float(MPDD(m=4, bits=1).encode(g, [1])[0].arrays[0][0])
    along = scale * (expectation @ exact) / norm2 - 1
    uncorrected = math.sqrt(math.pi / 2 * norm2) * (expectation @ exact) / norm2 - 1
    assert abs(along) < q * q / 5
    assert abs(along) < abs(uncorrected) / 2
    residual = np.linalg.norm(scale * expectation - exact) / math.sqrt(norm2)
    assert residual < 0.25  # d = 14 is tiny; it falls as 1/d


def test_one_bit_bias_of_the_worst_gradient_is_as_documented() -> None:
    """All weight on one coordinate: the scale is 15.7 % too large (25.3 % without the correction)."""
    g = np.zeros((1, 10), dtype=np.float32)
    g[0, 4] = 2.0
    estimate = MPDD(m=50, bits=1).decode_mean(MPDD(m=50, bits=1).encode(g, [3]))
    assert estimate[4] / 2.0 == pytest.approx(math.sqrt(math.pi / 2) / (13 / 12), rel=1e-6)


def test_one_bit_is_biased_for_a_gradient_of_two_coordinates() -> None:
    """docs/codec.md says so: the larger of two decides every sign, so all the weight goes to it."""
    g = np.zeros(10)
    g[:2] = 1.0, 0.99
    scale = float(MPDD(m=4, bits=1).encode(g[np.newaxis].astype(np.float32), [1])[0].arrays[0][0])
    bias = np.linalg.norm(scale * one_bit_expectation(g) - g) / np.linalg.norm(g)
    assert bias == pytest.approx(0.86, abs=0.01)


def test_one_bit_decode_counts_votes() -> None:
    d, m = 77, 9
    codec = MPDD(m=m, bits=1)
    update = codec.encode(gaussian(1, d), [6])[0]
    bits = np.unpackbits(update.arrays[1].astype(np.uint8), count=m, bitorder="little")
    votes = sum((1 - 2 * int(b)) * reference.signs(6, j, d) for j, b in enumerate(bits))
    factor = np.float32(float(update.arrays[0][0]) / m)
    assert codec.decode_mean([update]).tobytes() == (factor * np.asarray(votes, dtype=np.float32)).tobytes()


def pairwise_error(codec: MPDD, gradients: NDArray[np.float64]) -> float:
    """The error of a partitioned hadamard round, client by client and pair by pair (docs/codec.md before averaging)."""
    n, d = gradients.shape
    size = hadamard_size(d)
    overlap = (size - d) / (size - 1)
    slots = [np.arange(i * codec.m, (i + 1) * codec.m) % size for i in range(n)]
    norms = np.linalg.norm(gradients, axis=1)
    total = codec.variance(d) * (norms**2).sum()
    for i in range(n):
        for k in range(n):
            if i != k:
                product = gradients[i] @ gradients[k]
                cosine = np.clip(product / (norms[i] * norms[k]), -1, 1)
                same_row = d * (math.asin(cosine) / cosine if codec.bits == 1 else 1.0)
                shared = np.intersect1d(slots[i], slots[k]).size / codec.m**2
                total += product * ((1 - shared) * overlap + shared * same_row - 1)
    return float(total / n / (norms**2).sum())


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
    expected = pairwise_error(codec, gradients.astype(np.float64))
    assert abs(errors.mean() - expected) < 5 * errors.std() / math.sqrt(trials) + 0.015 * expected
    # The formula knows only how much gradients agree on average, not which clients share rows.
    formula = codec.variance(d, n, partitioned=True, alignment=float(mean @ mean / norm))
    assert formula == pytest.approx(expected, rel=1e-9 if same or n * m <= 224 else 0.06)
    assert codec.variance(d, n, partitioned=True) == pytest.approx(codec.variance(d, n))


def test_all_rows_together_recover_what_clients_have_in_common() -> None:
    d, m, n = 224, 28, 8  # order 224: eight clients hold every row once
    g = np.tile(gaussian(1, d), (n, 1))
    codec = MPDD(m=m, family="hadamard")
    assert np.allclose(codec.decode_mean(codec.encode(g, partitioned_keys(1, n))), g[0], atol=1e-4)
    assert codec.variance(d, n, partitioned=True, alignment=1.0) == pytest.approx(0, abs=1e-12)


def test_largest_square_of_normals_is_the_known_one() -> None:
    assert largest_normal(1)[1] == pytest.approx(1, rel=1e-6)
    assert largest_normal(2)[1] == pytest.approx(1 + 2 / math.pi, rel=1e-6)
    simulated = (np.random.default_rng(0).standard_normal((40_000, 50)) ** 2).max(axis=1).mean()
    assert largest_normal(50)[1] == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize(("bits", "payload"), [(32, 200), (16, 104), (8, 54), (4, 29), (1, 11)])
def test_bytes_per_update(bits: int, payload: int) -> None:
    assert MPDD(m=50, bits=bits).bytes_per_update(10**6) == payload


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"m": 0}, "m = 0"),
        ({"m": -3}, "m = -3"),
        ({"m": 2**31}, "from 1 to"),
        ({"m": 5, "bits": 8.0}, "expected one of"),
        ({"m": 2.5}, "expected an int"),
        ({"m": True}, "expected an int"),
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
