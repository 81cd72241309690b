"""RandK: k coordinates that the key chooses, scaled d/k. The server knows the key, so that no index is sent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import as_float32, repeated_share
from fedmpdd.codecs._packing import check_finite_values, largest_size, length_of
from fedmpdd.codecs.base import Arrays, Codec, Float32, Parameters, Section, Update, check_count
from fedmpdd.directions import Key, check_d, check_finite, distinct_coordinates
from fedmpdd.errors import CodecError


@dataclass(frozen=True)
class RandK(Codec):
    """k coordinates of the key's choice, times d/k."""

    k: int

    name: ClassVar[str] = "randk"
    code: ClassVar[int] = 5
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("k", self.k, "coordinates")

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)
        if self.k > d:
            raise CodecError(f"k = {self.k} coordinates of d = {d}: k must not exceed d; lower k, or use fedsgd")

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return (Section("values", "<f4", self.k),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        check_finite_values(arrays[0])

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec. The key's order of coordinates is walked up to those of the slot."""
        return 32 * d + 1_024 * self.k + 192 * (slot * self.k % d)

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec."""
        return largest_size(np.concatenate([update.arrays[0] for update in updates]))

    def magnitude(self, update: Update) -> float:
        """See Codec: k of d coordinates, each times d/k."""
        return length_of(update.arrays[0]) * math.sqrt(self.k / update.d)

    def parameters(self) -> Parameters:
        """See Codec."""
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

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        check_finite(gradients)
        d = gradients.shape[1]
        chosen = np.take_along_axis(gradients, distinct_coordinates(keys, d, self.k), axis=1)
        values = as_float32(chosen * np.float64(d / self.k), "a coordinate times d/k")
        return [(row,) for row in values]

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        total = np.zeros(d)
        coordinates = distinct_coordinates([update.key for update in updates], d, self.k)
        for update, factor, chosen in zip(updates, factors, coordinates, strict=True):
            total[chosen] += factor * update.arrays[0]
        return total.astype(np.float32)
