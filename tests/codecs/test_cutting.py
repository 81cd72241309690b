"""Cutting is bookkeeping: no coordinate lost, none twice, and slices that begin where kernels can."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmpdd.codecs.cutting import CHUNK, gather, scatter
from fedmpdd.directions import RUN, TILE

Numbers = NDArray[np.float32]

# Sizes on both sides of every limit, and anything between.
awkward = st.sampled_from([0, 1, TILE - 1, TILE, RUN - 1, RUN, RUN + 1, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + RUN])
sizes_of_pieces = st.lists(st.one_of(awkward, st.integers(0, 3 * RUN)), min_size=1, max_size=12).filter(any)


def numbered(sizes: list[int]) -> list[Numbers]:
    """Pieces whose coordinates are numbered throughout (exact in float32, being below 2^24)."""
    whole = np.arange(sum(sizes), dtype=np.float32)
    return np.split(whole, np.cumsum(sizes)[:-1])


@given(sizes_of_pieces)
def test_gathered_slices_are_the_pieces_in_runs(sizes: list[int]) -> None:
    d = sum(sizes)
    first = 0
    for chunk in gather(numbered(sizes), np.empty(min(d, CHUNK), dtype=np.float32)):
        assert first % RUN == 0
        assert len(chunk) > 0
        assert np.array_equal(chunk, np.arange(first, first + len(chunk)))
        first += len(chunk)
    assert first == d


@given(sizes_of_pieces)
def test_scattered_slices_are_filled_once_and_in_order(sizes: list[int]) -> None:
    d, asked = sum(sizes), []

    def fill(out: Numbers, first_tile: int) -> None:
        asked.append((first_tile * TILE, len(out)))
        out[:] = np.arange(first_tile * TILE, first_tile * TILE + len(out))

    pieces = list(scatter(sizes, d, lambda size: np.full(size, np.nan, dtype=np.float32), fill))
    assert [len(piece) for piece in pieces] == sizes
    assert np.array_equal(np.concatenate(pieces), np.arange(d))
    ends = [begin + length for begin, length in asked]
    assert [begin for begin, _ in asked] == [0, *ends[:-1]]
    assert ends[-1] == d
    assert all(length >= min(CHUNK, d - begin) - TILE + 1 for begin, length in asked)  # no slice is needlessly small


def test_large_pieces_are_used_where_they_are() -> None:
    pieces = numbered([5, 3 * CHUNK, 7])
    buffer = np.empty(CHUNK, dtype=np.float32)
    head, middle, tail = gather(iter(pieces), buffer)
    assert (len(head), len(middle), len(tail)) == (RUN, 3 * CHUNK - RUN, 12)
    assert np.shares_memory(middle, pieces[1])
    assert np.shares_memory(head, buffer)
