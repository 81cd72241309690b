"""lp-proj: projections onto one fixed random subspace that all clients and all rounds share.

Biased: what is orthogonal to the subspace is never sent, so that training only moves within it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from fedmpdd.codecs.backends import HOST, Array, Backend, as_float32
from fedmpdd.codecs.base import (
    LARGEST_COORDINATE,
    Arrays,
    Codec,
    Columns,
    Float32,
    Parameters,
    Section,
    Update,
    check_count,
)
from fedmpdd.codecs.packing import check_finite_values, largest_of, length_of
from fedmpdd.directions import Key, check_d
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
    needs_key: ClassVar[bool] = False
    self_contained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("size", self.size, "rows")

    def check(self, d: int, slot: int = 0) -> None:
        check_d(d)
        if self.size > d:
            raise CodecError(
                f"size = {self.size} rows for d = {d}: a subspace has at most d dimensions; lower size, or use fedsgd"
            )

    def sections(self, d: int) -> tuple[Section, ...]:
        return (Section("scalars", "<f4", self.size),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        check_finite_values(arrays[0], self._largest_scalar)

    def magnitude(self, update: Update) -> float:
        """See Codec: of d dimensions the subspace has `size`."""
        return length_of(update.arrays[0]) * math.sqrt(update.d / self.size)

    def parameters(self) -> Parameters:
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

    def _bound(self, columns: Columns) -> float:
        return self.size * largest_of(columns[0])

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        if backend is not HOST:
            scalars = backend.product(gradients, _matrix_on(backend, self.size, gradients.shape[1]).T)
            return (as_float32(backend, scalars, "a projection", self._largest_scalar),)
        scalars = np.empty((len(keys), self.size), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            for rows, matrix in matrix_rows(self.size, gradients.shape[1]):
                # Client by client: one product of all would round differently with the number of clients.
                for client, gradient in enumerate(gradients):
                    # einsum, not @: BLAS would round differently with its number of threads.
                    scalars[client, rows] = np.einsum("rd,d->r", matrix, gradient)
        return (as_float32(backend, scalars, "a projection", self._largest_scalar),)

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        scalars = backend.weighted_sum(self.size, factors, lambda i, part: columns[0][i][part])
        if backend is not HOST:
            return backend.product(scalars[None], _matrix_on(backend, self.size, d))[0]
        out = np.zeros(d, dtype=np.float32)
        for rows, matrix in matrix_rows(self.size, d):
            out += np.einsum("r,rd->d", scalars[rows], matrix)
        return out


_on_devices: dict[tuple[str, int, int], Array] = {}  # the last one: a matrix can be as large as a model is long


def _matrix_on(backend: Backend, size: int, d: int) -> Array:
    """The whole of P on a GPU, where there is room for it."""
    name = (str(backend.device), size, d)
    if name not in _on_devices:
        _on_devices.clear()
        _on_devices[name] = backend.like(np.concatenate([rows for _, rows in matrix_rows(size, d)]))
    return _on_devices[name]


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
