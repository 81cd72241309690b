"""signSGD: the sign of every coordinate, with or without one scale. Biased; converges with error feedback."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.backends import Array, Backend
from fedmpdd.codecs.base import Arrays, Codec, Columns, Parameters, Section, Update
from fedmpdd.codecs.packing import check_scale, check_spare_bits, largest_of, packed_bytes
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError


@dataclass(frozen=True)
class SignSGD(Codec):
    """One bit a coordinate, set for −1. Scaled by the mean magnitude ‖g‖₁/d, or as plain ±1."""

    scaled: bool = True

    name: ClassVar[str] = "signsgd"
    code: ClassVar[int] = 9
    needs_key: ClassVar[bool] = False
    self_contained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.scaled, bool):
            raise CodecError(f"scaled = {self.scaled!r} is neither True nor False: say whether a scale is sent")

    def sections(self, d: int) -> tuple[Section, ...]:
        signs = Section("signs", "|u1", packed_bytes(d, 1))
        return (Section("scale", "<f4", 1), signs) if self.scaled else (signs,)

    def check_content(self, arrays: Arrays, d: int) -> None:
        signs = arrays[-1]
        if self.scaled:
            check_scale(float(arrays[0][0]), signs)
        check_spare_bits(signs, d, 1)

    def work(self, d: int, slot: int = 0) -> int:
        return 96 * d

    def _bound(self, columns: Columns) -> float:
        return largest_of(columns[0]) if self.scaled else 1.0

    def magnitude(self, update: Update) -> float:
        """See Codec: the same for all coordinates."""
        return math.sqrt(update.d) * (float(update.arrays[0][0]) if self.scaled else 1.0)

    def parameters(self) -> Parameters:
        return Parameters(first=int(self.scaled))

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(bool(parameters.first))

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        negative = gradients < 0
        if not self.scaled:
            return (backend.pack_bits(negative),)
        scales = backend.rounded(backend.mean(gradients, backend.xp.abs))[:, None]
        # Zero, or too small a mean for float32: then signs stand for nothing.
        return scales, backend.pack_bits(negative) * backend.cast(scales > 0, "|u1")

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        if self.scaled:
            factors = factors * backend.cast(backend.stacked(columns[0])[:, 0], "<f8")
        signs = columns[-1]

        def values(i: int, part: slice) -> Array:
            packed = signs[i][part.start // 8 : packed_bytes(part.stop, 1)]
            minus = backend.unpack_bits(packed[None], part.stop - part.start)[0]
            return 1.0 - 2.0 * backend.cast(minus, "<f8")

        return backend.weighted_sum(d, factors, values)
