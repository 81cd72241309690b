"""The two families of directions behind one interface."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions import _native, native
from fedmpdd.directions.keys import Key, first_directions
from fedmpdd.directions.spec import DOMAIN_DIRECTIONS, MAX_D, MAX_DIRECTIONS, hadamard_size
from fedmpdd.errors import CodecError, KeyRangeError

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class Family(Protocol):
    """A way to turn (seed, index, d) into a vector of ±1, and the fast sums along many of them.

    Arguments are taken as checked: `check` and `native.check_gradients` come first.
    """

    name: str
    code: int  # its number on the wire

    def check(self, d: int, m: int, slot: int) -> None:
        """Raise if there are no m directions of d coordinates for that slot."""

    def overlap(self, d: int) -> float:
        """E[(uᵀg)(u′ᵀg) uᵀu′] / ‖g‖² of two different directions u, u′ of one seed.

        It is 1 for independent directions and 0 for orthogonal ones; all variance formulas follow from it.
        """

    def encode(self, gradients: Float32, keys: Sequence[Key], m: int) -> Float32:
        """Directional derivatives [clients, m] of gradients [clients, d]."""

    def decode(self, scalars: Float32, factors: Float64, keys: Sequence[Key], d: int) -> Float32:
        """Sum over clients i and directions of factor i times scalar times direction: [d]."""

    def decode_signs(
        self, negative: NDArray[np.uint8], factors: Float64, keys: Sequence[Key], m: int, d: int
    ) -> Float32:
        """`decode` of scalars ±1, given as packed bits [clients, ⌈m/8⌉], a bit set meaning −1."""


def check_d(d: int) -> None:
    """Raise CodecError unless d is a number of coordinates that this package handles."""
    if not 1 <= d <= MAX_D:
        raise CodecError(f"d = {d} is out of range: expected 1 to 2^40 coordinates")


def _check_d_m(d: int, m: int) -> None:
    check_d(d)
    if m < 1:
        raise CodecError(f"m = {m} is out of range: at least one direction is needed")


class Rademacher:
    """Independent ±1 coordinates, the paper's choice: O(d·m), any m."""

    name = "rademacher"
    code = 0

    def check(self, d: int, m: int, slot: int) -> None:
        """See Family."""
        _check_d_m(d, m)
        if (slot + 1) * m > MAX_DIRECTIONS:
            raise KeyRangeError(
                f"slot {slot} with m = {m} needs direction {(slot + 1) * m - 1}, but a seed has 2^32; "
                "give clients seeds of their own"
            )

    def overlap(self, d: int) -> float:
        """See Family."""
        return 1.0

    def encode(self, gradients: Float32, keys: Sequence[Key], m: int) -> Float32:
        """See Family."""
        sums = np.zeros((gradients.shape[0], m))
        self.encode_slice(gradients, 0, keys, sums)
        return self.scalars(sums)

    def encode_slice(self, slices: Float32, first_tile: int, keys: Sequence[Key], sums: Float64) -> None:
        """Add to sums [clients, m] what a slice of the gradients, [clients, coordinates], contributes.

        Slices come in order. Each begins with tile `first_tile`, a multiple of 16 tiles.
        """
        seeds, firsts = first_directions(keys, sums.shape[1])
        _native.rademacher_encode(slices, first_tile, seeds, firsts, sums, *native.backend())

    def scalars(self, sums: Float64) -> Float32:
        """Return the directional derivatives once all slices were added: the one rounding to float32."""
        scalars = np.empty(sums.shape, dtype=np.float32)
        _native.round_sums(sums, scalars)
        return scalars

    def decode(self, scalars: Float32, factors: Float64, keys: Sequence[Key], d: int) -> Float32:
        """See Family."""
        out = np.zeros(d, dtype=np.float32)
        self.decode_slice(scalars, factors, keys, out, 0)
        return out

    def decode_slice(
        self, scalars: Float32, factors: Float64, keys: Sequence[Key], out: Float32, first_tile: int
    ) -> None:
        """Add to `out`, zeros, the slice of `decode` that begins with tile `first_tile`."""
        seeds, firsts = first_directions(keys, scalars.shape[1])
        _native.rademacher_decode(scalars, factors, seeds, firsts, out, first_tile, *native.backend())

    def decode_signs(
        self, negative: NDArray[np.uint8], factors: Float64, keys: Sequence[Key], m: int, d: int
    ) -> Float32:
        """See Family. Votes are counted as integers, which is exact and much faster than adding floats."""
        out = np.zeros(d, dtype=np.float32)
        self.decode_signs_slice(negative, factors, keys, m, out, 0)
        return out

    def decode_signs_slice(
        self,
        negative: NDArray[np.uint8],
        factors: Float64,
        keys: Sequence[Key],
        m: int,
        out: Float32,
        first_tile: int,
    ) -> None:
        """Add to `out`, zeros, the slice of `decode_signs` that begins with tile `first_tile`."""
        seeds, firsts = first_directions(keys, m)
        _native.onebit_decode(negative, m, factors, seeds, firsts, out, first_tile, *native.backend())


class Hadamard:
    """Distinct rows of a Hadamard matrix with a random sign diagonal: O(d log d), m up to its order."""

    name = "hadamard"
    code = 1

    def check(self, d: int, m: int, slot: int) -> None:
        """See Family."""
        _check_d_m(d, m)
        if m > d:
            raise CodecError(
                f"m = {m} hadamard directions of d = {d} coordinates: m must not exceed d; "
                "lower m, or use rademacher directions"
            )

    def overlap(self, d: int) -> float:
        """See Family. Padding d to the order of the matrix is what keeps rows from being orthogonal."""
        size = hadamard_size(d)
        return (size - d) / (size - 1) if size > 1 else 0.0

    def encode(self, gradients: Float32, keys: Sequence[Key], m: int) -> Float32:
        """See Family."""
        scalars = np.empty((gradients.shape[0], m), dtype=np.float32)
        _native.hadamard_encode(gradients, *first_directions(keys, m), scalars, *native.backend())
        return scalars

    def encode_in_place(self, buffer: Float32, d: int, key: Key, m: int) -> Float32:
        """`encode` of the one gradient in the first d of hadamard_size(d) floats, which are overwritten: [1, m]."""
        scalars = np.empty((1, m), dtype=np.float32)
        _native.hadamard_encode_in_place(buffer, d, *first_directions([key], m), scalars, *native.backend())
        return scalars

    def decode(self, scalars: Float32, factors: Float64, keys: Sequence[Key], d: int) -> Float32:
        """See Family. Clients that share a seed share one inverse transform, the first of them in the result itself."""
        padded = np.empty(hadamard_size(d), dtype=np.float32)
        seeds, firsts = first_directions(keys, scalars.shape[1])
        _native.hadamard_decode(scalars, factors, seeds, firsts, padded, d, *native.backend())
        return padded[:d]

    def decode_signs(
        self, negative: NDArray[np.uint8], factors: Float64, keys: Sequence[Key], m: int, d: int
    ) -> Float32:
        """See Family."""
        minus = np.unpackbits(negative, axis=1, count=m, bitorder="little")
        return self.decode(1.0 - np.float32(2.0) * minus, factors, keys, d)


def direction(key: Key, m: int, j: int, d: int) -> Float32:
    """Coordinates of rademacher direction j of an update of m, for who needs the vector itself."""
    out = np.empty(d, dtype=np.float32)
    _native.signs(key.seed, DOMAIN_DIRECTIONS, key.slot * m + j, out, 0, native.backend().isa)
    return out


FAMILIES: dict[str, Family] = {family.name: family for family in (Rademacher(), Hadamard())}


def family_named(name: str) -> Family:
    """Return the family of that name, or raise CodecError naming those there are."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise CodecError(f"family {name!r} is unknown: expected one of {', '.join(FAMILIES)}") from None


def family_numbered(code: int) -> Family:
    """Return the family of that number on the wire, or raise CodecError."""
    for family in FAMILIES.values():
        if family.code == code:
            return family
    raise CodecError(f"family number {code} is unknown")
