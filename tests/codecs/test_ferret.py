"""What is Ferret's own: blocks, how scalars are shared out to them, and what that saves."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmpdd import Key, Session, derive_seed
from fedmpdd.codecs import MPDD, Ferret
from fedmpdd.codecs.ferret import LEVELS, _counts
from fedmpdd.directions import reference
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian

SIZES = (40, 5, 30, 25)
CODEC = Ferret(20, shapes=SIZES)


def uneven(clients: int, seed: int = 0) -> NDArray[np.float32]:
    """Gradients of which one block is a hundred times as long as the others."""
    g = gaussian(clients, 100, seed=seed)
    g[:, :40] *= 100
    return g


def test_blocks_are_parameters_and_neighbours_of_small_ones() -> None:
    assert [(block.start, block.stop) for block in CODEC.blocks()] == [(0, 40), (40, 45), (45, 75), (75, 100)]
    assert len(Ferret(5, shapes=(9, 1, 1, 1, 9)).blocks()) == 5
    merged = Ferret(5, shapes=(100, 10, 10, 100, 100)).blocks()
    assert [(block.start, block.stop) for block in merged] == [(0, 100), (100, 120), (120, 220), (220, 320)]
    assert Ferret(5).for_shapes([(3, 4), (2,)]).shapes == (12, 2)


@given(st.lists(st.integers(0, LEVELS - 1), min_size=1, max_size=40), st.integers(0, 500))
def test_every_block_has_a_scalar_and_all_are_given_away(levels: list[int], more: int) -> None:
    counts = _counts(np.array(levels), len(levels) + more)
    assert sum(counts) == len(levels) + more
    assert min(counts) >= 1
    by_level = sorted(zip(levels, counts, strict=True))
    assert all(one[1] >= other[1] - 1 for one, other in pairwise(by_level))


def test_estimate_is_the_definition() -> None:
    g, key = uneven(1), Key(9, 2)
    (update,) = CODEC.encode(g, [key])
    levels = [update.arrays[0][0] & 15, update.arrays[0][0] >> 4, update.arrays[0][1] & 15, update.arrays[0][1] >> 4]
    lengths = [float(np.linalg.norm(g[0, block])) for block in CODEC.blocks()]
    weights = [math.sqrt(size) * length for size, length in zip(SIZES, lengths, strict=True)]
    assert levels == [min(15, round(-2 * math.log2(weight / max(weights)))) for weight in weights]
    counts, begin, expected = _counts(np.array(levels), 20), 0, np.zeros(100)
    for number, (count, block) in enumerate(zip(counts, CODEC.blocks(), strict=True)):
        seed = derive_seed(key.seed, key.slot, 2 + number)
        size = block.stop - block.start
        rows = np.stack([reference.signs(seed, j, size) for j in range(count)]).astype(np.float64)
        scalars = rows @ g[0, block].astype(np.float64)
        assert np.allclose(update.arrays[1][begin : begin + count], scalars, rtol=1e-5, atol=1e-3)
        expected[block] = scalars @ rows / count
        begin += count
    assert np.allclose(CODEC.decode_mean([update]), expected, rtol=1e-4, atol=1e-2)


def test_the_document_is_enough_to_decode_to_the_same_bits() -> None:
    keys, weights = [Key(11, 2), Key(11, 0), Key(5)], [3.0, 0.1, 7.0]
    updates = CODEC.encode(uneven(3), keys)
    expected = np.zeros(100, dtype=np.float32)
    for update, key, weight in zip(updates, keys, weights, strict=True):
        packed, scalars = update.arrays
        levels = [int(packed[number // 2]) >> 4 * (number % 2) & 15 for number in range(4)]
        shares = [math.floor(2 ** (16 - level / 2) + 0.5) for level in levels]
        counts = [1 + 16 * share // sum(shares) for share in shares]
        for number in sorted(range(4), key=lambda number: -(16 * shares[number] % sum(shares)))[: 20 - sum(counts)]:
            counts[number] += 1
        begin = 0
        for number, (count, block) in enumerate(zip(counts, CODEC.blocks(), strict=True)):
            part = np.zeros(block.stop - block.start, dtype=np.float32)
            some = scalars[begin : begin + count].astype(np.float64)
            coefficients = (weight / math.fsum(weights) / count * some).astype(np.float32)
            reference.rademacher_decode(coefficients, derive_seed(key.seed, key.slot, 2 + number), 0, part)
            expected[block] += part
            begin += count
    assert expected.tobytes() == CODEC.decode_mean(updates, weights).tobytes()


def test_blocks_save_error_where_lengths_differ() -> None:
    """By (Σ √d_l ‖g_l‖)² / (d ‖g‖²), up to the scalar that every block has."""
    errors = {}
    for codec in (CODEC, MPDD(20)):
        estimates = [codec.decode_mean(codec.encode(uneven(1), [key])) for key in range(600)]
        errors[codec.name] = np.mean([((estimate - uneven(1)[0]) ** 2).sum() for estimate in estimates])
    assert errors["ferret"] < 0.6 * errors["mpdd"]  # (40 − 1) / 17 against (100 − 1) / 20


def test_bytes_are_scalars_and_half_a_byte_a_block() -> None:
    assert CODEC.bytes_per_update(100) == 4 * 20 + 2
    assert Ferret(240, shapes=(2_304,) * 100).bytes_per_update(230_400) == 4 * 240 + 50


@pytest.mark.parametrize(
    ("levels", "scalars", "message"),
    [
        ([0x11, 0x11], [0.0] * 20, "no block has level 0"),
        ([0xFF, 0xFF], [1.0] * 20, "no block has level 0"),
        ([0x10, 0x11], [math.nan] * 20, "NaN"),
        ([0x10, 0x11], [3e38] * 20, "could leave float32"),
    ],
)
def test_what_is_never_written_is_refused(levels: list[int], scalars: list[float], message: str) -> None:
    arrays = (np.array(levels, dtype=np.uint8), np.array(scalars, dtype=np.float32))
    with pytest.raises(ContentError, match=message):
        CODEC.check_content(arrays, 100)


def test_a_half_byte_too_many_is_refused() -> None:
    codec = Ferret(20, shapes=(40, 35, 25))
    with pytest.raises(ContentError, match="not all zero"):
        codec.check_content((np.array([0x10, 0x11], dtype=np.uint8), np.zeros(20, dtype=np.float32)), 100)


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Ferret(20), "use for_shapes first"),
        (Ferret(20, shapes=(99,)), "use for_shapes first"),
        (Ferret(3, shapes=SIZES), "each of the 4 blocks"),
    ],
)
def test_models_that_do_not_fit_are_refused(codec: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.encode(gaussian(1, 100), [1])
    with pytest.raises(CodecError, match="m = 0"):
        Ferret(0)


def test_clients_that_share_a_seed_have_directions_of_their_own() -> None:
    session = Session(CODEC, 100, sends_seed=False)
    updates = CODEC.encode(np.repeat(uneven(1), 2, axis=0), [Key(4, 0), Key(4, 1)])
    assert updates[0].arrays[1].tobytes() != updates[1].arrays[1].tobytes()
    assert session.unpack(session.pack(updates[1]), Key(4, 1)) == updates[1]
