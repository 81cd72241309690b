"""Encode and decode tensor by tensor, for models whose flat gradient would be too large to hold.

The result is that of `MPDD.encode` and `MPDD.decode_mean` on the flat gradient, bit for bit.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import index

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._cutting import CHUNK, gather, scatter
from fedmpdd.codecs.base import Float32, Update, mean_factors
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import (
    MOMENT_LANES,
    TILE,
    Hadamard,
    Key,
    Rademacher,
    add_moments,
    check_array,
    check_key,
    hadamard_size,
)
from fedmpdd.errors import CodecError, GradientError

Float64 = NDArray[np.float64]


def encode_pieces(codec: MPDD, pieces: Iterable[Float32], key: Key | int, *, d: int) -> Update:
    """Encode one gradient that comes as float32 arrays of any shape, in order, d coordinates in all.

    Pieces are used one by one and not kept, so that a generator may make each when it is asked for. Rademacher
    directions need a buffer of 4 MB at most besides, hadamard directions one of hadamard_size(d) floats.
    """
    _check_codec(codec)
    key = check_key(key)
    codec.check(d, key.slot)
    encode = {"rademacher": _encode_rademacher, "hadamard": _encode_hadamard}[codec.family]
    scalars, moments = encode(_Flattened(pieces, d), key, codec.m, d)
    return Update(codec, d, key, codec._arrays(scalars, moments, [key], d)[0])


def decode_pieces(
    codec: MPDD, updates: Sequence[Update], sizes: Sequence[int], weights: Sequence[float] | None = None
) -> Iterator[Float32]:
    """Estimate the (weighted) mean gradient of the updates, as flat arrays of these sizes, one after the other.

    Rademacher directions need a buffer of 4 MB at most besides the array that is handed out. With hadamard directions
    the arrays are parts of one buffer of hadamard_size(d) floats; updates of different seeds need a second one.
    """
    _check_codec(codec)
    d = codec._check_round(updates)
    factors = mean_factors(len(updates), weights)
    try:
        checked = [index(size) for size in sizes]
    except TypeError:
        raise CodecError(f"sizes {sizes!r} are not numbers of coordinates; pass an int per tensor") from None
    if sum(checked) != d or min(checked) < 0:
        raise CodecError(
            f"sizes add up to {sum(checked)} and the smallest is {min(checked, default=0)}, but the updates are of "
            f"d = {d} coordinates; pass the size of every tensor, in the order in which they were encoded"
        )
    decode = {"rademacher": _decode_rademacher, "hadamard": _decode_hadamard}[codec.family]
    return decode(codec, updates, factors, checked, d)


def _check_codec(codec: MPDD) -> None:
    if not isinstance(codec, MPDD):
        raise CodecError(f"pieces are for MPDD codecs, got {codec!r}; encode the whole gradient with codec.encode")


class _Flattened:
    """Pieces one by one, checked and flat; remembers where each began, to name the one that is to blame."""

    def __init__(self, pieces: Iterable[Float32], d: int) -> None:
        self._pieces, self._d = pieces, d
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[Float32]:
        total = 0
        for piece in self._pieces:
            name = f"pieces[{len(self._ends)}]"
            check_array(piece, name)
            total += piece.size
            if total > self._d:
                raise GradientError(
                    f"the pieces up to {name} have {total} coordinates, but d = {self._d}; pass each tensor of the "
                    "model once, and as d their sizes added up"
                )
            self._ends.append(total)
            yield np.asarray(piece).reshape(-1)
            del piece  # whoever makes the next one may need its memory
        if total < self._d:
            raise GradientError(
                f"the {len(self._ends)} pieces have {total} coordinates, but d = {self._d}; pass all tensors of the "
                "model, those without a gradient as zeros"
            )

    def check_finite(self, second_moment: float, coordinates: Float32, first: int) -> None:
        """Raise GradientError, given that ‖g‖² is not finite, naming the one of these coordinates that is not."""
        if math.isfinite(second_moment):
            return
        offset = int(np.flatnonzero(~np.isfinite(coordinates))[0])
        piece = bisect_right(self._ends, first + offset)
        begin = self._ends[piece - 1] if piece else 0
        raise GradientError(
            f"pieces[{piece}], flattened, is {coordinates[offset]} at coordinate {first + offset - begin}; all must be "
            "finite: lower the learning rate or clip before encoding"
        )


def _encode_rademacher(pieces: _Flattened, key: Key, m: int, d: int) -> tuple[Float32, Float64]:
    """Scalars [1, m] and moments [1, 2] of a gradient in pieces."""
    sums, lanes = np.zeros((1, m)), np.zeros((1, MOMENT_LANES))
    family, first = Rademacher(), 0
    for chunk in gather(pieces, np.empty(min(d, CHUNK), dtype=np.float32)):
        moments = add_moments(chunk[np.newaxis], lanes)
        pieces.check_finite(moments[0, 0], chunk, first)
        family.encode_slice(chunk[np.newaxis], first // TILE, [key], sums)
        first += len(chunk)
        del chunk  # it may be a part of a piece
    return family.scalars(sums), moments


def _encode_hadamard(pieces: _Flattened, key: Key, m: int, d: int) -> tuple[Float32, Float64]:
    """The same; the transform needs all coordinates at once, so that pieces go straight into its buffer."""
    buffer = np.empty(hadamard_size(d), dtype=np.float32)
    first = 0
    for piece in pieces:
        buffer[first : first + len(piece)] = piece
        first += len(piece)
        del piece
    moments = add_moments(buffer[np.newaxis, :d], np.zeros((1, MOMENT_LANES)))
    pieces.check_finite(moments[0, 0], buffer[:d], 0)
    return Hadamard().encode_in_place(buffer, d, key, m), moments


def _decode_rademacher(
    codec: MPDD, updates: Sequence[Update], factors: Float64, sizes: list[int], d: int
) -> Iterator[Float32]:
    family, keys = Rademacher(), [update.key for update in updates]
    scalars, factors = codec._scalars(updates, factors)

    def fill(out: Float32, first_tile: int) -> None:
        out.fill(0)
        if codec.bits == 1:
            family.decode_signs_slice(scalars, factors, keys, codec.m, out, first_tile)
        else:
            family.decode_slice(scalars, factors, keys, out, first_tile)

    return scatter(sizes, d, lambda size: np.empty(size, dtype=np.float32), fill)


def _decode_hadamard(
    codec: MPDD, updates: Sequence[Update], factors: Float64, sizes: list[int], d: int
) -> Iterator[Float32]:
    estimate = codec._decode_sum(updates, factors, d)
    begin = 0
    for size in sizes:
        yield estimate[begin : begin + size]
        begin += size
