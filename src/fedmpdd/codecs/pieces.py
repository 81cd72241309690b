"""Encode and decode tensor by tensor, for models whose flat gradient would be too large to hold.

The result is that of `MPDD.encode` and `MPDD.decode_mean` on the flat gradient, bit for bit.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from torch import Tensor

Float64 = NDArray[np.float64]


def encode_pieces(codec: MPDD, pieces: "Iterable[Float32] | Iterable[Tensor]", key: Key | int, *, d: int) -> Update:
    """Encode one gradient that comes as float32 arrays of any shape, in order, d coordinates in all.

    Pieces are used one by one and not kept, so that a generator may make each when it is asked for. Rademacher
    directions need a buffer of 4 MB at most besides, hadamard directions one of hadamard_size(d) floats. All pieces are
    arrays, or all are tensors on one GPU, which then does the work.
    """
    _check_codec(codec)
    key = check_key(key)
    codec.check(d, key.slot)
    remaining: Iterator[Any] = iter(pieces)
    begin = list(islice(remaining, 1))
    device = begin[0].device if begin and getattr(begin[0], "is_cuda", False) is True else None
    together = _handed_out(begin, remaining)
    if device is not None:
        scalars, moments = _project_on_gpu(codec, together, key, d, device)
    else:
        encode = {"rademacher": _encode_rademacher, "hadamard": _encode_hadamard}[codec.family]
        scalars, moments = encode(_Flattened(together, d, _flat_array), key, codec.m, d)
    return Update(codec, d, key, codec._arrays(scalars, moments, [key])[0])


def decode_pieces(
    codec: MPDD,
    updates: Sequence[Update],
    sizes: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    device: str | None = None,
) -> Iterator[Any]:
    """Estimate the (weighted) mean gradient of the updates, as flat arrays of these sizes, one after the other.

    With a device ("cuda", …) they are tensors there, and the GPU does the work.
    Rademacher directions need a buffer of 4 MB at most besides the array that is handed out. With hadamard directions
    the arrays are parts of one buffer of hadamard_size(d) floats; updates of different seeds need a second one.
    As `decode_mean`, it raises CodecError where the estimate is not finite, when that part of it is asked for.
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
    if device is not None:
        return _checked(codec, updates, _decode_on_gpu(codec, updates, factors, checked, d, device))
    decode = {"rademacher": _decode_rademacher, "hadamard": _decode_hadamard}[codec.family]
    return _checked(codec, updates, decode(codec, updates, factors, checked, d))


def _checked(codec: MPDD, updates: Sequence[Update], estimates: Iterator[Any]) -> Iterator[Any]:
    """Hand on the parts of an estimate; raise CodecError at the first that is not finite."""
    if codec._surely_finite(updates):
        return estimates
    return _looked_at(codec, updates, estimates)


def _looked_at(codec: MPDD, updates: Sequence[Update], estimates: Iterator[Any]) -> Iterator[Any]:
    for part in estimates:
        finite = np.isfinite(part) if isinstance(part, np.ndarray) else part.isfinite()
        if not bool(finite.all()):
            codec._refuse_estimate(updates)
        yield part
        del part, finite  # whoever makes the next one may need their memory


def _check_codec(codec: MPDD) -> None:
    if not isinstance(codec, MPDD):
        raise CodecError(f"pieces are for MPDD codecs, got {codec!r}; encode the whole gradient with codec.encode")


class _Flattened:
    """Pieces one by one, checked and flat; remembers where each began, to name the one that is to blame."""

    def __init__(self, pieces: Iterable[Any], d: int, flatten: Callable[[Any, str], Any]) -> None:
        self._pieces, self._d, self._flatten = pieces, d, flatten
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        total = 0
        for piece in self._pieces:
            name = f"pieces[{len(self._ends)}]"
            piece = self._flatten(piece, name)
            total += len(piece)
            if total > self._d:
                raise GradientError(
                    f"the pieces up to {name} have {total} coordinates, but d = {self._d}; pass each tensor of the "
                    "model once, and as d their sizes added up"
                )
            self._ends.append(total)
            yield piece
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


def _handed_out(begin: list[Any], remaining: Iterator[Any]) -> Iterator[Any]:
    """What is in the list, of which nothing is kept, and then the rest."""
    while begin:
        yield begin.pop()
    yield from remaining


def _flat_array(piece: Any, name: str) -> Float32:
    check_array(piece, name)
    return np.asarray(piece).reshape(-1)


def _project_on_gpu(codec: MPDD, pieces: Iterable[Any], key: Key, d: int, device: Any) -> tuple[Float32, Float64]:
    from fedmpdd.codecs import pieces_cuda

    flat = _Flattened(pieces, d, pieces_cuda.flat_tensor)
    scalars, moments = pieces_cuda.project(codec, flat, key, d, device)
    if not np.isfinite(moments[0, 0]):
        raise GradientError(
            "a coordinate of the pieces is NaN or infinite; all must be finite: lower the learning rate or clip "
            "before encoding"
        )
    return scalars, moments


def _decode_on_gpu(
    codec: MPDD, updates: Sequence[Update], factors: Float64, sizes: list[int], d: int, device: str
) -> "Iterator[Tensor]":
    from fedmpdd.codecs import pieces_cuda

    scalars, factors = codec._scalars(updates, factors)
    return pieces_cuda.estimate(codec, scalars, factors, [update.key for update in updates], sizes, d, device)


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
