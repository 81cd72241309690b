"""Encode and decode tensor by tensor, for models whose flat gradient would be too large to hold.

The result is that of `encode` and `decode_mean` on the flat gradient, bit for bit; on a GPU the scale of signs is, up
to the order of a float64 sum.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import HOST, Backend, backend_of, backend_on
from fedmpdd.codecs.base import Batch, Codec, Float32, Update, mean_factors
from fedmpdd.codecs.cutting import CHUNK, gather, scatter
from fedmpdd.codecs.scalar_codec import ScalarCodec, Terms
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


def encode_pieces(codec: Codec, pieces: "Iterable[Float32] | Iterable[Tensor]", key: Key | int, *, d: int) -> Update:
    """Encode one gradient that comes as float32 arrays of any shape, in order, d coordinates in all.

    Pieces are used one by one and not kept, so that a generator may make each when it is asked for. Rademacher
    directions need a buffer of 4 MB at most besides, hadamard directions one of hadamard_size(d) floats. All pieces are
    arrays, or all are tensors on one GPU, which then does the work.
    """
    scalar_codec = _scalar_codec(codec)
    if not scalar_codec.in_a_row:
        raise CodecError(
            f"{codec.name} takes its directions from all over a pool; encode the whole gradient with codec.encode"
        )
    key = check_key(key)
    codec.check(d, key.slot)
    remaining: Iterator[Any] = iter(pieces)
    begin = list(islice(remaining, 1))
    gpu = begin[0].device if begin and getattr(begin[0], "is_cuda", False) is True else None
    backend = backend_on(None if gpu is None else str(gpu))
    stream = _HostStream() if gpu is None else _DeviceStream(backend)
    flat = _Flattened(chain(_released(begin), remaining), d, stream)
    make = {"rademacher": _project_rademacher, "hadamard": _project_hadamard}[scalar_codec.family]
    scalars, moments = make(stream, flat, key, scalar_codec.count, d)
    columns = scalar_codec.write(HOST, scalars, moments, [key])
    return Batch(codec, d, (key,), columns).updates()[0]


def decode_pieces(
    codec: Codec,
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
    scalar_codec = _scalar_codec(codec)
    d = codec._check_round(updates)
    try:
        checked = [index(size) for size in sizes]
    except TypeError:
        raise CodecError(f"sizes {sizes!r} are not numbers of coordinates; pass an int per tensor") from None
    if sum(checked) != d or min(checked) < 0:
        raise CodecError(
            f"sizes add up to {sum(checked)} and the smallest is {min(checked, default=0)}, but the updates are of "
            f"d = {d} coordinates; pass the size of every tensor, in the order in which they were encoded"
        )
    batch, backend = Batch.of(updates, device), backend_on(device)
    factors = backend.like(mean_factors(len(updates), weights))
    written = scalar_codec.scalars.read(backend, batch.columns, scalar_codec.count)
    if scalar_codec.family == "hadamard":
        whole = scalar_codec.combine(backend, written, batch.keys, factors, d)
        parts = _cut(whole, checked)
    else:
        terms = scalar_codec.terms(backend, written, batch.keys, factors)
        stream = _HostStream() if backend is HOST else _DeviceStream(backend)
        parts = scatter(checked, d, stream.empty, stream.filler(terms))
    return parts if batch.is_finite else _checked(codec, updates, parts)


def _scalar_codec(codec: Codec) -> ScalarCodec:
    if not isinstance(codec, Codec) or codec.scalar_codec is None:
        raise CodecError(
            f"pieces are for codecs with scalars along directions, such as MPDD, got {codec!r}; encode the whole "
            "gradient with codec.encode"
        )
    return codec.scalar_codec


def _cut(whole: Any, sizes: list[int]) -> Iterator[Any]:
    begin = 0
    for size in sizes:
        yield whole[begin : begin + size]
        begin += size


def _checked(codec: Codec, updates: Sequence[Update], estimates: Iterator[Any]) -> Iterator[Any]:
    """Hand on the parts of an estimate; raise CodecError at the first that is not finite."""
    for part in estimates:
        if not backend_of(part).all_finite(part):
            codec.refuse_estimate(updates)
        yield part
        del part  # whoever makes the next one may need its memory


def _released(begin: list[Any]) -> Iterator[Any]:
    """What is in the list, of which nothing is kept."""
    while begin:
        yield begin.pop()


class _Flattened:
    """Pieces one by one, checked and flat; remembers where each began, to name the one that is to blame."""

    def __init__(self, pieces: Iterable[Any], d: int, stream: "_HostStream | _DeviceStream") -> None:
        self._pieces, self._d, self._flatten = pieces, d, stream.flatten
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

    def check_finite(self, second_moment: float, coordinates: Any, first: int) -> None:
        """Raise GradientError, given that ‖g‖² is not finite, naming the one of these coordinates that is not."""
        if math.isfinite(second_moment):
            return
        values = coordinates if isinstance(coordinates, np.ndarray) else coordinates.cpu().numpy()
        offset = int(np.flatnonzero(~np.isfinite(values))[0])
        piece = bisect_right(self._ends, first + offset)
        begin = self._ends[piece - 1] if piece else 0
        raise GradientError(
            f"pieces[{piece}], flattened, is {values[offset]} at coordinate {first + offset - begin}; all must be "
            "finite: lower the learning rate or clip before encoding"
        )


class _HostStream:
    """Arrays, and the C++ kernels piece by piece."""

    def flatten(self, piece: Any, name: str) -> Any:
        check_array(piece, name)
        return np.asarray(piece).reshape(-1)

    def empty(self, size: int) -> Any:
        return np.empty(size, dtype=np.float32)

    def begin(self, key: Key, m: int, d: int) -> None:
        self._key, self._m, self._first = key, m, 0
        self._sums, self._lanes = np.zeros((1, m)), np.zeros((1, MOMENT_LANES))

    def add_moments(self, chunk: Any) -> Float64:
        return add_moments(chunk[np.newaxis], self._lanes)

    def add(self, chunk: Any) -> None:
        Rademacher().encode_slice(chunk[np.newaxis], self._first // TILE, [self._key], self._sums)
        self._first += len(chunk)

    def scalars(self) -> Float32:
        return Rademacher().scalars(self._sums)

    def transformed(self, buffer: Any, d: int) -> Float32:
        return Hadamard().encode_in_place(buffer, d, self._key, self._m)

    def filler(self, terms: Terms) -> Any:
        numbers, multipliers, keys, m, packed = terms

        def fill(out: Any, first_tile: int) -> None:
            out.fill(0)
            if packed:
                Rademacher().decode_signs_slice(numbers, multipliers, keys, m, out, first_tile)
            else:
                Rademacher().decode_slice(numbers, multipliers, keys, out, first_tile)

        return fill


class _DeviceStream:
    """The same for tensors on a GPU."""

    def __init__(self, backend: Backend) -> None:
        from fedmpdd.directions import cuda

        self._backend, self._cuda = backend, cuda

    def flatten(self, piece: Any, name: str) -> Any:
        self._cuda.check_tensor(piece, name)
        return piece.reshape(-1)

    def empty(self, size: int) -> Any:
        import torch

        return torch.empty(size, device=self._backend.device)

    def begin(self, key: Key, m: int, d: int) -> None:
        device = self._backend.device
        self._m = m
        self._hadamard_keys = self._cuda.hadamard_keys(device, [key], m, d)
        self._sums = self._cuda.RademacherSums(self._cuda.keys_on(device, [key], m), m)
        self._moments = self._backend.zeros((1, 2), "<f8")

    def add_moments(self, chunk: Any) -> Float64:
        self._moments += self._cuda.moments(chunk[None])
        return np.asarray(self._moments.cpu().numpy())

    def add(self, chunk: Any) -> None:
        self._sums.add(chunk[None])

    def scalars(self) -> Float32:
        return np.asarray(self._sums.scalars.cpu().numpy())

    def transformed(self, buffer: Any, d: int) -> Float32:
        scalars = self._cuda.hadamard_encode_in_place(buffer, d, self._hadamard_keys, self._m)
        return np.asarray(scalars.cpu().numpy())

    def filler(self, terms: Terms) -> Any:
        numbers, multipliers, keys, m, packed = terms
        if packed:
            numbers = 1.0 - 2.0 * self._backend.unpack_bits(numbers, m).float()
        there = self._cuda.keys_on(self._backend.device, keys, m)

        def fill(out: Any, first_tile: int) -> None:
            out.zero_()
            self._cuda.rademacher_decode(numbers, multipliers, there, out, votes=packed, first_tile=first_tile)

        return fill


def _project_rademacher(
    stream: "_HostStream | _DeviceStream", pieces: _Flattened, key: Key, m: int, d: int
) -> tuple[Float32, Float64]:
    """Scalars [1, m] and moments [1, 2] of a gradient in pieces."""
    stream.begin(key, m, d)
    moments, first = np.zeros((1, 2)), 0
    for chunk in gather(pieces, stream.empty(min(d, CHUNK))):
        moments = stream.add_moments(chunk)
        pieces.check_finite(moments[0, 0], chunk, first)
        stream.add(chunk)
        first += len(chunk)
        del chunk  # it may be a part of a piece
    return stream.scalars(), moments


def _project_hadamard(
    stream: "_HostStream | _DeviceStream", pieces: _Flattened, key: Key, m: int, d: int
) -> tuple[Float32, Float64]:
    """The same; the transform needs all coordinates at once, so that pieces go straight into its buffer."""
    stream.begin(key, m, d)
    buffer, first = stream.empty(hadamard_size(d)), 0
    for piece in pieces:
        buffer[first : first + len(piece)] = piece
        first += len(piece)
        del piece
    moments = stream.add_moments(buffer[:d])
    pieces.check_finite(moments[0, 0], buffer[:d], 0)
    return stream.transformed(buffer, d), moments
