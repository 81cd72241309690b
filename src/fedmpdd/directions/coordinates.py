"""Coordinates chosen by a key, for codecs that send a few of them: the rows of the hadamard family, reused."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions import _native
from fedmpdd.directions.keys import Key
from fedmpdd.directions.native import backend
from fedmpdd.directions.spec import hadamard_size

_PIECE = 1 << 16  # rows at a time
# The Feistel network of a small matrix is too small to make all pairs of rows alike, so that small d borrow this one's.
_SMALLEST_ORDER = 1 << 12


def distinct_coordinates(keys: Sequence[Key], d: int, k: int) -> NDArray[np.int64]:
    """Return k ≤ d different coordinates per key, [clients, k], all subsets alike over random seeds.

    Take rows π(0), π(1), … of the Hadamard matrix for max(d, 4096), as directions do, and leave out those not below d.
    Of these d coordinates slot s has those number s·k … s·k + k − 1, modulo d: clients that share a seed and have
    different slots share no coordinate before all were used. The first slot takes time O(k), a later one O(slot·k).
    """
    out = np.empty((len(keys), k), dtype=np.int64)
    clients_of: dict[int, list[int]] = {}
    for client, key in enumerate(keys):
        clients_of.setdefault(key.seed, []).append(client)
    for seed, clients in clients_of.items():
        firsts = [keys[client].slot * k % d for client in clients]
        order = _first_coordinates(seed, d, min(d, max(firsts) + k))
        for client, first in zip(clients, firsts, strict=True):
            out[client] = order[(first + np.arange(k)) % d]
    return out


def _first_coordinates(seed: int, d: int, count: int) -> NDArray[np.int64]:
    """Return the first `count` rows below d."""
    order = max(d, _SMALLEST_ORDER)
    size = hadamard_size(order)
    out = np.empty(count, dtype=np.int64)
    filled = slot = 0
    while filled < count:  # ends by itself: d ≥ count of all rows are below d
        # As many as should do, and a few for bad luck.
        rows = np.empty(min(size - slot, _PIECE, (count - filled) * size // d + 16), dtype=np.uint64)
        _native.hadamard_rows(seed, order, slot, rows, backend().isa)
        kept = rows[rows < d][: count - filled]
        out[filled : filled + kept.size] = kept
        filled += kept.size
        slot += rows.size
    return out
