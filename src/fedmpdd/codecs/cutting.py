"""How the tensors of a model are cut into the slices that kernels work on, and slices into tensors.

Bookkeeping alone: whatever has a length, and slices that can be read and written, will do, on any device.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self, TypeVar

from fedmpdd.directions import RUN, TILE

CHUNK = 32 * RUN  # coordinates, 4 MB: small pieces are brought together, so that a kernel has something to share out


class Flat(Protocol):
    """A one-dimensional array."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...
    def __setitem__(self, part: slice, values: Any, /) -> None: ...


Array = TypeVar("Array", bound=Flat)


def gather(pieces: Iterable[Array], buffer: Array) -> Iterator[Array]:
    """Yield the coordinates of all pieces in order, in slices of which each but the last is a multiple of RUN long.

    Large pieces are passed on where they are, as far as whole runs of them go; the rest comes together in `buffer`,
    which is CHUNK long, or as long as all pieces if they are shorter. A slice is good until the next is asked for.
    """
    filled = 0
    for piece in pieces:
        begin = 0
        if filled + len(piece) >= CHUNK:
            begin = -filled % RUN
            buffer[filled : filled + begin] = piece[:begin]
            if filled:
                yield buffer[: filled + begin]
            filled = 0
            end = begin + (len(piece) - begin) // RUN * RUN
            if end > begin:
                yield piece[begin:end]
            begin = end
        rest = len(piece) - begin
        buffer[filled : filled + rest] = piece[begin:]
        filled += rest
        del piece  # it may be the only one left to hold it while the next is made
    if filled:
        yield buffer[:filled]


def scatter(
    sizes: Iterable[int], d: int, empty: Callable[[int], Array], fill: Callable[[Array, int], None]
) -> Iterator[Array]:
    """Yield arrays of these sizes, d coordinates in all, that `fill(slice, first_tile)` fills slice by slice.

    Large arrays are filled where they are, as far as whole tiles of them go; small ones, and the rest, are copied from
    a buffer of at most CHUNK coordinates. Every coordinate is asked for once, in order.
    """
    buffer = empty(min(d, CHUNK))
    begin = end = 0  # what is in the buffer and not yet used
    filled = 0
    for size in sizes:
        out = empty(size)
        done = min(size, end - begin)
        out[:done] = buffer[begin : begin + done]
        begin += done
        if size - done >= CHUNK:
            whole = (size - done) // TILE * TILE
            fill(out[done : done + whole], filled // TILE)
            filled += whole
            done += whole
        if done < size:
            end = min(CHUNK, d - filled)
            fill(buffer[:end], filled // TILE)
            filled += end
            begin = size - done
            out[done:] = buffer[:begin]
        yield out
        del out  # as above
