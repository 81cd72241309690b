"""QSGD: every coordinate rounded at random to one of a few levels between −‖g‖ and ‖g‖."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import as_float32, chunks, weighted_sum
from fedmpdd.codecs._packing import (
    check_scale,
    check_spare_bits,
    largest_size,
    pack_nibbles,
    packed_bytes,
    unpack_nibbles,
)
from fedmpdd.codecs.base import Arrays, Codec, Float32, Parameters, Section, Update, check_bits
from fedmpdd.directions import Key, check_d, moments, rounding_words
from fedmpdd.errors import ContentError

BITS = (8, 4)


@dataclass(frozen=True)
class QSGD(Codec):
    """d levels of `bits` bits, sign included, and the norm."""

    bits: int = 8

    name: ClassVar[str] = "qsgd"
    code: ClassVar[int] = 3
    unbiased: ClassVar[bool] = True
    needs_key: ClassVar[bool] = False  # the key rounds at the client; the server reads levels
    variance_is_bound: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)

    @property
    def levels(self) -> int:
        """The s of the paper: levels are −levels … levels."""
        return int(2 ** (self.bits - 1)) - 1

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        if self.bits == 8:
            return Section("norm", "<f4", 1), Section("levels", "<i1", d)
        return Section("norm", "<f4", 1), Section("levels", "|u1", packed_bytes(d, 4))

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        norm, packed = float(arrays[0][0]), arrays[1]
        check_scale(norm, packed)
        if self.bits == 4:
            check_spare_bits(packed, d, 4)
        for part in chunks(d):
            if (self._unpack(packed, part) < -self.levels).any():
                raise ContentError(f"a level is {-self.levels - 1}; levels are ±{self.levels}: drop this update")

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec."""
        return (64 if self.bits == 8 else 128) * d

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec. No level is above the norm."""
        return largest_size(np.concatenate([update.arrays[0] for update in updates]))

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(second=self.bits)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.second)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """Return the known bound min(d/s², √d/s), over n: clients round independently, partitioned or not."""
        return min(d / self.levels**2, math.sqrt(d) / self.levels) / n

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        # Rounded to float32 the norm is still not below any |g_i|, a float32 itself: no level can exceed s.
        norms = as_float32(np.sqrt(moments(gradients)[:, 0]), "the norm")
        return [(norms[i : i + 1], self._round(gradients[i], float(norms[i]), key)) for i, key in enumerate(keys)]

    def _round(self, gradient: Float32, norm: float, key: Key) -> NDArray[Any]:
        """Levels as they are sent: ⌊x + u⌋ with u uniform, which is one of the two levels around x and on average x."""
        levels = np.zeros(gradient.size, dtype=np.int8)
        if norm > 0:
            words = rounding_words([key], gradient.size)[0]
            for part in chunks(gradient.size):
                # In this order, since s·g is exact and a quotient of at most 1 times s stays at most s.
                scaled = gradient[part].astype(np.float64) * self.levels / norm
                levels[part] = np.floor(scaled + (words[part] + 0.5) * 2.0**-32)
        return pack_nibbles(levels) if self.bits == 4 else levels

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        norms = np.concatenate([update.arrays[0] for update in updates])
        return weighted_sum(d, factors * norms / self.levels, lambda i, part: self._unpack(updates[i].arrays[1], part))

    def _unpack(self, packed: NDArray[Any], part: slice) -> NDArray[Any]:
        """Levels of some coordinates; a part starts at an even one."""
        if self.bits == 8:
            return packed[part]
        return unpack_nibbles(packed[part.start // 2 : -(-part.stop // 2)], part.stop - part.start)
