"""The numbers of secure sums: elements of a ring, scalars as such elements, and shares of secrets."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.errors import InputError
from fedmpdd.secure_sum import FixedPoint, Ring, shamir
from tests.secure_sum.rounds import some_vectors, sum_of


@given(st.integers(16, 64), st.integers(1, 50), st.integers(0, 2**32))
def test_elements_go_through_bytes(bits: int, length: int, seed: int) -> None:
    ring = Ring(bits)
    words = ring.words_of(some_vectors(1, length, bits, seed)[0], length)
    packed = ring.pack(words)
    assert len(packed) == ring.nbytes(length) == math.ceil(length * bits / 8)
    assert (ring.unpack(memoryview(packed), length) == words).all()


def test_vectors_that_are_not_of_the_ring_are_refused() -> None:
    for values in (np.zeros(4, np.uint64), np.zeros(5), [0] * 5):
        with pytest.raises(InputError, match=r"uint64 \[5\]"):
            Ring(20).words_of(values, 5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2\\^20 − 1"):
        Ring(20).words_of(np.full(5, 2**20, np.uint64), 5)


@given(st.integers(16, 64), st.integers(1, 1_000), st.sampled_from([1e-30, 0.3, 1.0, 1e30]), st.booleans())
def test_no_sum_wraps_even_if_everybody_sends_the_largest(bits: int, clients: int, clip: float, negative: bool) -> None:
    """Clipped ones included; exact in integers, and in float64 up to its last digit."""
    numbers = FixedPoint(clip, bits)
    sign = -1 if negative else 1
    element = int(numbers.encode(np.array([sign * 2 * clip]), clients)[0])
    total = np.array([element * clients % 2**bits], np.uint64)
    assert clients * numbers.levels(clients) <= 2 ** (bits - 1) - 1
    assert numbers.decode(total, clients)[0] == pytest.approx(sign * clients * clip, rel=1e-15)


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(16, 64), st.integers(0, 2**32))
def test_a_decoded_sum_is_off_by_half_a_step_a_client_at_most(clients: int, bits: int, seed: int) -> None:
    scalars = np.random.default_rng(seed).uniform(-1, 1, (clients, 30))
    numbers = FixedPoint(1.0, bits)
    elements = numbers.encode(scalars, clients)
    total = np.array(sum_of(elements, tuple(range(clients)), bits), np.uint64)
    off = np.abs(numbers.decode(total, clients) - scalars.sum(axis=0)).max()
    assert off <= clients * (numbers.step_for(clients) / 2 + 1e-15)


def test_rounding_is_half_to_even_or_unbiased_on_request() -> None:
    numbers = FixedPoint(100.0, 32, step=1.0)
    scalars = np.array([0.5, 1.5, -0.5, -2.5, 99.9, 1e9, -1e9])
    assert numbers.decode(numbers.encode(scalars, 1), 1).tolist() == [0, 2, 0, -2, 100, 100, -100]
    uniforms = (np.arange(1_000) + 0.5) / 1_000
    values = numbers.decode(numbers.encode(np.full(1_000, -2.3), 1, uniforms), 1)
    assert sorted(set(values.tolist())) == [-3, -2]
    assert values.mean() == pytest.approx(-2.3)


def test_a_step_that_could_wrap_says_which_numbers_to_change() -> None:
    numbers = FixedPoint(1.0, 16, step=0.001)
    assert numbers.levels(32) == 1_000
    with pytest.raises(InputError, match=r"33 clients .* 1,000 steps .* 16 bits.* 32,767: raise step .* raise bits"):
        numbers.levels(33)
    with pytest.raises(InputError, match="raise bits to 17"):
        FixedPoint(1.0, 16).levels(40_000)
    for changes in ({"clip": 0.0}, {"clip": math.inf}, {"clip": True}, {"step": -1.0}, {"bits": 65}):
        with pytest.raises(InputError, match="expected"):
            FixedPoint(**{"clip": 1.0, **changes})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="clients"):
        numbers.levels(0)
    for uniforms in (np.ones(1), np.zeros(2)):
        with pytest.raises(InputError, match="uniforms"):
            numbers.encode(np.zeros(1), 2, uniforms)
    with pytest.raises(InputError, match="finite"):
        numbers.encode(np.array([math.nan]), 2)


# ---------------------------------------------------------------------------------------------------- shares


@settings(max_examples=50)
@given(st.data(), st.binary(min_size=32, max_size=32), st.integers(1, 12))
def test_any_threshold_of_shares_gives_the_secret_back(data: st.DataObject, secret: bytes, count: int) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = shamir.share(int.from_bytes(secret, "little"), threshold, range(1, count + 1))
    chosen = data.draw(st.permutations(range(count)))[:threshold]
    weights = shamir.weights_at_zero([i + 1 for i in chosen])
    assert shamir.combine([shares[i] for i in chosen], weights).to_bytes(33, "little") == secret + b"\0"


@pytest.mark.parametrize("threshold", [2, 3])
def test_one_share_fewer_says_nothing_exactly(threshold: int) -> None:
    """Over a field of 7, all polynomials: t − 1 shares are distributed alike, and uniformly, for every secret."""
    prime, points = 7, (1, 2, 3, 4)
    for seen in itertools.combinations(range(4), threshold - 1):
        for secret in range(prime):
            counts: Counter[tuple[int, ...]] = Counter()
            for coefficients in itertools.product(range(prime), repeat=threshold - 1):
                draws = iter(coefficients)
                shares = shamir.share(secret, threshold, points, prime, lambda _, draws=draws: next(draws))  # type: ignore[misc]
                counts[tuple(shares[i] for i in seen)] += 1
            assert set(counts.values()) == {1}
            assert len(counts) == prime ** (threshold - 1)


def test_the_field_is_prime_and_holds_every_secret() -> None:
    assert shamir.PRIME > 2**256
    # Fermat's test to many bases; no composite number is known to pass that many by chance.
    assert all(pow(base, shamir.PRIME - 1, shamir.PRIME) == 1 for base in range(2, 60))
    assert (shamir.PRIME - 1).bit_length() <= 8 * shamir.SHARE_BYTES
