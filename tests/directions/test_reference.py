"""The reference itself: known answers from elsewhere, and what the spec promises."""

import numpy as np
import pytest

from fedmpdd.directions import reference, spec

PHILOX_KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), PHILOX_KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, answer: str) -> None:
    low, high = words(key)
    result = reference.philox4x32(np.array([words(counter)], dtype=np.uint64), low | high << 32)
    assert result[0].tolist() == words(answer)


def test_layout_of_one_tile_is_that_of_the_spec() -> None:
    """Bit i of word w of block l of a tile is the sign of coordinate 64·i + 16·w + l."""
    seed, index, d = 0x0123456789ABCDEF, 5, 3 * spec.TILE
    signs = reference.signs(seed, index, d)
    for tile, block, word, bit in [(0, 0, 0, 0), (0, 15, 3, 31), (1, 3, 2, 17), (2, 9, 1, 30)]:
        counter = np.array([[16 * tile + block, index, 0, 0]], dtype=np.uint64)
        value = int(reference.philox4x32(counter, seed)[0, word])
        assert signs[2048 * tile + 64 * bit + 16 * word + block] == 1 - 2 * (value >> bit & 1)


def test_signs_from_a_later_tile_are_the_same_signs() -> None:
    whole = reference.signs(7, 3, 5 * spec.TILE)
    assert np.array_equal(reference.signs(7, 3, 2 * spec.TILE, first_tile=3), whole[3 * spec.TILE :])


@pytest.mark.parametrize("order", spec.OUTER_ORDERS)
def test_outer_matrices_are_hadamard(order: int) -> None:
    h = reference.outer_matrix(order).astype(int)
    assert h.shape == (order, order)
    assert set(h.ravel().tolist()) <= {1, -1}
    assert np.array_equal(h @ h.T, order * np.eye(order))


ORDERS = """
1:1,0 2:1,1 3:1,2 9:12,0 13:1,4 17:20,0 21:12,1 25:28,0 319242:20,14 44426:12,12 13426:28,9 7850:1,13 1099511627776:1,40
"""


@pytest.mark.parametrize("case", ORDERS.split())
def test_hadamard_order_is_the_smallest_that_holds_d(case: str) -> None:
    d, order = case.split(":")
    assert ",".join(map(str, spec.hadamard_order(int(d)))) == order


@pytest.mark.parametrize("d", [1, 2, 12, 17, 28, 50, 96])
def test_hadamard_directions_of_a_seed_are_orthogonal_on_the_padded_matrix(d: int) -> None:
    size = spec.hadamard_size(d)
    rows = [reference.hadamard_row(99, d, j) for j in range(size)]
    assert sorted(rows) == list(range(size))
    u = np.array([reference.hadamard_direction(99, size, j) for j in range(size)], dtype=np.int64)
    assert np.array_equal(u @ u.T, size * np.eye(size))


def test_hadamard_encode_through_butterflies_equals_inner_products() -> None:
    """The fast transform and the definition by rows are two ways to the same numbers."""
    d, seed = 300, 5
    outer, log2 = spec.hadamard_order(d)
    g = np.random.default_rng(0).standard_normal(d)
    x = np.zeros((outer, 1 << log2), dtype=np.float32)
    x.reshape(-1)[:d] = reference.signs(seed, 0, d, spec.DOMAIN_DIAGONAL) * g
    reference.butterflies(x)
    transformed = (reference.outer_matrix(outer) @ x.astype(np.float64)).reshape(-1)
    fast = [transformed[reference.hadamard_row(seed, d, j)] for j in range(20)]
    assert np.allclose(fast, reference.hadamard_encode(g.astype(np.float32), seed, 0, 20), atol=1e-4)
