"""Levels and bits in bytes, least significant bit first, and what a scale and the bits after the last one must be."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import HOST, Array, Backend
from fedmpdd.errors import ContentError


def pack_nibbles(backend: Backend, levels: Array) -> Array:
    """Two's complement nibbles of levels [rows, count], the even-numbered one in the low half."""
    rows, count = levels.shape
    nibbles = backend.zeros((rows, count + count % 2), "|u1")
    nibbles[:, :count] = levels & 15
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def unpack_nibbles(backend: Backend, packed: Array, count: int) -> Array:
    """Levels [rows, count] of `pack_nibbles`; the reserved nibble 8 becomes −8."""
    nibbles = backend.xp.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)[:, :count]
    return backend.cast(nibbles ^ 8, "<i1") - 8


def pack_indices(backend: Backend, indices: Array, bits: int) -> Array:
    """Numbers [rows, count] below 2^bits, number j in bits j·bits … of its row."""
    ones = indices[:, :, None] >> backend.arange(bits, indices) & 1
    return backend.pack_bits(backend.cast(ones.reshape(len(indices), -1), "|u1"))


def unpack_indices(backend: Backend, packed: Array, bits: int, count: int) -> Array:
    """Numbers [rows, count], int64, of `pack_indices`."""
    ones = backend.unpack_bits(packed, count * bits).reshape(len(packed), count, bits)
    numbers = backend.zeros((len(packed), count), "<i8")
    for bit in range(bits):
        numbers += backend.cast(ones[:, :, bit], "<i8") << bit
    return numbers


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that so many numbers of so many bits take."""
    return -(-count * bits // 8)


def check_spare_bits(packed: NDArray[Any], count: int, bits: int) -> None:
    """Raise ContentError unless the bits after the last of `count` numbers are zero."""
    used = count * bits % 8
    if used and int(packed[-1]) >> used:
        raise ContentError(f"the {8 - used} bits after the last scalar are not all zero: drop this update")


def check_scale(scale: float, *numbers: NDArray[Any], largest: float = math.inf) -> None:
    """Raise ContentError unless the scale is finite, from 0 to `largest`, and all numbers are 0 where it is 0."""
    if not (math.isfinite(scale) and math.copysign(1.0, scale) > 0):
        raise ContentError(f"the scale is {scale}; expected a finite number, 0 or above: drop this update")
    if scale > largest:
        raise ContentError(
            f"the scale is {scale}, expected at most {largest:.4g}: the estimate could leave float32; drop this update"
        )
    if scale == 0.0 and any(array.any() for array in numbers):
        raise ContentError("the scale is 0 but a scalar is not; a zero gradient has zero scalars: drop this update")


def length_of(values: NDArray[Any]) -> float:
    """Return the Euclidean length of some numbers, summed in float64."""
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))


def check_finite_values(values: NDArray[Any], largest: float = math.inf) -> None:
    """Raise ContentError if a float is NaN or infinite, or above `largest` in size."""
    if not np.isfinite(values).all():
        raise ContentError("a scalar is NaN or infinite; expected finite float32: drop this update")
    if largest < math.inf and (size := largest_size(values)) > largest:
        raise ContentError(
            f"a scalar is {size:.4g} in size, expected at most {largest:.4g}: the estimate could leave float32; "
            "drop this update"
        )


def largest_size(values: NDArray[Any]) -> float:
    """Return the largest magnitude of some floats, 0 if there are none; NaN if one of them is."""
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def largest_of(rows: Any) -> float:
    """Return the largest magnitude in one section of several updates."""
    return largest_size(HOST.stacked(rows))
