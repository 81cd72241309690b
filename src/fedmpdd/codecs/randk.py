"""RandK: k coordinates that the key chooses, scaled d/k. The server knows the key, so that no index is sent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.arithmetic import repeated_share
from fedmpdd.codecs.backends import Array, Backend, as_float32
from fedmpdd.codecs.base import Arrays, Codec, Columns, Parameters, Section, Update, check_count
from fedmpdd.codecs.evidence import Evidence
from fedmpdd.codecs.packing import check_finite_values, largest_of, length_of
from fedmpdd.codecs.topk import known_coordinates
from fedmpdd.directions import Key, check_d, distinct_coordinates
from fedmpdd.errors import CodecError


@dataclass(frozen=True)
class RandK(Codec):
    """k coordinates of the key's choice, times d/k."""

    k: int

    name: ClassVar[str] = "randk"
    code: ClassVar[int] = 5
    unbiased: ClassVar[bool] = True
    self_contained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("k", self.k, "coordinates")

    def check(self, d: int, slot: int = 0) -> None:
        check_d(d)
        if self.k > d:
            raise CodecError(f"k = {self.k} coordinates of d = {d}: k must not exceed d; lower k, or use fedsgd")

    def sections(self, d: int) -> tuple[Section, ...]:
        return (Section("values", "<f4", self.k),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        check_finite_values(arrays[0])

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec. The key's order of coordinates is walked up to those of the slot."""
        return 32 * d + 1_024 * self.k + 192 * (slot * self.k % d)

    def _bound(self, columns: Columns) -> float:
        return largest_of(columns[0])

    def evidence(self, updates: Sequence[Update]) -> Evidence:
        """See Codec: coordinates that were not sent say nothing."""
        return known_coordinates(self, updates)

    def magnitude(self, update: Update) -> float:
        """See Codec: k of d coordinates, each times d/k."""
        return length_of(update.arrays[0]) * math.sqrt(self.k / update.d)

    def parameters(self) -> Parameters:
        return Parameters(size=self.k)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.size)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """Return (d/k − 1)/n with independent keys.

        Partitioned, clients have different coordinates until all were used, and errors cancel as far as gradients
        agree; `alignment` is ‖mean gradient‖² / mean ‖gradient‖², by default 1/n, unrelated gradients.
        """
        independent = (d / self.k - 1) / n
        if not partitioned or n == 1 or alignment is None:
            return independent
        # Of two clients' errors on a coordinate: −1 if only one can have it, d/k where both do.
        return independent + (d * repeated_share(d, self.k, n) - 1) * (alignment - 1 / n)

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        d = gradients.shape[1]
        chosen = backend.take(gradients, backend.like(distinct_coordinates(keys, d, self.k)))
        return (as_float32(backend, backend.cast(chosen, "<f8") * (d / self.k), "a coordinate times d/k"),)

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        return backend.scattered_sum(d, factors, backend.like(distinct_coordinates(keys, d, self.k)), columns[0])
