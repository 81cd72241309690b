"""Levels and bits in bytes, least significant bit first, and what a scale and the bits after the last one must be."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError

UInt8 = NDArray[np.uint8]


def pack_nibbles(levels: NDArray[np.int8]) -> UInt8:
    """Two's complement nibbles of levels [..., count], the even-numbered one in the low half."""
    count = levels.shape[-1]
    nibbles = np.zeros((*levels.shape[:-1], count + count % 2), dtype=np.uint8)
    nibbles[..., :count] = levels.view(np.uint8) & 15
    return np.asarray(nibbles[..., 0::2] | nibbles[..., 1::2] << 4)


def unpack_nibbles(packed: UInt8, count: int) -> NDArray[np.int8]:
    """Levels [..., count] of `pack_nibbles`; the reserved nibble 8 becomes −8."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)[..., :count]
    return np.asarray((nibbles ^ 8).astype(np.int8) - 8)


def pack_indices(indices: NDArray[np.unsignedinteger[Any]], bits: int) -> UInt8:
    """Numbers below 2^bits, number j in bits j·bits … of the whole."""
    ones = indices[:, np.newaxis] >> np.arange(bits, dtype=indices.dtype) & 1
    return np.packbits(ones.reshape(-1).astype(np.uint8), bitorder="little")


def unpack_indices(packed: UInt8, bits: int, count: int) -> NDArray[np.int64]:
    """Numbers [count] of `pack_indices`."""
    ones = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.asarray(ones @ (1 << np.arange(bits)), dtype=np.int64)


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
