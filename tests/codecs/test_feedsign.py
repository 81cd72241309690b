"""What is FeedSign's own: bytes, the vote, ties, and its mean in few bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd import Key
from fedmpdd.codecs import MPDD, FeedSign, Update
from fedmpdd.codecs.evidence import Projections
from fedmpdd.directions import reference
from fedmpdd.errors import CodecError, ContentError
from fedmpdd.uplink import Protection
from tests.conftest import gaussian

D = 50


def update_of(signs: list[int], key: Key) -> Update:
    return FeedSign(len(signs)).encode_scalars(np.array([signs], dtype=np.float64), [key], D).updates()[0]


def estimate_of(votes: list[float], key: Key) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    rows = np.stack([reference.signs(key.seed, key.slot * len(votes) + j, D) for j in range(len(votes))])
    return np.array(votes) @ rows.astype(np.float64) / len(votes)


def test_a_sign_is_a_bit() -> None:
    assert [FeedSign(m).bytes_per_update(10**9) for m in (1, 8, 9)] == [1, 1, 2]
    assert FeedSign(5).revealed_bits(10**9) == 5


def test_signs_are_those_of_the_derivatives() -> None:
    g = gaussian(1, D)
    (update,) = FeedSign(9).encode(g, [Key(3)])
    (exact,) = MPDD(9).encode(g, [Key(3)])
    assert np.unpackbits(update.arrays[0], count=9, bitorder="little").tolist() == (exact.arrays[0] < 0).tolist()


@given(st.lists(st.lists(st.sampled_from([-1, 1]), min_size=3, max_size=3), min_size=1, max_size=12))
def test_the_majority_decides_each_direction(rows: list[list[int]]) -> None:
    key = Key(5, 2)
    votes = [float(np.sign(sum(column))) for column in zip(*rows, strict=True)]
    estimate = FeedSign(3).decode_mean([update_of(row, key) for row in rows])
    assert np.allclose(estimate, estimate_of(votes, key), atol=1e-6)


def test_ten_equal_voices_may_be_a_tie() -> None:
    """Ten times a tenth, half of them minus, is not 0 in float64; it is a tie all the same."""
    updates = [update_of([sign], Key(1)) for sign in [1] * 3 + [-1] * 5 + [1] * 2]
    assert not FeedSign(1).decode_mean(updates).any()
    assert FeedSign(1).decode_mean(updates, [1.0] * 9 + [1.5]).any()


def test_weights_are_voices() -> None:
    key = Key(7)
    updates = [update_of([1], key), update_of([-1], key), update_of([-1], key)]
    assert np.allclose(FeedSign(1).decode_mean(updates, [5, 2, 2]), estimate_of([1.0], key))
    assert np.allclose(FeedSign(1).decode_mean(updates, [0, 2, 2]), estimate_of([-1.0], key))


def test_only_updates_of_one_key_vote_together() -> None:
    """Those of different keys speak of different directions, and are averaged."""
    updates = [update_of([1], Key(1)), update_of([1], Key(2)), update_of([-1], Key(1)), update_of([1], Key(1))]
    expected = 0.75 * estimate_of([1.0], Key(1)) + 0.25 * estimate_of([1.0], Key(2))
    assert np.allclose(FeedSign(1).decode_mean(updates), expected, atol=1e-6)


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 1])
def test_the_vote_as_one_update_is_the_vote(bits: int) -> None:
    key = Key(11)
    updates = [update_of(signs, key) for signs in ([1, -1, 1], [1, -1, -1], [-1, -1, 1])]
    mean = FeedSign(3).mean_update(updates, bits)
    assert mean.codec == FeedSign(3).with_bits(bits)
    assert np.allclose(mean.codec.decode_mean([mean]), FeedSign(3).decode_mean(updates), rtol=1e-4)
    assert bits > 1 or len(mean.arrays[0]) == 1  # the original's downlink: a bit


def test_what_makes_no_vote_is_refused() -> None:
    with pytest.raises(CodecError, match="cannot vote"):
        FeedSign(1).mean_update([update_of([1], Key(1)), update_of([1], Key(2))], 1)
    with pytest.raises(CodecError, match="scale_grid"):
        Protection(FeedSign(1), scale_grid=2.0)
    with pytest.raises(CodecError, match="no formula"):
        Protection(FeedSign(3), clip=1.0).variance(D, norm=1.0)
    with pytest.raises(ContentError, match="not all zero"):
        FeedSign(3).check_content((np.array([8], dtype=np.uint8),), D)


def test_noisy_signs_are_signs_of_noisy_scalars() -> None:
    protection = Protection(FeedSign(400), clip=1.0, noise_multiplier=5.0)
    g = gaussian(1, D)
    noisy = protection.encode(g, [1], [np.random.default_rng(1)]).updates()[0]
    exact = FeedSign(400).encode(g, [1])[0]
    one, other = (np.unpackbits(update.arrays[0]) for update in (noisy, exact))
    flipped = int((one != other).sum())
    assert 150 < flipped < 250  # the noise is a hundred times the scalars


def test_an_attacker_learns_no_length() -> None:
    seen = FeedSign(4).evidence([update_of([1, 1, -1, 1], Key(1))])
    assert isinstance(seen, Projections)
    assert (seen.rounding, seen.sized) == ("signs", False)
    assert seen.levels.tolist() == [[1.0, 1.0, -1.0, 1.0]]
