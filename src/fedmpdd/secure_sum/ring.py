"""Integers modulo 2^bits: where masked vectors live, and how they lie in bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError, FrameLengthError, InputError
from fedmpdd.secure_sum.checks import is_whole
from fedmpdd.secure_sum.primitives import keystream

FEWEST_BITS, MOST_BITS = 16, 64
Words = NDArray[np.uint32] | NDArray[np.uint64]


@dataclass(frozen=True)
class Ring:
    """The integers modulo 2^bits. Sums are taken in machine words, which wrap, and are reduced when they leave."""

    bits: int = 32

    def __post_init__(self) -> None:
        if not is_whole(self.bits, FEWEST_BITS, MOST_BITS):
            raise InputError(f"ring_bits = {self.bits!r}: expected an integer from {FEWEST_BITS} to {MOST_BITS}")

    @property
    def dtype(self) -> str:
        """The machine word that elements are added up in: 2^bits divides its range, so that wrapping is right."""
        return "<u4" if self.bits <= 32 else "<u8"

    def nbytes(self, length: int) -> int:
        """Bytes of a vector of so many elements."""
        return -(-length * self.bits // 8)

    def reduced(self, words: Words) -> Words:
        """Take words modulo 2^bits."""
        return words & words.dtype.type(2**self.bits - 1)

    def words_of(self, values: NDArray[np.uint64], length: int) -> Words:
        """Check a vector of elements and return it as words to add up."""
        if not isinstance(values, np.ndarray) or values.dtype != np.uint64 or values.shape != (length,):
            came = f"{values.dtype} {list(values.shape)}" if isinstance(values, np.ndarray) else f"{type(values)}"
            raise InputError(f"the vector to add is {came}, expected an array uint64 [{length}]: see FixedPoint.encode")
        if self.bits < 64 and int(values.max(initial=0)) >> self.bits:
            raise InputError(
                f"the vector to add holds {int(values.max())}, a ring of {self.bits} bits ends at 2^{self.bits} − 1; "
                "encode it for this ring, or take more ring_bits"
            )
        return values.astype(self.dtype)

    def mask(self, key: bytes, length: int) -> Words:
        """Expand a key, used for this and nothing else, to a vector that nobody without it tells from random."""
        stream = keystream(key, length * np.dtype(self.dtype).itemsize)
        return np.frombuffer(stream, self.dtype)  # bits above the ring's fall away when sums are reduced

    def pack(self, words: Words) -> bytes:
        """Return elements as bytes: `bits` bits each, the lowest first, without gaps."""
        words = self.reduced(words)
        if self.bits in (16, 32, 64):
            return words.astype(f"<u{self.bits // 8}").tobytes()
        octets = words.astype("<u8").view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(octets, axis=1, count=self.bits, bitorder="little")
        return np.packbits(bits, bitorder="little").tobytes()

    def unpack(self, data: memoryview, length: int) -> Words:
        """Read what `pack` wrote, or raise the WireError that says why not."""
        if len(data) != self.nbytes(length):
            raise FrameLengthError(
                f"a vector of {length} elements came in {len(data)} bytes, expected {self.nbytes(length)}; ask again"
            )
        if self.bits in (16, 32, 64):
            return np.frombuffer(data, f"<u{self.bits // 8}").astype(self.dtype)
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        if bits[length * self.bits :].any():
            raise ContentError("bits behind the last element are set; expected zeros: drop this message")
        octets = np.zeros((length, 8), np.uint8)
        octets[:, : -(-self.bits // 8)] = np.packbits(
            bits[: length * self.bits].reshape(length, self.bits), axis=1, bitorder="little"
        )
        return octets.view("<u8").reshape(length).astype(self.dtype)
