"""Ferret: scalars along random directions, block by block, more of them where the update is large.

The original projects what local steps changed (`local_steps`, and a server step size of 1); any gradient will do. Its
directions have normal entries cut off at 1/√d, ours are ±1. Its blocks get scalars by their length, and as many in all
as that makes; ours are given a fixed number in all, by length times the root of the block's size, which is what makes
the error smallest. How they are shared out costs four bits a block.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import HOST, Array, Backend
from fedmpdd.codecs.base import LARGEST_COORDINATE, Arrays, Codec, Columns, Section, Update, check_count
from fedmpdd.codecs.packing import check_finite_values, check_spare_bits, largest_of, pack_nibbles, packed_bytes
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import CodecError, ContentError

LEVELS = 16
SHARE_OF_MEDIAN = 0.9  # of the sizes of parameters: neighbours make a block while they are no larger, as the original's
_BOUNDARIES = [2.0 ** -(level + 0.5) for level in range(LEVELS - 1)]  # of squared shares, half-way between two levels
_WEIGHTS = np.array([round(2.0 ** (16 - level / 2)) for level in range(LEVELS)], dtype=np.int64)
_FAMILY = "rademacher"


@dataclass(frozen=True)
class Ferret(Codec):
    """m scalars along directions of single blocks of the model, shared out by the lengths of the blocks.

    Example:
        >>> simulate(task, Ferret(m=240), local_steps=4, local_lr=0.01, lr=1.0)  # doctest: +SKIP

    """

    m: int
    shapes: tuple[int, ...] = ()  # coordinates of each parameter of the model, in order

    name: ClassVar[str] = "ferret"
    code: ClassVar[int] = 16
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("m", self.m, "scalars")

    def for_shapes(self, shapes: Sequence[tuple[int, ...]]) -> "Ferret":
        return replace(self, shapes=tuple(math.prod(shape) for shape in shapes))

    def blocks(self) -> list[slice]:
        """Return the coordinates of each block."""
        return _blocks(self.shapes)

    def check(self, d: int, slot: int = 0) -> None:
        super().check(d, slot)
        if sum(self.shapes) != d:
            raise CodecError(f"ferret is for {sum(self.shapes)} parameters, the gradient has {d}; use for_shapes first")
        blocks = len(self.blocks())
        if self.m < blocks:
            raise CodecError(f"m = {self.m}: each of the {blocks} blocks of the model needs a scalar; raise m")

    def sections(self, d: int) -> tuple[Section, ...]:
        levels = Section("levels", "|u1", packed_bytes(len(self.blocks()), 4))
        return levels, Section("scalars", "<f4", self.m)

    def check_content(self, arrays: Arrays, d: int) -> None:
        packed, scalars = arrays
        check_spare_bits(packed, len(self.blocks()), 4)
        check_finite_values(scalars, LARGEST_COORDINATE)
        levels = self._levels(HOST, packed[np.newaxis])[0]
        if levels.min() > 0 and (scalars.any() or levels.min() < LEVELS - 1):
            raise ContentError("no block has level 0, which the largest one has: drop this update")

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec: as if the largest block had all scalars that may be its own."""
        blocks = self.blocks()
        largest = max(block.stop - block.start for block in blocks)
        return int(largest * (self.m - len(blocks) + 1) + d + 1_000_000 * len(blocks))

    def magnitude(self, update: Update) -> float:
        """See Codec: the scalars of a block have about its length as their deviation."""
        squares = np.square(update.arrays[1].astype(np.float64))
        return math.sqrt(sum(float(squares[part].mean()) for _, part, _ in self._parts(HOST, update.arrays[0])))

    def _bound(self, columns: Columns) -> float:
        return largest_of(columns[1])

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        pieces = [self._piece(backend, gradients, block) for block in self.blocks()]
        sizes = backend.like(np.array([float(block.stop - block.start) for block in self.blocks()]))
        squares = backend.xp.stack([backend.moments(piece)[:, 0] for piece in pieces], 1) * sizes
        largest = backend.xp.amax(squares, axis=1)
        shares = squares / backend.xp.where(largest > 0, largest, 1.0)[:, None]
        levels = backend.settled(lambda factor: _levels_of(backend, shares * factor))
        packed = pack_nibbles(backend, levels)
        rows = []
        for client, key in enumerate(keys):
            row = [
                backend.project(_FAMILY, pieces[number][client : client + 1], [_block_key(key, number)], count)
                for number, count in enumerate(_counts(backend.host(levels[client]), self.m))
            ]
            rows.append(backend.xp.concatenate(row, 1)[0])
        scalars = backend.xp.stack(rows)
        backend.require(
            backend.xp.abs(scalars) <= LARGEST_COORDINATE,  # NaN is not
            f"a projection is above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave float32: the "
            "gradient is too large; scale or clip it before encoding",
        )
        return backend.cast(packed, "|u1"), scalars

    def _piece(self, backend: Backend, gradients: Array, block: slice) -> Array:
        """A block of all gradients, contiguous."""
        piece = backend.zeros((len(gradients), block.stop - block.start), "<f4")
        piece[:] = gradients[:, block]
        return piece

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        out = backend.zeros((d,), "<f4")
        packed, scalars = (backend.stacked(column) for column in columns)
        for i, key in enumerate(keys):
            for number, part, block in self._parts(backend, packed[i]):
                size, count = block.stop - block.start, part.stop - part.start
                some = backend.cast(scalars[i : i + 1, part], "<f4")
                factor = factors[i : i + 1] / count
                out[block] += backend.combine(_FAMILY, some, factor, [_block_key(key, number)], size)
        return out

    def _levels(self, backend: Backend, packed: Array) -> NDArray[np.int64]:
        """The levels of all blocks [updates, blocks], on the CPU."""
        rows = np.asarray(backend.host(packed)).astype(np.int64)
        return np.stack([rows & 15, rows >> 4], -1).reshape(len(rows), -1)[:, : len(self.blocks())]

    def _parts(self, backend: Backend, packed: Array) -> Iterator[tuple[int, slice, slice]]:
        """Yield each block's number, which of the scalars are its own, and which coordinates."""
        begin = 0
        counts = _counts(self._levels(backend, packed[None])[0], self.m)
        for number, (count, block) in enumerate(zip(counts, self.blocks(), strict=True)):
            yield number, slice(begin, begin + count), block
            begin += count


def _levels_of(backend: Backend, shares: Array) -> Array:
    """Levels 0 … 15 of blocks whose squared length times size has these shares of the largest: 2^−level, rounded."""
    levels = backend.zeros(tuple(shares.shape), "|u1")
    for boundary in _BOUNDARIES:
        levels = levels + backend.cast(shares < boundary, "|u1")
    return levels


def _counts(levels: NDArray[np.integer], m: int) -> list[int]:
    """How many of m scalars each block gets: one, and of the others its share by weight, largest remainders first."""
    weights = _WEIGHTS[levels.astype(np.int64)]
    total, rest = int(weights.sum()), m - len(weights)
    whole = [rest * int(weight) // total for weight in weights]
    remainders = [rest * int(weight) % total for weight in weights]
    for number in sorted(range(len(weights)), key=lambda number: -remainders[number])[: rest - sum(whole)]:
        whole[number] += 1
    return [count + 1 for count in whole]


def _block_key(key: Key, number: int) -> Key:
    """Return the key of the directions of a block: a seed of its own."""
    return Key(derive_seed(key.seed, key.slot, 2 + number))


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...]) -> list[slice]:
    target = int(SHARE_OF_MEDIAN * median(sizes)) if sizes else 0
    blocks: list[slice] = []
    begin = end = 0
    for size in sizes:
        if end > begin and end - begin + size > target:
            blocks.append(slice(begin, end))
            begin = end
        end += size
    return [*blocks, slice(begin, end)] if end > begin else blocks
