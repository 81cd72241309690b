"""Top-k: the k coordinates that are largest by magnitude. Biased; its analysis is with error feedback."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._packing import check_finite_values, largest_size, length_of
from fedmpdd.codecs.base import Arrays, Codec, Float32, Parameters, Section, Update, check_count
from fedmpdd.directions import Key, check_d, check_finite
from fedmpdd.errors import CodecError, ContentError

_MAX_D = 2**32  # indices are 32 bits


@dataclass(frozen=True)
class TopK(Codec):
    """k coordinates and where they are; of equal magnitudes the first ones."""

    k: int

    name: ClassVar[str] = "topk"
    code: ClassVar[int] = 4
    unbiased: ClassVar[bool] = False
    needs_key: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count("k", self.k, "coordinates")

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)
        if d > _MAX_D:
            raise CodecError(f"d = {d} is too large for topk: its indices have 32 bits; use randk, which sends none")
        if self.k > d:
            raise CodecError(f"k = {self.k} coordinates of d = {d}: k must not exceed d; lower k, or use fedsgd")

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return Section("indices", "<u4", self.k), Section("values", "<f4", self.k)

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        indices, values = arrays
        if int(indices[-1]) >= d or (indices[1:] <= indices[:-1]).any():
            raise ContentError(f"the indices are not ascending numbers below d = {d}: drop this update")
        check_finite_values(values)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec."""
        return 32 * d + 256 * self.k

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec."""
        return largest_size(np.concatenate([update.arrays[1] for update in updates]))

    def magnitude(self, update: Update) -> float:
        """See Codec."""
        return length_of(update.arrays[1])

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(size=self.k)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.size)

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        check_finite(gradients)
        chosen = [_largest(np.abs(gradient), self.k) for gradient in gradients]
        return [(indices.astype("<u4"), gradient[indices]) for indices, gradient in zip(chosen, gradients, strict=True)]

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        total = np.zeros(d)
        for update, factor in zip(updates, factors, strict=True):
            indices, values = update.arrays
            total[indices] += factor * values
        return total.astype(np.float32)


def _largest(magnitudes: Float32, k: int) -> NDArray[np.intp]:
    """Indices, ascending, of the k largest; those that equal the smallest of these come in by index."""
    smallest = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
    above = np.flatnonzero(magnitudes > smallest)
    ties = np.flatnonzero(magnitudes == smallest)[: k - above.size]
    return np.sort(np.concatenate([above, ties]))
