"""Peaks: of every group of directional derivatives only the place of the largest, its sign, and one byte of scale.

FedMPDD with one bit says of m derivatives on which side of 0 they lie. The same bytes say more if they point out which
of K derivatives is the largest: log2(K) + 1 bits for a direction along which the gradient is E max|z| times as long as
along a random one. The derivation is in docs/codecs.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import largest_normal
from fedmpdd.codecs._packing import check_spare_bits, pack_indices, packed_bytes, unpack_indices
from fedmpdd.codecs.base import Arrays, Codec, Float32, Parameters, Section, Update, check_count, mean_factors
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import FAMILIES, Key, family_named, hadamard_size, moments, rounding_words
from fedmpdd.errors import CodecError, ContentError

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = tuple(2**k for k in range(2, 17))
FREE_DERIVATIVES = 2**20  # that an update may name whatever d is: 4 MiB while it is decoded
_STEPS = 4  # of the scale in a factor of two
_ONE_AT = 128  # the number of scale 1
# 2^(k/4) in float64, correctly rounded
_ROOTS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)


class Found(NamedTuple):
    """The peaks of some gradients: their numbers as they are sent [clients, m], and the scales before rounding."""

    numbers: NDArray[np.uint32]
    scales: NDArray[np.float64]


@dataclass(frozen=True)
class Peaks(Codec):
    """m peaks, each the largest of `group` derivatives along directions of `family`.

    grows_to, grows_after: m doubles after so many rounds, then whenever as many rounds have passed as there were
    before, up to grows_to. What is left to learn gets finer, and noise that did no harm at first would hide it.
    """

    m: int
    group: int = 256
    family: str = "hadamard"
    grows_to: int | None = None
    grows_after: int | None = None

    name: ClassVar[str] = "peaks"
    code: ClassVar[int] = 13
    adds_up: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True  # as one-bit FedMPDD is: up to terms that vanish with 1/d

    def __post_init__(self) -> None:
        check_count("m", self.m, "peaks")
        if not isinstance(self.group, int) or isinstance(self.group, bool) or self.group not in GROUPS:
            raise CodecError(
                f"group = {self.group!r} is not a size of groups: expected a power of two from 4 to 65,536"
            )
        family_named(self.family)
        check_count("m · group", self.m * self.group, "directions")
        if self.grows_to is None and self.grows_after is None:
            return
        if self.grows_to is None or self.grows_after is None:
            raise CodecError("grows_to and grows_after belong together: give both, or leave out both")
        check_count("grows_after", self.grows_after, "rounds")
        check_count("grows_to", self.grows_to, "peaks")
        if self.grows_to <= self.m:
            raise CodecError(f"grows_to = {self.grows_to} is no more than m = {self.m}; raise it, or leave it out")
        check_count("grows_to · group", self.grows_to * self.group, "directions")

    def at_round(self, round_number: int) -> "Peaks":
        """See Codec: as many peaks as there are in this round."""
        if self.grows_to is None or self.grows_after is None:
            return self
        doublings = (round_number // self.grows_after).bit_length()
        return self._with(min(self.grows_to, self.m << doublings))

    def largest(self) -> "Peaks":
        """See Codec."""
        return self if self.grows_to is None else self._with(self.grows_to)

    def _with(self, m: int) -> "Peaks":
        return Peaks(m, self.group, self.family)

    @property
    def projection(self) -> MPDD:
        """FedMPDD along all directions of all groups, whose scalars peaks are looked for in."""
        return MPDD(m=self.m * self.group, family=self.family)

    @property
    def bits(self) -> int:
        """Return the bits of one peak: place and sign."""
        return self.group.bit_length()

    # ---------------------------------------------------------------------------------- what is on the wire

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        largest = self.largest()
        derivatives = largest.projection.m
        if self.family == "hadamard":
            most, told = d, "d of hadamard directions"
        else:
            # Decoding lays out m · group numbers, which a few bytes of a frame can name; d numbers it lays out anyway.
            most, told = max(d, FREE_DERIVATIVES), f"d, or {FREE_DERIVATIVES:,}"
        if derivatives > most:
            lower = "m" if self.grows_to is None else "grows_to"
            raise CodecError(
                f"{largest.m} peaks of {self.group} are {derivatives:,} derivatives of d = {d} coordinates: expected "
                f"no more than {told}; lower {lower} or group"
            )
        largest.projection.check(d, slot)

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return Section("scale", "|u1", 1), Section("peaks", "|u1", packed_bytes(self.m, self.bits))

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        scale, packed = arrays
        if scale[0] == 0 and packed.any():
            raise ContentError("the scale is 0 but a peak is not; a zero gradient has zero peaks: drop this update")
        check_spare_bits(packed, self.m, self.bits)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec."""
        return self.projection.work(d) + 1_024 * self.m

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec. A coordinate is the mean of m numbers that are ± the scale."""
        return float(scale_values()[-1])

    def magnitude(self, update: Update) -> float:
        """See Codec: the scale tells it."""
        return self.norm_of(update)

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(family_named(self.family).code, self.bits - 1, self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        for family in FAMILIES.values():
            if family.code == parameters.first:
                return cls(parameters.size, 2 ** min(parameters.second, 32), family.name)
        raise CodecError(f"family number {parameters.first} is unknown")

    # ------------------------------------------------------------------------------------------------ encode

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        squares = moments(gradients)[:, 0]
        scalars = family_named(self.family).encode(gradients, keys, self.projection.m)
        if squares.max() * gradients.shape[1] > 1e76 and not np.isfinite(scalars).all():
            raise CodecError("a projection overflows float32: the gradient is too large; scale or clip it")
        return self._arrays(self._find(scalars, squares), keys)

    def _find(self, scalars: Float32, squares: NDArray[np.float64]) -> Found:
        grouped = scalars.reshape(len(scalars), self.m, self.group)
        sizes = np.abs(grouped)
        places = sizes.argmax(axis=2)  # of equal ones the first
        highest = np.take_along_axis(grouped, places[:, :, np.newaxis], axis=2)[:, :, 0]
        numbers = places + self.group * (highest < 0)
        return Found(numbers.astype(np.uint32), scales_of(squares, np.abs(highest.astype(np.float64)).mean(axis=1)))

    def _arrays(self, found: Found, keys: list[Key]) -> list[Arrays]:
        uniform = (rounding_words(keys, 1)[:, 0].astype(np.float64) + 0.5) * 2.0**-32
        levels = _rounded_levels(found.scales, uniform)
        numbers = np.where(levels[:, np.newaxis] > 0, found.numbers, 0)
        return [(levels[i : i + 1], pack_indices(numbers[i], self.bits)) for i in range(len(keys))]

    # ------------------------------------------------------------------------------------------------ decode

    def peaks_of(self, update: Update) -> tuple[NDArray[np.int64], Float32]:
        """Return which of all m · group directions the peaks of an update are, [m], and their signs, ±1."""
        numbers = unpack_indices(update.arrays[1], self.bits, self.m)
        signs = np.where(numbers < self.group, np.float32(1), np.float32(-1))
        return np.arange(self.m) * self.group + numbers % self.group, signs

    def norm_of(self, update: Update) -> float:
        """Return the length of the gradient, as far as the scale tells it: within a fifth or so."""
        return float(scale_values()[int(update.arrays[0][0])]) * largest_normal(self.group)[0]

    def scalars_of(self, update: Update) -> NDArray[np.float64]:
        """See Codec: one for each of the m · group directions, all zero but the peaks."""
        scalars = np.zeros(self.projection.m)
        places, signs = self.peaks_of(update)
        scalars[places] = self.group * scale_values()[int(update.arrays[0][0])] * signs
        return scalars

    def mean_update(self, updates: Sequence[Update], bits: int, weights: Sequence[float] | None = None) -> Update:
        """See Codec: the mean of peaks is no peak any more, so that it is an update of `projection`."""
        scalars = np.zeros(self.projection.m)
        for factor, update in zip(mean_factors(len(updates), weights), updates, strict=True):
            scalars += factor * self.scalars_of(update)
        return self.update_of(scalars, updates[0].d, updates[0].key, bits)

    def update_of(self, scalars: NDArray[np.float64], d: int, key: Key, bits: int) -> Update:
        """See Codec."""
        return self.projection.update_of(scalars, d, key, bits)

    def _factors(self, updates: Sequence[Update], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """What multiplies the ±1 of each update: its weight, its scale, and 1/m."""
        return factors * scale_values()[[int(update.arrays[0][0]) for update in updates]] / self.m

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        scalars = np.zeros((len(updates), self.projection.m), dtype=np.float32)
        for row, update in zip(scalars, updates, strict=True):
            places, signs = self.peaks_of(update)
            row[places] = signs
        keys = [update.key for update in updates]
        return family_named(self.family).decode(scalars, self._factors(updates, factors), keys, d)

    # --------------------------------------------------------------------------------------------------- on a GPU

    def _encode_on_gpu(self, gradients: "Tensor", keys: list[Key]) -> list[Arrays]:
        from fedmpdd.codecs import peaks_cuda

        return self._arrays(peaks_cuda.find(self, gradients, keys), keys)

    def _decode_sum_on_gpu(
        self, updates: Sequence[Update], factors: NDArray[np.float64], d: int, device: str
    ) -> "Tensor":
        from fedmpdd.codecs import peaks_cuda

        return peaks_cuda.decode(self, updates, self._factors(updates, factors), d, device)

    # ----------------------------------------------------------------------------------------------- variance

    def variance(
        self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None
    ) -> float | None:
        """Return the error of the mean of n clients, as MPDD.variance does.

        None for a partitioned round in which directions repeat: clients that agree then choose the same ones.
        """
        self.check(d)
        if partitioned and n > 1 and n * self.projection.m > hadamard_size(d) and self.family == "hadamard":
            return None
        overlap = family_named(self.family).overlap(d)
        mean, square = largest_normal(self.group)
        spread = 3 * (square - mean * mean) / (self.m * mean * mean)  # of 1/mean² over m peaks, to first order
        one = rounding_factor() * (d / self.m / mean**2 * (1 + spread) + (1 - 1 / self.m) * overlap) - 1
        if not partitioned or n == 1:
            return one / n
        shared = 1 / n if alignment is None else alignment
        return one / n + (overlap - 1) * (shared - 1 / n)


def scales_of(squares: NDArray[np.float64], peaks: NDArray[np.float64]) -> NDArray[np.float64]:
    """‖g‖² / mean |peak|: then the estimate's part along g is g, whatever was found; 0 where nothing was."""
    return np.where(peaks > 0, squares / np.where(peaks > 0, peaks, 1.0), 0.0)


@cache
def scale_values() -> NDArray[np.float64]:
    """The 256 scales: 0, and 2^((k − 128)/4) for k = 1 … 255."""
    powers = [math.ldexp(_ROOTS[k % _STEPS], (k - _ONE_AT) // _STEPS) for k in range(1, 256)]
    values = np.array([0.0, *powers])
    values.flags.writeable = False
    return values


def _rounded_levels(scales: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.uint8]:
    """One of the two scales around each, drawn so that its mean is the scale."""
    values = scale_values()
    if not (scales <= values[-1]).all():
        raise CodecError(
            f"the scale of the peaks is above 2^31.75, {values[-1]:.4g}: the gradient is too large; scale or clip it"
        )
    above = np.clip(np.searchsorted(values, scales), 1, 255)
    low, high = values[above - 1], values[above]
    up = uniform * (high - low) < scales - low
    return np.where(up, above, above - 1).astype(np.uint8)


@cache
def rounding_factor() -> float:
    """E[(rounded scale)²] / scale², its logarithm uniform between two scales: sinh(h)/h for a ratio of exp(h)."""
    h = math.log(2) / _STEPS
    return math.sinh(h) / h
