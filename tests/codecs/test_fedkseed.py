"""What is FedKSeed's own: directions from a pool, which of them by the key alone, and what the pool leaves out."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import Key, derive_seed, encode_pieces
from fedmpdd.codecs import CODECS, MPDD, FedKSeed
from fedmpdd.codecs.base import Parameters
from fedmpdd.codecs.evidence import Coordinates
from fedmpdd.codecs.fedkseed import POOL_SEED, choices
from fedmpdd.directions import reference, rounding_words
from fedmpdd.errors import CodecError
from tests.conftest import gaussian


def pool_of(size: int, d: int) -> NDArray[np.float64]:
    return np.stack([reference.signs(POOL_SEED, k, d) for k in range(size)]).astype(np.float64)


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 1])
def test_estimate_is_the_definition(bits: int) -> None:
    d, m, key = 60, 7, Key(9, 3)
    g = gaussian(1, d)
    codec = FedKSeed(m, pool=16, bits=bits)
    directions = pool_of(16, d)[choices(key, m, 16)]
    (update,) = codec.encode(g, [key])
    scalars = codec.scalars_of(update)
    if bits == 32:
        assert np.allclose(scalars, directions @ g[0].astype(np.float64), rtol=1e-5, atol=1e-5)
    assert (np.sign(scalars) * (directions @ g[0]) >= 0).all()
    assert np.allclose(codec.decode_mean([update]), scalars @ directions / m, rtol=1e-5, atol=1e-5)


def test_the_model_stays_in_the_span_of_the_pool() -> None:
    """Whatever clients send in whatever round, it is a sum along `pool` directions."""
    d = 40
    codec = FedKSeed(5, pool=8)
    estimates = np.stack([codec.decode_mean(codec.encode(gaussian(3, d, seed=k), [3 * k, 7, 8])) for k in range(30)])
    assert np.linalg.matrix_rank(estimates, tol=1e-3) == np.linalg.matrix_rank(pool_of(8, d)) == 8


def test_choices_follow_from_seed_and_slot_and_not_from_what_rounds() -> None:
    one, other = choices(Key(1), 200, 256), choices(Key(1, 1), 200, 256)
    assert one == choices(Key(1), 200, 256)
    assert one != other
    assert choices(Key(1), 200, 256)[:50] == choices(Key(1), 50, 256)
    words = rounding_words([Key(derive_seed(1, 0, 1))], 200)[0]
    assert one == [int(word) % 256 for word in words]
    assert one != [int(word) % 256 for word in rounding_words([Key(1)], 200)[0]]
    counts = np.bincount(choices(Key(2), 25_600, 256), minlength=256)
    assert ((counts - 100) ** 2 / 100).sum() < 255 + 5 * np.sqrt(2 * 255)  # chi squared, five deviations


@pytest.mark.parametrize("n", [1, 4])
def test_variance_has_the_part_that_no_choice_brings_back(n: int) -> None:
    """Over gradients and keys, with one pool that is far smaller than d; five standard errors."""
    d, codec, errors = 100, FedKSeed(10, pool=32), []
    for trial in range(3_000):
        g = gaussian(n, d, seed=trial)
        updates = codec.encode(g, [100 * trial + i for i in range(n)])
        mean = g.astype(np.float64).mean(axis=0)
        errors.append(((codec.decode_mean(updates) - mean) ** 2).sum() / (g.astype(np.float64) ** 2).sum() * n)
    expected = codec.variance(d, n)
    assert expected > MPDD(10).variance(d, n)
    assert abs(np.mean(errors) - expected) < 5 * np.std(errors) / np.sqrt(3_000) + 0.01 * expected
    assert codec.variance(d, n, alignment=1.0) == pytest.approx(expected + 99 / 32 * (1 - 1 / n))


def test_bytes_are_those_of_the_scalars() -> None:
    assert [FedKSeed(16, bits=bits).bytes_per_update(10**6) for bits in (32, 16, 8, 4, 1)] == [64, 36, 20, 12, 6]


def test_mean_of_few_bits_goes_along_the_same_directions() -> None:
    codec = FedKSeed(6, pool=64)
    updates = codec.encode(gaussian(3, 50), [Key(4)] * 3)
    mean = codec.mean_update(updates, 16)
    assert mean.codec == FedKSeed(6, pool=64, bits=16)
    assert np.allclose(mean.codec.decode_mean([mean]), codec.decode_mean(updates), atol=1e-2)


def test_an_attacker_sees_what_the_server_decodes() -> None:
    codec = FedKSeed(4)
    updates = codec.encode(gaussian(2, 50), [1, 2])
    seen = codec.evidence(updates)
    assert isinstance(seen, Coordinates)
    assert seen.targets[1].tobytes() == codec.decode_mean(updates[1:]).tobytes()


def test_a_gradient_in_pieces_is_refused() -> None:
    with pytest.raises(CodecError, match="all over a pool"):
        encode_pieces(FedKSeed(4), [gaussian(1, 8)], 1, d=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pool", 0),
        ("pool", 1),
        ("pool", 100),
        ("pool", 2**25),
        ("pool", True),
        ("bits", 2),
        ("m", 0),
        ("log2_step", 21),
    ],
)
def test_parameters_that_no_codec_has(field: str, value: Any) -> None:
    with pytest.raises(CodecError, match=field):
        FedKSeed(**{field: value})


@pytest.mark.parametrize("parameters", [(0, 10, 5), (25, 10, 5), (200, 10, 5), (12, 21, 5), (12, 5 * 32, 5)])
def test_headers_of_no_codec_are_refused(parameters: tuple[int, int, int]) -> None:
    with pytest.raises(CodecError):
        CODECS["fedkseed"].from_parameters(Parameters(*parameters))
