"""How scalars along directions are written: as float32, as levels, as signs, or as the largest of each group.

A code turns the scalars of several clients into the sections of their updates, and back into numbers with a factor per
update. It is written once, in the operations of a backend. The derivations of scales are in docs/codec.md.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.arithmetic import largest_normal, sphere_factor
from fedmpdd.codecs.backends import HOST, Array, Backend
from fedmpdd.codecs.base import LARGEST_COORDINATE, Arrays, Columns, Section
from fedmpdd.codecs.packing import (
    check_finite_values,
    check_scale,
    check_spare_bits,
    largest_of,
    pack_indices,
    pack_nibbles,
    packed_bytes,
    unpack_indices,
    unpack_nibbles,
)
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError, ContentError

_INTEGER_TYPES = {16: "<i2", 8: "<i1"}
_SCALE_TOO_LARGE = (
    f"the scale stands for scalars above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave float32: the "
    "gradient is too large; scale or clip it before encoding"
)


class EncodedScalars(NamedTuple):
    """Scalars as they were written: numbers [updates, count], and the float64 scale of each update's, or 1.0 for all.

    packed: the numbers are ±1 and come as bits, [updates, ⌈count/8⌉], a set bit meaning −1.
    """

    numbers: Array
    scales: Any  # an array, or one number
    packed: bool = False


class ScalarCode(ABC):
    """How `count` scalars are written. Codes are values without state."""

    rounding: ClassVar[str] = "exact"  # what became of a scalar: "exact", "levels", "signs" or "choices"
    graded: ClassVar[bool] = True  # whether its numbers have sizes, so that the middle one of several means something
    sized: ClassVar[bool] = True  # whether an update tells how long its gradient is

    @abstractmethod
    def sections(self, count: int) -> tuple[Section, ...]:
        """Return the arrays that hold so many scalars."""

    @abstractmethod
    def check_content(self, arrays: Arrays, count: int) -> None:
        """Raise ContentError if the arrays hold what this code never writes."""

    @abstractmethod
    def write(self, backend: Backend, scalars: Array, moments: Array | None, keys: list[Key]) -> Columns:
        """Turn scalars [clients, count] into sections.

        scalars: float32; or float64 on the CPU, where they were made without a gradient. moments: [‖g‖², Σ g⁴] of the
        gradients, where there are some; scales that need a length take it from the scalars themselves otherwise.
        """

    @abstractmethod
    def read(self, backend: Backend, columns: Columns, count: int) -> EncodedScalars:
        """Turn sections into numbers and scales."""

    def multipliers(self, factors: Array, scales: Array | float, count: int) -> Array:
        """Return what multiplies each number in the mean: its update's weight and scale, and 1/count."""
        return factors / count if isinstance(scales, float) else factors / count * scales

    @abstractmethod
    def second_moment(self, count: int) -> float:
        """E[s̃²] / ‖g‖² of a scalar as it is decoded: 1 plus what its bits add."""

    @abstractmethod
    def bound(self, columns: Columns) -> float:
        """Return a number that no scalar of these updates exceeds."""

    @property
    def needs_moments(self) -> bool:
        """Whether `write` looks at the moments."""
        return False


@dataclass(frozen=True)
class Float32Code(ScalarCode):
    """Each scalar as it is."""

    def sections(self, count: int) -> tuple[Section, ...]:
        return (Section("scalars", "<f4", count),)

    def check_content(self, arrays: Arrays, count: int) -> None:
        check_finite_values(arrays[0], LARGEST_COORDINATE)

    def write(self, backend: Backend, scalars: Array, moments: Array | None, keys: list[Key]) -> Columns:
        return (backend.cast(scalars, "<f4"),)

    def read(self, backend: Backend, columns: Columns, count: int) -> EncodedScalars:
        return EncodedScalars(backend.cast(backend.stacked(columns[0]), "<f4"), 1.0)

    def second_moment(self, count: int) -> float:
        return 1.0

    def bound(self, columns: Columns) -> float:
        return largest_of(columns[0])


@dataclass(frozen=True)
class LevelCode(ScalarCode):
    """Levels of 16, 8 or 4 bits in steps of a scale, rounded at random: unbiased."""

    bits: int

    rounding: ClassVar[str] = "levels"

    @property
    def levels(self) -> int:
        """Largest level: levels are −levels … levels."""
        return int(2 ** (self.bits - 1)) - 1

    def sections(self, count: int) -> tuple[Section, ...]:
        packed = self.bits not in _INTEGER_TYPES
        length, dtype = (packed_bytes(count, self.bits), "|u1") if packed else (count, _INTEGER_TYPES[self.bits])
        return Section("scale", "<f4", 1), Section("scalars", dtype, length)

    def check_content(self, arrays: Arrays, count: int) -> None:
        scale, scalars = float(arrays[0][0]), arrays[1]
        check_scale(scale, scalars, largest=LARGEST_COORDINATE / self.levels)
        if self.bits == 4:
            check_spare_bits(scalars, count, self.bits)
        if (self._levels_of(HOST, scalars[np.newaxis], count) < -self.levels).any():
            raise ContentError(f"a scalar has level {-self.levels - 1}; levels are ±{self.levels}: drop this update")

    def write(self, backend: Backend, scalars: Array, moments: Array | None, keys: list[Key]) -> Columns:
        """See ScalarCode: the largest scalar is on the last level, the others on one of the two around them."""
        xp, scalars = backend.xp, backend.cast(scalars, "<f4")
        largest = backend.cast(xp.amax(xp.abs(scalars), axis=1), "<f8")
        scales = backend.cast(largest / self.levels, "<f4")
        # float32 may have rounded the step down, and the largest scalar must not need one level more.
        low = backend.cast(scales, "<f8") * self.levels < largest
        scales = xp.where(low, backend.next_above(scales), scales)
        backend.require(backend.cast(scales, "<f8") <= LARGEST_COORDINATE / self.levels, _SCALE_TOO_LARGE)
        steps = backend.cast(xp.where(scales > 0, scales, 1), "<f8")[:, None]
        levels = xp.floor(scalars / steps + backend.uniform(keys, scalars.shape[1]))
        levels = xp.where(scales[:, None] > 0, levels, 0)
        if self.bits == 4:
            return scales[:, None], pack_nibbles(backend, backend.cast(levels, "<i1"))
        return scales[:, None], backend.cast(levels, _INTEGER_TYPES[self.bits])

    def read(self, backend: Backend, columns: Columns, count: int) -> EncodedScalars:
        levels = self._levels_of(backend, backend.stacked(columns[1]), count)
        return EncodedScalars(backend.cast(levels, "<f4"), backend.cast(backend.stacked(columns[0])[:, 0], "<f8"))

    def _levels_of(self, backend: Backend, scalars: Array, count: int) -> Array:
        return unpack_nibbles(backend, scalars, count) if self.bits == 4 else scalars

    def second_moment(self, count: int) -> float:
        """See ScalarCode. A fraction of a step that is uniform adds step²/6; the largest scalar adds nothing."""
        return 1.0 + (1 - 1 / count) * largest_normal(count)[1] / (6 * self.levels**2)

    def bound(self, columns: Columns) -> float:
        return largest_of(columns[0]) * self.levels


@dataclass(frozen=True)
class SignCode(ScalarCode):
    """One bit a scalar, and a scale that makes sign times scale unbiased."""

    rounding: ClassVar[str] = "signs"
    graded: ClassVar[bool] = False

    def sections(self, count: int) -> tuple[Section, ...]:
        return Section("scale", "<f4", 1), Section("scalars", "|u1", packed_bytes(count, 1))

    def check_content(self, arrays: Arrays, count: int) -> None:
        check_scale(float(arrays[0][0]), arrays[1], largest=LARGEST_COORDINATE)
        check_spare_bits(arrays[1], count, 1)

    @property
    def needs_moments(self) -> bool:
        return True

    def write(self, backend: Backend, scalars: Array, moments: Array | None, keys: list[Key]) -> Columns:
        return self.write_scaled(backend, scalars, sign_scales(backend, scalars, moments))

    def write_scaled(self, backend: Backend, scalars: Array, exact_scales: Array) -> Columns:
        """Write signs with these scales, float64 [clients]."""
        scales = backend.rounded(exact_scales)
        backend.require(scales <= LARGEST_COORDINATE, _SCALE_TOO_LARGE)
        negative = (backend.cast(scalars, "<f4") < 0) & (scales > 0)[:, None]
        return scales[:, None], backend.pack_bits(negative)

    def read(self, backend: Backend, columns: Columns, count: int) -> EncodedScalars:
        scales = backend.cast(backend.stacked(columns[0])[:, 0], "<f8")
        return EncodedScalars(backend.stacked(columns[1]), scales, packed=True)

    def second_moment(self, count: int) -> float:
        return math.pi / 2

    def bound(self, columns: Columns) -> float:
        return largest_of(columns[0])


@dataclass(frozen=True)
class BareSignCode(ScalarCode):
    """One bit a scalar and nothing else: signs say on which side to step, and nothing says how far."""

    rounding: ClassVar[str] = "signs"
    graded: ClassVar[bool] = False
    sized: ClassVar[bool] = False

    def sections(self, count: int) -> tuple[Section, ...]:
        return (Section("signs", "|u1", packed_bytes(count, 1)),)

    def check_content(self, arrays: Arrays, count: int) -> None:
        check_spare_bits(arrays[0], count, 1)

    def write(self, backend: Backend, scalars: Array, moments: Array | None, keys: list[Key]) -> Columns:
        return (backend.pack_bits(backend.cast(scalars, "<f4") < 0),)

    def read(self, backend: Backend, columns: Columns, count: int) -> EncodedScalars:
        return EncodedScalars(backend.stacked(columns[0]), 1.0, packed=True)

    def second_moment(self, count: int) -> float:
        raise CodecError("signs without a scale stand for no length, so that there is no formula for their error")

    def bound(self, columns: Columns) -> float:
        return 1.0


def sign_scales(backend: Backend, scalars: Array, moments: Array | None) -> Array:
    """Return the scales that make sign · scale unbiased, float64 [clients].

    With a gradient: √(π/2)·‖g‖ / (1 + Σg⁴/(12‖g‖⁴)). From scalars alone: unbiased where they are normal, since then
    E[‖s‖·|s_1|] = E‖s‖²·E|θ_1|, θ uniform on the sphere.
    """
    xp = backend.xp
    if moments is None:  # correctly rounded steps only, in one order, so that every machine finds the same scale
        count = scalars.shape[1]
        return sphere_factor(count) * np.sqrt(np.add.accumulate(scalars * scalars, axis=1)[:, -1] / count)
    second, fourth = moments[:, 0], moments[:, 1]
    safe = xp.where(second > 0, second, 1.0)
    return xp.sqrt(math.pi / 2 * second) / (1 + fourth / (12 * safe * safe))


@dataclass(frozen=True)
class PeakCode(ScalarCode):
    """Of every group of scalars the place of the largest, its sign, and one byte of scale for all.

    A peak is one of 2·group numbers; m peaks are written of m·group scalars.
    """

    group: int

    rounding: ClassVar[str] = "choices"
    graded: ClassVar[bool] = False

    @property
    def bits(self) -> int:
        """Return the bits of one peak: place and sign."""
        return self.group.bit_length()

    def sections(self, count: int) -> tuple[Section, ...]:
        return Section("scale", "|u1", 1), Section("peaks", "|u1", packed_bytes(count // self.group, self.bits))

    def check_content(self, arrays: Arrays, count: int) -> None:
        scale, packed = arrays
        if scale[0] == 0 and packed.any():
            raise ContentError("the scale is 0 but a peak is not; a zero gradient has zero peaks: drop this update")
        check_spare_bits(packed, count // self.group, self.bits)

    @property
    def needs_moments(self) -> bool:
        return True

    def write(self, backend: Backend, scalars: Array, moments: Array | None, keys: list[Key]) -> Columns:
        """See ScalarCode. The scale is ‖g‖² / mean |peak|: then the estimate's part along g is g itself."""
        xp, rows = backend.xp, backend.cast(scalars, "<f4")
        grouped = rows.reshape(len(rows), -1, self.group)
        places = backend.first_largest(xp.abs(grouped))
        highest = backend.take(grouped, places[:, :, None])[:, :, 0]
        squares = (scalars * scalars).mean(axis=1) if moments is None else moments[:, 0]
        means = xp.abs(backend.cast(highest, "<f8")).mean(axis=1)
        scales = xp.where(means > 0, squares / xp.where(means > 0, means, 1.0), 0.0)
        levels = _scale_levels(backend, scales, backend.uniform(keys, 1)[:, 0])
        numbers = xp.where(levels[:, None] > 0, places + self.group * (highest < 0), 0)
        return levels[:, None], pack_indices(backend, numbers, self.bits)

    def read(self, backend: Backend, columns: Columns, count: int) -> EncodedScalars:
        """See ScalarCode: zeros, but for the peaks."""
        places, negative = self.peaks(backend, columns, count)
        numbers = backend.zeros((len(places), count), "<f4")
        backend.put(numbers, places, backend.cast(1 - 2 * negative, "<f4"))
        scales = backend.like(scale_values())[backend.cast(backend.stacked(columns[0])[:, 0], "<i8")]
        return EncodedScalars(numbers, self.group * scales)

    def multipliers(self, factors: Array, scales: Array | float, count: int) -> Array:
        """See ScalarCode: in the order of operations that peaks were published with."""
        return factors * scales / count

    def peaks(self, backend: Backend, columns: Columns, count: int) -> tuple[Array, Array]:
        """Return which of all scalars the peaks are [updates, m], and 1 where they are negative."""
        numbers = unpack_indices(backend, backend.stacked(columns[1]), self.bits, count // self.group)
        starts = backend.arange(count // self.group, numbers) * self.group
        return starts + numbers % self.group, numbers // self.group

    def second_moment(self, count: int) -> float:
        """See ScalarCode; the variance of 1/mean² over m peaks to first order."""
        mean, square = largest_normal(self.group)
        spread = 3 * (square - mean * mean) / (count // self.group * mean * mean)
        return rounding_factor() * (1 + spread) * self.group / mean**2

    def bound(self, columns: Columns) -> float:
        """See ScalarCode. A coordinate is the mean of m numbers that are ± the scale."""
        return float(scale_values()[-1])


_STEPS = 4  # of the scale of peaks in a factor of two
_ONE_AT = 128  # the number of scale 1
# 2^(k/4) in float64, correctly rounded
_ROOTS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)


@cache
def scale_values() -> NDArray[np.float64]:
    """The 256 scales of peaks: 0, and 2^((k − 128)/4) for k = 1 … 255."""
    powers = [math.ldexp(_ROOTS[k % _STEPS], (k - _ONE_AT) // _STEPS) for k in range(1, 256)]
    values = np.array([0.0, *powers])
    values.flags.writeable = False
    return values


def _scale_levels(backend: Backend, scales: Array, uniform: Array) -> Array:
    """One of the two scales around each, drawn so that its mean is the scale, as uint8."""
    xp, values = backend.xp, backend.like(scale_values())
    largest = float(scale_values()[-1])
    backend.require(
        scales <= largest,
        f"the scale of the peaks is above 2^31.75, {largest:.4g}: the gradient is too large; scale or clip it",
    )

    def level(factor: float) -> Array:
        exact = xp.minimum(scales * factor, values[-1:])
        above = xp.clip(xp.searchsorted(values, exact), 1, 255)
        low, high = values[above - 1], values[above]
        return xp.where(uniform * (high - low) < exact - low, above, above - 1)

    return backend.cast(backend.settled(level), "|u1")


@cache
def rounding_factor() -> float:
    """E[(rounded scale)²] / scale², its logarithm uniform between two scales: sinh(h)/h for a ratio of exp(h)."""
    h = math.log(2) / _STEPS
    return math.sinh(h) / h
