"""QSGD: every coordinate rounded at random to one of a few levels between −‖g‖ and ‖g‖."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.backends import CHUNK, HOST, Array, Backend, as_float32
from fedmpdd.codecs.base import Arrays, Codec, Columns, Parameters, Section, check_bits
from fedmpdd.codecs.packing import (
    check_scale,
    check_spare_bits,
    largest_of,
    pack_nibbles,
    packed_bytes,
    unpack_nibbles,
)
from fedmpdd.directions import Key
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
    self_contained: ClassVar[bool] = True
    variance_is_bound: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)

    @property
    def levels(self) -> int:
        """The s of the paper: levels are −levels … levels."""
        return int(2 ** (self.bits - 1)) - 1

    def sections(self, d: int) -> tuple[Section, ...]:
        if self.bits == 8:
            return Section("norm", "<f4", 1), Section("levels", "<i1", d)
        return Section("norm", "<f4", 1), Section("levels", "|u1", packed_bytes(d, 4))

    def check_content(self, arrays: Arrays, d: int) -> None:
        norm, packed = float(arrays[0][0]), arrays[1]
        check_scale(norm, packed)
        if self.bits == 4:
            check_spare_bits(packed, d, 4)
        for start in range(0, d, CHUNK):
            part = slice(start, min(d, start + CHUNK))
            if (self._unpack(HOST, packed, part) < -self.levels).any():
                raise ContentError(f"a level is {-self.levels - 1}; levels are ±{self.levels}: drop this update")

    def work(self, d: int, slot: int = 0) -> int:
        return (64 if self.bits == 8 else 128) * d

    def _bound(self, columns: Columns) -> float:
        """See Codec. No level is above the norm."""
        return largest_of(columns[0])

    def parameters(self) -> Parameters:
        return Parameters(second=self.bits)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.second)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """Return the known bound min(d/s², √d/s), over n: clients round independently, partitioned or not."""
        return min(d / self.levels**2, math.sqrt(d) / self.levels) / n

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        # Rounded to float32 the norm is still not below any |g_i|, a float32 itself: no level can exceed s.
        exact = backend.xp.sqrt(backend.moments(gradients)[:, 0])
        norms = as_float32(backend, backend.rounded(exact), "the norm")
        d, together = gradients.shape[1], backend.rows_at_once(gradients.shape[1])
        dtype, length = ("<i1", d) if self.bits == 8 else ("|u1", packed_bytes(d, 4))
        packed = backend.zeros((len(keys), length), dtype)
        for start in range(0, len(keys), together):
            rows = slice(start, start + together)
            packed[rows] = self._round(backend, gradients[rows], norms[rows], keys[rows])
        return norms[:, None], packed

    def _round(self, backend: Backend, gradients: Array, norms: Array, keys: list[Key]) -> Array:
        """Levels as they are sent: ⌊x + u⌋ with u uniform, which is one of the two levels around x and on average x."""
        xp, d = backend.xp, gradients.shape[1]
        words = backend.rounding_words(keys, d)
        safe = backend.cast(xp.where(norms > 0, norms, 1), "<f8")[:, None]
        levels = backend.zeros((len(keys), d), "<i1")
        for part in backend.chunks(d):
            # In this order, since s·g is exact and a quotient of at most 1 times s stays at most s.
            scaled = backend.cast(gradients[:, part], "<f8") * self.levels / safe
            levels[:, part] = xp.floor(scaled + (backend.cast(words[:, part], "<f8") + 0.5) * 2.0**-32)
        levels *= backend.cast(norms > 0, "<i1")[:, None]
        return pack_nibbles(backend, levels) if self.bits == 4 else levels

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        norms = backend.cast(backend.stacked(columns[0])[:, 0], "<f8")
        packed = columns[1]
        return backend.weighted_sum(
            d, factors * norms / self.levels, lambda i, part: self._unpack(backend, packed[i], part)
        )

    def _unpack(self, backend: Backend, packed: Array, part: slice) -> Array:
        """Levels of some coordinates; a part starts at an even one."""
        if self.bits == 8:
            return packed[part]
        nibbles = packed[part.start // 2 : -(-part.stop // 2)]
        return unpack_nibbles(backend, nibbles[None], part.stop - part.start)[0]
