"""The directions once more, slow and obvious, in NumPy: what every kernel is tested against.

Follows docs/directions.md section by section. Encoding is done in float64, the yardstick for the kernels'
rounding; decoding does the float32 additions of the spec one by one, since every decoder must give the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions.spec import (
    DOMAIN_DIAGONAL,
    DOMAIN_DIRECTIONS,
    DOMAIN_PERMUTATION,
    DOMAIN_ROUNDING,
    FEISTEL_ROUNDS,
    FEISTEL_ROUNDS_SMALL,
    FEISTEL_SMALL,
    QUAD,
    TILE,
    TILE_BLOCKS,
    WORD_STRIDE,
    hadamard_order,
)

UInt32 = NDArray[np.uint32]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox4x32(counter: NDArray[np.uint64], seed: int) -> UInt32:
    """Philox4x32-10 of counters [..., 4] (32-bit values) under a 64-bit key: words [..., 4]."""
    c0, c1, c2, c3 = np.moveaxis(counter.astype(np.uint64), -1, 0)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def blocks(seed: int, domain: int, index: int, numbers: NDArray[np.uint64]) -> UInt32:
    """Words [n, 4] of the numbered blocks of one direction."""
    counter = np.empty((numbers.size, 4), dtype=np.uint64)
    counter[:, 0] = numbers & _LOW
    counter[:, 1] = index
    counter[:, 2] = domain
    counter[:, 3] = numbers >> np.uint64(32)
    return philox4x32(counter, seed)


def signs(seed: int, index: int, d: int, domain: int = DOMAIN_DIRECTIONS, first_tile: int = 0) -> Float32:
    """Coordinates of one direction, ±1, from the start of a tile on."""
    tiles = -(-d // TILE)
    numbers = np.arange(first_tile * TILE_BLOCKS, (first_tile + tiles) * TILE_BLOCKS, dtype=np.uint64)
    words = blocks(seed, domain, index, numbers).reshape(tiles, TILE_BLOCKS, 4)
    by_t = words.transpose(0, 2, 1).reshape(tiles, WORD_STRIDE)  # t = 16·w + l
    bits = (by_t[:, np.newaxis, :] >> np.arange(32, dtype=np.uint32)[:, np.newaxis]) & 1  # [tile, i, t]
    return (1.0 - 2.0 * bits.reshape(-1)[:d]).astype(np.float32)


def rademacher_encode(gradient: Float32, seed: int, first: int, m: int) -> Float64:
    """s_j = u_jᵀ g (Algorithm 2, line 9), in float64."""
    g = gradient.astype(np.float64)
    return np.array([signs(seed, first + j, g.size).astype(np.float64) @ g for j in range(m)])


def rademacher_decode(coefficients: Float32, seed: int, first: int, out: Float32) -> None:
    """out += Σ_j c_j u_j, four directions at a time: out + ((±c0 ±c1) + (±c2 ±c3))."""
    m = coefficients.size
    padded = np.zeros(-(-m // QUAD) * QUAD, dtype=np.float32)
    padded[:m] = coefficients
    for j in range(0, m, QUAD):
        a, b, c, d = (
            padded[j + k] * signs(seed, first + j + k, out.size) if j + k < m else np.zeros(out.size, dtype=np.float32)
            for k in range(QUAD)
        )
        out += (a + b) + (c + d)


def onebit_decode(negative: NDArray[np.bool_], coefficient: np.float32, seed: int, first: int, out: Float32) -> None:
    """out += c · (number of plus votes − number of minus votes)."""
    votes = np.zeros(out.size, dtype=np.int32)
    for j, minus in enumerate(negative):
        u = signs(seed, first + j, out.size).astype(np.int32)
        votes += -u if minus else u
    out += coefficient * votes.astype(np.float32)


def _quadratic_character(q: int) -> NDArray[np.int8]:
    squares = {x * x % q for x in range(1, q)}
    return np.array([0 if a == 0 else 1 if a in squares else -1 for a in range(q)], dtype=np.int8)


def outer_matrix(order: int) -> NDArray[np.int8]:
    """The Hadamard matrix of order 1, 12, 20 (Paley's first construction) or 28 (his second, q = 13)."""
    if order == 1:
        return np.ones((1, 1), dtype=np.int8)
    q = 13 if order == 28 else order - 1
    chi = _quadratic_character(q)
    difference = (np.arange(q)[:, np.newaxis] - np.arange(q)) % q
    conference = np.ones((q + 1, q + 1), dtype=np.int8)
    conference[1:, 1:] = chi[difference]
    conference[0, 0] = 0
    if q % 4 == 3:
        conference[1:, 0] = -1
        return conference + np.eye(q + 1, dtype=np.int8)
    off_diagonal = np.array([[1, 1], [1, -1]], dtype=np.int8)
    diagonal = np.array([[1, -1], [-1, -1]], dtype=np.int8)
    return np.kron(conference, off_diagonal) + np.kron(np.eye(q + 1, dtype=np.int8), diagonal)


def _feistel_round(other: int, key: int, size: int) -> int:
    x = (other + key) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x85EBCA6B & 0xFFFFFFFF
    x ^= x >> 13
    x = x * 0xC2B2AE35 & 0xFFFFFFFF
    x ^= x >> 16
    return x * size >> 32


def hadamard_row(seed: int, d: int, direction: int) -> int:
    """The row of the matrix that is direction number `direction` of a seed."""
    outer, log2 = hadamard_order(d)
    size = outer << log2
    twos = (size & -size).bit_length() - 1
    right_size = 1 << twos // 2
    left_size = size // right_size
    rounds = FEISTEL_ROUNDS_SMALL if size < FEISTEL_SMALL else FEISTEL_ROUNDS
    keys = blocks(seed, DOMAIN_PERMUTATION, 0, np.arange(6, dtype=np.uint64)).reshape(-1)
    left, right = divmod(direction % size, right_size)
    for r in range(0, rounds, 2):
        left = (left + _feistel_round(right, int(keys[r]), left_size)) % left_size
        right = (right + _feistel_round(left, int(keys[r + 1]), right_size)) % right_size
    return left * right_size + right


def coordinates(seed: int, d: int, slot: int, k: int) -> list[int]:
    """The k coordinates of a slot: rows below d in the order of the directions, from number slot·k on, repeating.

    The matrix is the one for d, but of order 4,096 at least.
    """
    order = max(d, 4096)
    outer, log2 = hadamard_order(order)
    below = [row for row in (hadamard_row(seed, order, j) for j in range(outer << log2)) if row < d]
    return [below[(slot * k + i) % d] for i in range(k)]


def hadamard_direction(seed: int, d: int, direction: int) -> Float32:
    """Coordinates of one direction: a row of the matrix times the random diagonal."""
    outer, log2 = hadamard_order(d)
    row = hadamard_row(seed, d, direction)
    column = np.arange(d, dtype=np.uint64)
    inner_row = np.uint64(row & ((1 << log2) - 1))
    inner = 1.0 - 2.0 * (np.bitwise_count(column & inner_row) & 1)
    h = outer_matrix(outer)[row >> log2, (column >> np.uint64(log2)).astype(np.intp)]
    return np.asarray(inner * h * signs(seed, 0, d, DOMAIN_DIAGONAL), dtype=np.float32)


def hadamard_encode(gradient: Float32, seed: int, first: int, m: int) -> Float64:
    """s_j = u_jᵀ g with Hadamard directions, in float64."""
    g = gradient.astype(np.float64)
    return np.array([hadamard_direction(seed, g.size, first + j).astype(np.float64) @ g for j in range(m)])


def butterflies(x: Float32) -> None:
    """In place, strides 1, 2, 4, …: (a, b) ← (a + b, a − b), along the last axis."""
    n = x.shape[-1]
    stride = 1
    while stride < n:
        pairs = x.reshape(-1, n // (2 * stride), 2, stride)
        a, b = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        pairs[:, :, 0], pairs[:, :, 1] = a + b, a - b
        stride *= 2


def hadamard_decode(coefficients: list[Float32], seed: int, firsts: list[int], out: Float32) -> None:
    """out += Σ over the updates of one seed and their directions, through one inverse transform."""
    outer, log2 = hadamard_order(out.size)
    z = np.zeros((outer, 1 << log2), dtype=np.float32)
    flat = z.reshape(-1)
    for scalars, first in zip(coefficients, firsts, strict=True):
        for j, value in enumerate(scalars):
            flat[hadamard_row(seed, out.size, first + j)] += value
    h = outer_matrix(outer)
    if outer > 1:
        summed = np.zeros_like(z)
        for a in range(outer):
            summed += h[a][:, np.newaxis].astype(np.float32) * z[a]
        z = summed
    butterflies(z)
    out += signs(seed, 0, out.size, DOMAIN_DIAGONAL) * z.reshape(-1)[: out.size]


def rounding_words(seed: int, slot: int, m: int) -> UInt32:
    """The random words that round the scalars of an update: word j mod 4 of block j div 4."""
    return blocks(seed, DOMAIN_ROUNDING, slot, np.arange(-(-m // 4), dtype=np.uint64)).reshape(-1)[:m]
