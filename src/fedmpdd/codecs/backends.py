"""Where a codec computes: NumPy and the C++ kernels, or PyTorch and the GPU's kernels, to the same bits.

A codec is written once, in operations that NumPy and PyTorch have under one name (`backend.xp`), and in those of a
backend. Both round every operation correctly and fuse none, so that they agree on every number. Sums over all
coordinates are the exception: a GPU adds in another order. What depends on such a sum goes through `rounded`, which
notices the rare update whose last bit the order could decide; that one update is then encoded on the CPU.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedmpdd.directions import Key, add_scaled, family_named, moments, rounding_words
from fedmpdd.errors import CodecError, GradientError

Array = Any  # a NumPy array or a tensor
CHUNK = 1 << 15  # coordinates at a time: fits the cache, and a multiple of 8, so that packed bits are cut at bytes
ORDER_ERROR = 2.0**-40  # of a sum of positive float64, relative: far above what an order of additions makes of it


class Backend:
    """NumPy and the C++ kernels; what `DeviceBackend` has under the same names."""

    xp: Any = np
    device: Any = "cpu"

    # ---------------------------------------------------------------------------------------- checks and doubts

    def require(self, holds: Array, message: str) -> None:
        """Raise CodecError unless all of these hold; on a GPU when the codec is done, with one look at all of them."""
        if not np.asarray(holds).all():
            raise CodecError(message)

    def check_finite(self, gradients: Array) -> None:
        """Raise GradientError if a coordinate is not finite."""
        moments(gradients)  # the fastest way to look at them all

    def settled(self, compute: Callable[[float], Array]) -> Array:
        """Return compute(1.0), an array [clients, …] that follows from sums over all coordinates times its argument.

        A GPU computes what follows from slightly less and from slightly more, and has the CPU do the clients for which
        the two differ.
        """
        return compute(1.0)

    def rounded(self, values: Array) -> Array:
        """Float64 values [clients] that follow from sums over all coordinates, rounded to float32."""
        return self.settled(lambda factor: self.cast(values * factor, "<f4"))

    # ------------------------------------------------------------------------------------------------- arrays

    def like(self, values: Any) -> Array:
        """Return a NumPy array, or numbers, as an array of this backend."""
        return np.asarray(values)

    def host(self, values: Array) -> Array:
        """Return an array of this backend as a NumPy array."""
        return values

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return zeros of a dtype that is named as in a section."""
        return np.zeros(shape, dtype)

    def arange(self, count: int, like: Array) -> Array:
        """Return 0, 1, … of the type of an array."""
        return np.arange(count, dtype=like.dtype)

    def rows_at_once(self, size: int) -> int:
        """Return how many rows of so many numbers are worked on together."""
        return max(1, (1 << 16) // size)

    def cast(self, values: Array, dtype: str) -> Array:
        """Return values as a dtype that is named as in a section; what is too large for it becomes infinite."""
        if dtype != "<f4":  # nothing else can overflow
            return values.astype(dtype, copy=False)
        with np.errstate(over="ignore"):
            return values.astype(dtype, copy=False)

    def copy(self, values: Array) -> Array:
        """Return a copy."""
        return values.copy()

    def equal_factors(self, count: int) -> Array:
        """Return the weights of a plain mean of so many."""
        return np.full(count, 1.0 / count)

    def next_above(self, values: Array) -> Array:
        """Return the float32 after each of these."""
        return np.nextafter(values, np.float32(np.inf))

    def first_largest(self, values: Array) -> Array:
        """Return the place of the largest along the last axis, of equal ones the first."""
        return values.argmax(axis=-1)

    def take(self, values: Array, places: Array) -> Array:
        """Return the values at these places of the last axis."""
        return np.take_along_axis(values, places, axis=-1)

    def put(self, out: Array, places: Array, values: Array) -> None:
        """Set the values at these places of the last axis."""
        np.put_along_axis(out, places, values, axis=-1)

    def largest_places(self, values: Array, k: int) -> Array:
        """Return the places [rows, k], ascending, of the k largest of each row, of equal ones the first."""
        return np.stack([_largest_places(row, k) for row in values])

    def search(self, thresholds: Array, values: Array) -> Array:
        """Return how many of the ascending thresholds are at or below each value."""
        return np.searchsorted(thresholds, values, side="right")

    def mean(self, values: Array, of: Callable[[Array], Array] = lambda row: row) -> Array:
        """Return the mean of each row, or of a function of it, in float64."""
        return np.array([of(row).mean(dtype=np.float64) for row in values])

    def product(self, left: Array, right: Array) -> Array:
        """Return the product of two matrices in full float32, whatever a network may be computed in."""
        return left @ right

    def pack_bits(self, ones: Array) -> Array:
        """Bits [rows, n] as bytes, least significant bit first."""
        return np.packbits(ones, axis=1, bitorder="little")

    def unpack_bits(self, packed: Array, count: int) -> Array:
        """Return the first `count` bits of each row of bytes, as 0 and 1."""
        return np.unpackbits(packed, axis=1, count=count, bitorder="little")

    def stacked(self, rows: Any) -> Array:
        """Return one section of several updates as one array [updates, length], whichever way it came."""
        return rows if isinstance(rows, np.ndarray) else np.concatenate(rows).reshape(len(rows), -1)

    def chunks(self, d: int) -> Iterator[slice]:
        """Cut d coordinates into pieces that fit what this backend does best."""
        for start in range(0, d, CHUNK):
            yield slice(start, min(d, start + CHUNK))

    # ------------------------------------------------------------------------------------------------ kernels

    def moments(self, gradients: Array) -> Array:
        """[‖g‖², Σ g⁴] per gradient, or raise GradientError if a coordinate is not finite."""
        return moments(gradients)

    def rounding_words(self, keys: Sequence[Key], count: int) -> Array:
        """Random words [clients, count] of 32 bits that decide how the numbers of each update are rounded."""
        return rounding_words(keys, count)

    def uniform(self, keys: Sequence[Key], count: int) -> Array:
        """Numbers [clients, count] between 0 and 1, float64, from these words."""
        return (self.cast(self.rounding_words(keys, count), "<f8") + 0.5) * 2.0**-32

    def project(self, family: str, gradients: Array, keys: Sequence[Key], m: int) -> Array:
        """Directional derivatives [clients, m] of gradients [clients, d]."""
        return family_named(family).encode(gradients, keys, m)

    def combine(self, family: str, scalars: Array, factors: Array, keys: Sequence[Key], d: int) -> Array:
        """Sum over clients of factor times scalars times directions: [d]."""
        return family_named(family).decode(np.ascontiguousarray(scalars, np.float32), factors, keys, d)

    def combine_signs(self, family: str, negative: Array, factors: Array, keys: Sequence[Key], m: int, d: int) -> Array:
        """`combine` of scalars ±1, packed bits [clients, ⌈m/8⌉] of which a set one means −1."""
        return family_named(family).decode_signs(np.ascontiguousarray(negative, np.uint8), factors, keys, m, d)

    # --------------------------------------------------------------------------------------------------- sums

    def all_finite(self, values: Array) -> bool:
        """Return whether all of these are finite; a GPU is waited for."""
        return bool(self.xp.isfinite(values).all())

    def weighted_sum(self, d: int, factors: Array, values: Callable[[int, slice], Array]) -> Array:
        """Sum over i of factor i times vector i, in float64 and in order; values(i, part) is a part of vector i.

        Only a chunk is ever held in float64. Neither order nor chunks change the result with the machine.
        """
        out = self.zeros((d,), "<f4")
        for part in self.chunks(d):
            total = self.zeros((part.stop - part.start,), "<f8")
            for i, factor in enumerate(factors.tolist()):
                add_scaled(values(i, part), factor, total)
            out[part] = self.cast(total, "<f4")
        return out

    def scattered_sum(self, d: int, factors: Array, places: Any, values: Any) -> Array:
        """Sum over i of factor i times a vector that has values[i] at places[i], all different, and zeros elsewhere."""
        total = self.zeros((d,), "<f8")
        for factor, where, what in zip(factors.tolist(), places, values, strict=True):
            total[self.cast(where, "<i8")] += factor * self.cast(what, "<f8")
        return self.cast(total, "<f4")


def _largest_places(values: Array, k: int) -> Array:
    smallest = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > smallest)
    ties = np.flatnonzero(values == smallest)[: k - above.size]
    return np.sort(np.concatenate([above, ties]))


HOST = Backend()


def backend_of(array: Any) -> Backend:
    """Return where this array, or the first row of these, lives; a fresh backend for tensors, which keeps doubts."""
    first = array[0] if isinstance(array, tuple | list) else array
    if isinstance(first, np.ndarray):
        return HOST
    backend: Backend = _device_backend()(first.device)
    return backend


def backend_on(device: str | None) -> Backend:
    """Return the backend of a device by its name; None and "cpu" are NumPy."""
    if device in (None, "cpu"):
        return HOST
    import torch

    backend: Backend = _device_backend()(torch.empty(0, device=device).device)
    return backend


@lru_cache(maxsize=1)
def _device_backend() -> Any:
    from fedmpdd.codecs.device import DeviceBackend

    return DeviceBackend


def describe_not_finite(gradients: Array) -> GradientError:
    """Return the error that names a coordinate that is not finite."""
    client, coordinate = np.argwhere(~np.isfinite(np.asarray(gradients)))[0]
    return GradientError(
        f"gradients[{client}, {coordinate}] is {float(gradients[client, coordinate])}; all must be finite: "
        "lower the learning rate or clip before encoding"
    )


def as_float32(backend: Backend, values: Array, what: str, largest: float = math.inf) -> Array:
    """Round to float32, or raise CodecError where that is not finite, or above `largest` in size."""
    rounded, xp = backend.cast(values, "<f4"), backend.xp
    backend.require(
        xp.isfinite(rounded), f"{what} overflows float32: the gradient is too large; scale or clip it before encoding"
    )
    if largest < math.inf:
        backend.require(
            xp.abs(rounded) <= largest,
            f"{what} is above {largest:.4g}, beyond which an estimate could leave float32: the gradient is too large; "
            "scale or clip it before encoding",
        )
    return rounded
