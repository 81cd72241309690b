"""signSGD: the sign of every coordinate, with or without one scale. Biased; converges with error feedback."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import weighted_sum
from fedmpdd.codecs._packing import check_scale, check_spare_bits, largest_size, packed_bytes
from fedmpdd.codecs.base import Arrays, Codec, Float32, Parameters, Section, Update
from fedmpdd.directions import Key, check_d, check_finite
from fedmpdd.errors import CodecError


@dataclass(frozen=True)
class SignSGD(Codec):
    """One bit a coordinate, set for −1. Scaled by the mean magnitude ‖g‖₁/d, or as plain ±1."""

    scaled: bool = True

    name: ClassVar[str] = "signsgd"
    code: ClassVar[int] = 9
    unbiased: ClassVar[bool] = False
    needs_key: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.scaled, bool):
            raise CodecError(f"scaled = {self.scaled!r} is neither True nor False: say whether a scale is sent")

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        signs = Section("signs", "|u1", packed_bytes(d, 1))
        return (Section("scale", "<f4", 1), signs) if self.scaled else (signs,)

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        signs = arrays[-1]
        if self.scaled:
            check_scale(float(arrays[0][0]), signs)
        check_spare_bits(signs, d, 1)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec."""
        return 96 * d

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec."""
        return largest_size(np.concatenate([update.arrays[0] for update in updates])) if self.scaled else 1.0

    def magnitude(self, update: Update) -> float:
        """See Codec: the same for all coordinates."""
        return math.sqrt(update.d) * (float(update.arrays[0][0]) if self.scaled else 1.0)

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(first=int(self.scaled))

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(bool(parameters.first))

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        check_finite(gradients)
        return [self._signs(gradient) for gradient in gradients]

    def _signs(self, gradient: Float32) -> Arrays:
        signs = np.packbits(gradient < 0, bitorder="little")
        if not self.scaled:
            return (signs,)
        scale = np.abs(gradient).mean(dtype=np.float64, keepdims=True).astype(np.float32)
        if scale[0] == 0:  # zero, or too small a mean for float32: then signs stand for nothing
            signs[:] = 0
        return scale, signs

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        if self.scaled:
            factors = factors * np.concatenate([update.arrays[0] for update in updates])

        def values(i: int, part: slice) -> NDArray[np.floating]:
            packed = updates[i].arrays[-1][part.start // 8 : packed_bytes(part.stop, 1)]
            return 1.0 - 2.0 * np.unpackbits(packed, count=part.stop - part.start, bitorder="little")

        return weighted_sum(d, factors, values)
