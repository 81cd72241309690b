"""lp-proj: projections onto one fixed random subspace that all clients and all rounds share.

Biased: what is orthogonal to the subspace is never sent, so that training only moves within it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import as_float32
from fedmpdd.codecs._packing import check_finite_values, largest_size, length_of
from fedmpdd.codecs.base import (
    LARGEST_COORDINATE,
    Arrays,
    Codec,
    Float32,
    Parameters,
    Section,
    Update,
    check_count,
)
from fedmpdd.directions import Key, check_d, check_finite
from fedmpdd.errors import CodecError

MATRIX_SEED = 0x6C702D70726F6A  # "lp-proj"
_CHUNK_FLOATS = 1 << 20  # of the matrix at a time, or one row where that is longer
_KEPT_FLOATS = 1 << 23  # of a matrix that stays in memory


@dataclass(frozen=True)
class LpProj(Codec):
    """s = P g and ĝ = Pᵀ·mean(s), with P [size, d] of normal entries and unit rows, never stored."""

    size: int

    name: ClassVar[str] = "lp-proj"
    code: ClassVar[int] = 6
    unbiased: ClassVar[bool] = False
    needs_key: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count("size", self.size, "rows")

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)
        if self.size > d:
            raise CodecError(
                f"size = {self.size} rows for d = {d}: a subspace has at most d dimensions; lower size, or use fedsgd"
            )

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return (Section("scalars", "<f4", self.size),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        check_finite_values(arrays[0], self._largest_scalar)

    def magnitude(self, update: Update) -> float:
        """See Codec: of d dimensions the subspace has `size`."""
        return length_of(update.arrays[0]) * math.sqrt(update.d / self.size)

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(size=self.size)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.size)

    @property
    def _largest_scalar(self) -> float:
        """Rows have length 1, so that a coordinate is at most the sum of all scalars' sizes."""
        return LARGEST_COORDINATE / self.size

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec. The whole matrix is drawn, whoever asks: one normal number takes as long as 1,024 additions."""
        return 1_024 * d * self.size

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec."""
        return self.size * largest_size(np.concatenate([update.arrays[0] for update in updates]))

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        check_finite(gradients)
        scalars = np.empty((gradients.shape[0], self.size), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            for rows, matrix in matrix_rows(self.size, gradients.shape[1]):
                # Client by client: one product of all would round differently with the number of clients.
                for client, gradient in enumerate(gradients):
                    # einsum, not @: BLAS would round differently with its number of threads.
                    scalars[client, rows] = np.einsum("rd,d->r", matrix, gradient)
        return [(row,) for row in as_float32(scalars, "a projection", self._largest_scalar)]

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        mean = np.zeros(self.size)
        for update, factor in zip(updates, factors, strict=True):
            mean += factor * update.arrays[0]
        scalars = mean.astype(np.float32)
        out = np.zeros(d, dtype=np.float32)
        for rows, matrix in matrix_rows(self.size, d):
            out += np.einsum("r,rd->d", scalars[rows], matrix)
        return out


def matrix_rows(size: int, d: int) -> Iterator[tuple[slice, Float32]]:
    """Yield P in chunks of rows. Row r depends on r and d alone."""
    step = max(1, _CHUNK_FLOATS // d)
    make = _kept if size * d <= _KEPT_FLOATS else _made
    for start in range(0, size, step):
        stop = min(size, start + step)
        yield slice(start, stop), make(start, stop, d)


def _made(start: int, stop: int, d: int) -> Float32:
    matrix = np.empty((stop - start, d), dtype=np.float32)
    for r, row in enumerate(matrix, start):
        generator = np.random.Generator(np.random.Philox(key=np.array([MATRIX_SEED, r], dtype=np.uint64)))
        generator.standard_normal(out=row, dtype=np.float32)
        row /= np.float32(np.sqrt(np.square(row, dtype=np.float64).sum()))
    matrix.flags.writeable = False
    return matrix


# Drawing a small matrix takes longer than multiplying by it, round after round; a large one is never whole in memory.
_kept = lru_cache(maxsize=16)(_made)
