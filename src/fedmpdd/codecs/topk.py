"""Top-k: the k coordinates that are largest by magnitude. Biased; its analysis is with error feedback."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedmpdd.codecs.backends import Array, Backend
from fedmpdd.codecs.base import Arrays, Codec, Columns, Parameters, Section, Update, check_count
from fedmpdd.codecs.evidence import Coordinates, Evidence
from fedmpdd.codecs.packing import check_finite_values, largest_of, length_of
from fedmpdd.directions import Key, check_d
from fedmpdd.errors import CodecError, ContentError

_MAX_D = 2**32  # indices are 32 bits


@dataclass(frozen=True)
class TopK(Codec):
    """k coordinates and where they are; of equal magnitudes the first ones."""

    k: int

    name: ClassVar[str] = "topk"
    code: ClassVar[int] = 4
    needs_key: ClassVar[bool] = False
    self_contained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("k", self.k, "coordinates")

    def check(self, d: int, slot: int = 0) -> None:
        check_d(d)
        if d > _MAX_D:
            raise CodecError(f"d = {d} is too large for topk: its indices have 32 bits; use randk, which sends none")
        if self.k > d:
            raise CodecError(f"k = {self.k} coordinates of d = {d}: k must not exceed d; lower k, or use fedsgd")

    def sections(self, d: int) -> tuple[Section, ...]:
        return Section("indices", "<u4", self.k), Section("values", "<f4", self.k)

    def check_content(self, arrays: Arrays, d: int) -> None:
        indices, values = arrays
        if int(indices[-1]) >= d or (indices[1:] <= indices[:-1]).any():
            raise ContentError(f"the indices are not ascending numbers below d = {d}: drop this update")
        check_finite_values(values)

    def work(self, d: int, slot: int = 0) -> int:
        return 32 * d + 256 * self.k

    def _bound(self, columns: Columns) -> float:
        return largest_of(columns[1])

    def evidence(self, updates: Sequence[Update]) -> Evidence:
        """See Codec: coordinates that were not sent say little."""
        return known_coordinates(self, updates)

    def magnitude(self, update: Update) -> float:
        return length_of(update.arrays[1])

    def parameters(self) -> Parameters:
        return Parameters(size=self.k)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.size)

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        indices = backend.zeros((len(keys), self.k), "<u4")
        together = backend.rows_at_once(gradients.shape[1])
        for start in range(0, len(keys), together):
            rows = slice(start, start + together)
            indices[rows] = backend.largest_places(backend.xp.abs(gradients[rows]), self.k)
        return indices, backend.take(gradients, backend.cast(indices, "<i8"))

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        return backend.scattered_sum(d, factors, *columns)


def known_coordinates(codec: Codec, updates: Sequence[Update]) -> Coordinates:
    """Return the coordinates that updates carry, where they carry some of them."""
    targets = np.stack([codec.decode_mean([update]) for update in updates])
    return Coordinates(targets, targets != 0)
