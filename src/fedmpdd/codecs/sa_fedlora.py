"""SA-FedLora: low-rank factors of each layer's update, the rank shrinking over the rounds.

The schedule of the original is not public. Ours: `warmup` rounds of whole gradients, then rank · cooling^k, rounded,
never below `smallest`. The factors are the best this form allows up to one power iteration (Q = orth(G A) for a fixed
random A, Q again from G Gᵀ Q, then Qᵀ G), where the original trains them for some local steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import HOST, Array, Backend, as_float32
from fedmpdd.codecs.base import (
    LARGEST_COORDINATE,
    Arrays,
    Codec,
    Columns,
    Float32,
    Parameters,
    Section,
    check_count,
)
from fedmpdd.codecs.fedsgd import FedSGD
from fedmpdd.codecs.packing import check_finite_values, largest_size
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError, ContentError

_START_SEED = 20_240  # of the fixed matrices A


def start_matrix(number: int, columns: int, rank: int) -> NDArray[np.float64]:
    """Return the fixed random matrix A of a model's parameter."""
    return np.random.default_rng([_START_SEED, number]).standard_normal((columns, rank))


@dataclass(frozen=True)
class SAFedLora(Codec):
    """Per matrix of the model r·(rows + columns) floats; vectors, and matrices too small to gain, go whole."""

    rank: int = 8
    smallest: int = 1
    warmup: int = 10
    cooling: float = 0.995
    shapes: tuple[tuple[int, int], ...] = ()  # (rows, columns) of each parameter in order; columns 0: a vector

    name: ClassVar[str] = "sa-fedlora"
    code: ClassVar[int] = 12
    needs_key: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count("rank", self.rank, "columns of a factor")
        check_count("smallest", self.smallest, "columns of a factor")
        whole = isinstance(self.warmup, int) and not isinstance(self.warmup, bool)
        number = isinstance(self.cooling, int | float)
        if not (whole and number) or not 0 < self.cooling <= 1 or self.warmup < 0 or self.smallest > self.rank:
            raise CodecError(
                f"cooling = {self.cooling}, warmup = {self.warmup}, smallest = {self.smallest}: expected a cooling "
                f"above 0 and at most 1, a warmup of at least 0, and smallest at most rank = {self.rank}"
            )

    def for_shapes(self, shapes: Sequence[tuple[int, ...]]) -> "SAFedLora":
        """See Codec. A convolution [out, in, k, k] is a matrix out × in·k²."""
        flat = tuple((s[0], int(np.prod(s[1:]))) if len(s) > 1 else (int(np.prod(s)), 0) for s in shapes)
        return replace(self, shapes=flat)

    def at_round(self, round_number: int) -> Codec:
        """See Codec: the annealing schedule."""
        if round_number < self.warmup:
            return FedSGD()
        rank = max(self.smallest, round(self.rank * self.cooling ** (round_number - self.warmup)))
        return replace(self, rank=rank, smallest=min(self.smallest, rank), warmup=0, cooling=1.0)

    def layers(self) -> list[tuple[int, int, int]]:
        """Return (rows, columns, rank) per parameter; rank 0 where it goes whole."""
        layers = []
        for rows, columns in self.shapes:
            rank = min(self.rank, rows, columns)
            layers.append((rows, columns, rank if rank * (rows + columns) < rows * columns else 0))
        return layers

    def check(self, d: int, slot: int = 0) -> None:
        size = sum(rows * max(columns, 1) for rows, columns in self.shapes)
        if size != d:
            raise CodecError(f"sa-fedlora is for {size} parameters, the gradient has {d}; use for_shapes first")

    def sections(self, d: int) -> tuple[Section, ...]:
        length = sum(r * (rows + columns) if r else rows * max(columns, 1) for rows, columns, r in self.layers())
        return (Section("factors", "<f4", length),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        check_finite_values(arrays[0])
        if self._reach(arrays[0]) > LARGEST_COORDINATE:
            raise ContentError(
                f"the factors of a layer have products above {LARGEST_COORDINATE:.4g}: the estimate could leave "
                "float32; drop this update"
            )

    def _reach(self, values: Float32) -> float:
        """Return what no product of the two factors of a layer exceeds: rank · max|left| · max|right|."""
        reach, begin = 0.0, 0
        for rows, columns, rank in self.layers():
            middle, end = begin + rows * rank, begin + rank * (rows + columns)
            if rank:
                reach = max(reach, rank * largest_size(values[begin:middle]) * largest_size(values[middle:end]))
            begin = end if rank else begin + rows * max(columns, 1)
        return reach

    def work(self, d: int, slot: int = 0) -> int:
        return sum(rows * max(columns, 1) * (96 + 3 * r) for rows, columns, r in self.layers())

    def parameters(self) -> Parameters:
        """See Codec. The shapes do not fit a header: such frames are read in a session only."""
        return Parameters(size=self.rank)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        raise CodecError("sa-fedlora frames do not carry the model's shapes; read them in a Session")

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        parts, offset = [], 0
        for number, (rows, columns, rank) in enumerate(self.layers()):
            size = rows * max(columns, 1)
            layer = backend.cast(gradients[:, offset : offset + size], "<f8")
            offset += size
            if rank:
                start = backend.like(start_matrix(number, columns, rank))
                left, right = _factors(backend, layer.reshape(-1, rows, columns), start)
                parts += [left.reshape(len(keys), -1), right.reshape(len(keys), -1)]
            else:
                parts.append(layer)
        factors = as_float32(backend, backend.xp.concatenate(parts, axis=1), "a factor")
        for values in factors if backend is HOST else ():  # a GPU's are looked at once they are decoded
            if self._reach(values) > LARGEST_COORDINATE:
                raise CodecError(
                    f"the product of two factors could be above {LARGEST_COORDINATE:.4g}, beyond which an estimate "
                    "could leave float32: the gradient is too large; scale or clip it before encoding"
                )
        return (factors,)

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        if backend is not HOST:
            return self._decode_together(backend, columns[0], factors)
        out = backend.zeros((d,), "<f8")
        for client, factor in zip(columns[0], factors.tolist(), strict=True):
            values, begin, offset = backend.cast(client, "<f8"), 0, 0
            for rows, width, rank in self.layers():
                size = rows * max(width, 1)
                if rank:
                    middle, end = begin + rows * rank, begin + rank * (rows + width)
                    left = values[begin:middle].reshape(rows, rank)
                    layer = (left @ values[middle:end].reshape(rank, width)).reshape(-1)
                else:
                    end = begin + size
                    layer = values[begin:end]
                out[offset : offset + size] += factor * layer
                begin, offset = end, offset + size
        return backend.cast(out, "<f4")

    def _decode_together(self, backend: Backend, rows: Array, factors: Array) -> Array:
        """Sum of all updates, a product of two matrices a layer: Σ f·L·R = [f₁L₁ f₂L₂ …]·[R₁; R₂; …]."""
        values, begin, layers = backend.cast(backend.stacked(rows), "<f8"), 0, []
        weighted = values * factors[:, None]
        for height, width, rank in self.layers():
            middle, end = begin + height * rank, begin + (rank * (height + width) if rank else height * max(width, 1))
            if rank:
                left = weighted[:, begin:middle].reshape(-1, height, rank).swapaxes(0, 1).reshape(height, -1)
                layers.append((left @ values[:, middle:end].reshape(-1, width)).reshape(-1))
            else:
                layers.append(weighted[:, begin:end].sum(0))
            begin = end
        return backend.cast(backend.xp.concatenate(layers), "<f4")


def _factors(backend: Backend, matrices: Array, start: Array) -> tuple[Array, Array]:
    """The two factors of each matrix [clients, rows, columns]: one power iteration from a fixed start."""
    if backend is HOST:
        pairs = []
        for matrix in matrices:
            left, _ = np.linalg.qr(matrix @ start)
            left, _ = np.linalg.qr(matrix @ (matrix.T @ left))
            pairs.append((left, left.T @ matrix))
        lefts, rights = zip(*pairs, strict=True)
        return np.stack(lefts), np.stack(rights)
    left = _orthonormal(backend, matrices @ start)
    left = _orthonormal(backend, matrices @ (matrices.mT @ left))
    return left, left.mT @ matrices


def _orthonormal(backend: Backend, columns: Array) -> Array:
    """Orthonormal columns that span those of each matrix [clients, rows, rank]; zeros for what depends on others.

    Gram and Schmidt, each projection taken twice. A handful of kernels a column for all clients at once, where
    `torch.linalg.qr` on a GPU takes the matrices one by one: half a second a round with a hundred clients.
    """
    basis = backend.zeros(tuple(columns.shape), "<f8")
    for j in range(columns.shape[2]):
        column = columns[:, :, j : j + 1]
        whole = column.norm(dim=1, keepdim=True)
        for _ in range(2):
            column = column - basis @ (basis.mT @ column)
        length = column.norm(dim=1, keepdim=True)
        independent = length > 1e-14 * whole
        basis[:, :, j : j + 1] = backend.xp.where(independent, column / backend.xp.where(independent, length, 1.0), 0.0)
    return basis
