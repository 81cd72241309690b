"""FedMPDD: m directional derivatives of the gradient and a seed (Algorithm 2 of the paper).

With m = 1 and 32 bits it is FedPDD (Algorithm 1). Fewer bits, and hadamard directions, are this project's own; the
derivations of scales and variances are in docs/codec.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import largest_normal, repeated_share
from fedmpdd.codecs._packing import (
    check_finite_values,
    check_scale,
    check_spare_bits,
    largest_size,
    pack_nibbles,
    packed_bytes,
    unpack_nibbles,
)
from fedmpdd.codecs.base import (
    LARGEST_COORDINATE,
    Arrays,
    Codec,
    Float32,
    Parameters,
    Section,
    Update,
    check_bits,
    check_count,
)
from fedmpdd.directions import FAMILIES, Key, family_named, hadamard_size, moments, rounding_words
from fedmpdd.errors import CodecError, ContentError

if TYPE_CHECKING:
    from torch import Tensor

BITS = (32, 16, 8, 4, 1)
_INTEGER_TYPES = {16: "<i2", 8: "<i1"}
_SCALE_TOO_LARGE = (
    f"the scale stands for scalars above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave float32: the "
    "gradient is too large; scale or clip it before encoding"
)


@dataclass(frozen=True)
class MPDD(Codec):
    """m scalars of `bits` bits along directions of `family`."""

    m: int
    bits: int = 32
    family: str = "rademacher"

    name: ClassVar[str] = "mpdd"
    code: ClassVar[int] = 1
    unbiased: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("m", self.m, "directions")
        check_bits(self.bits, BITS)
        family_named(self.family)

    @property
    def levels(self) -> int:
        """Largest level of a scalar of 4 to 16 bits: levels are −levels … levels."""
        return int(2 ** (self.bits - 1)) - 1

    # ---------------------------------------------------------------------------------- what is on the wire

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        family_named(self.family).check(d, self.m, slot)

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec. Every number of bits but 32 has one scale per update."""
        if self.bits == 32:
            return (Section("scalars", "<f4", self.m),)
        scale = Section("scale", "<f4", 1)
        if self.bits in _INTEGER_TYPES:
            return scale, Section("scalars", _INTEGER_TYPES[self.bits], self.m)
        return scale, Section("scalars", "|u1", packed_bytes(self.m, self.bits))

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        if self.bits == 32:
            check_finite_values(arrays[0], LARGEST_COORDINATE)
            return
        scale, scalars = float(arrays[0][0]), arrays[1]
        check_scale(scale, scalars, largest=self._largest_scale)
        if self.bits in (1, 4):
            check_spare_bits(scalars, self.m, self.bits)
        if self.bits > 1 and (self._unpack(scalars) < -self.levels).any():
            raise ContentError(f"a scalar has level {-self.levels - 1}; levels are ±{self.levels}: drop this update")

    @property
    def _largest_scale(self) -> float:
        """The scale whose last level is the largest coordinate that an update may stand for."""
        return LARGEST_COORDINATE / (self.levels if self.bits > 1 else 1)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec."""
        return d * self.m if self.family == "rademacher" else 64 * d + 128 * self.m

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec. A coordinate is a mean of m scalars, with signs."""
        sizes = np.concatenate([update.arrays[0] for update in updates])
        return largest_size(sizes) * (1 if self.bits == 32 else max(1, self.levels))

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(family_named(self.family).code, self.bits, self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        for family in FAMILIES.values():
            if family.code == parameters.first:
                return cls(m=parameters.size, bits=parameters.second, family=family.name)
        raise CodecError(f"family number {parameters.first} is unknown")

    # ------------------------------------------------------------------------------------------------ encode

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        seconds_and_fourths = moments(gradients)
        # Algorithm 2, lines 7-10: s[j] = u_jᵀ g
        scalars = family_named(self.family).encode(gradients, keys, self.m)
        return self._arrays(scalars, seconds_and_fourths, keys)

    def _arrays(self, scalars: Float32, seconds_and_fourths: NDArray[np.float64], keys: list[Key]) -> list[Arrays]:
        """Turn scalars [clients, m] and the moments of their gradients into the arrays of each update."""
        return self.arrays_of(scalars, _one_bit_scales(seconds_and_fourths) if self.bits == 1 else None, keys)

    def arrays_of(
        self, scalars: Float32, one_bit_scales: NDArray[np.float64] | None, keys: Sequence[Key]
    ) -> list[Arrays]:
        """Return the arrays of updates with these scalars [clients, m], or raise CodecError where one is too large.

        Signs need scales [clients] beside them, which are None for every other number of bits.
        """
        if not largest_size(scalars) <= LARGEST_COORDINATE:  # NaN included
            raise CodecError(
                f"a projection is above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave float32: the "
                "gradient is too large; scale or clip it before encoding"
            )
        if self.bits == 32:
            return [(row,) for row in scalars]
        if one_bit_scales is not None:
            scales, packed = _one_bit(scalars, one_bit_scales)
        else:
            scales, packed = self._round(scalars, list(keys))
        return [(scales[i : i + 1], packed[i]) for i in range(len(keys))]

    def _round(self, scalars: Float32, keys: list[Key]) -> tuple[Float32, NDArray[Any]]:
        """Stochastic rounding to levels of a common step, the largest scalar on the last level: unbiased."""
        largest = np.abs(scalars).max(axis=1).astype(np.float64)
        scales = (largest / self.levels).astype(np.float32)
        # float32 may have rounded the step down, and the largest scalar must not need one level more.
        low = scales.astype(np.float64) * self.levels < largest
        scales[low] = np.nextafter(scales[low], np.float32(np.inf))
        if (scales.astype(np.float64) > self._largest_scale).any():
            raise CodecError(_SCALE_TOO_LARGE)
        steps = np.where(scales > 0, scales, 1).astype(np.float64)[:, np.newaxis]
        uniform = (rounding_words(keys, self.m) + 0.5) * 2.0**-32
        levels = np.floor(scalars / steps + uniform)
        levels[scales == 0] = 0
        return scales, self._pack_levels(levels)

    # ------------------------------------------------------------------------------------------------ decode

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        # Algorithm 2, lines 13-20
        family = family_named(self.family)
        keys = [update.key for update in updates]
        scalars, factors = self._scalars(updates, factors)
        if self.bits == 1:
            return family.decode_signs(scalars, factors, keys, self.m, d)
        return family.decode(scalars, factors, keys, d)

    def _scalars(
        self, updates: Sequence[Update], factors: NDArray[np.float64]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return float32 scalars [clients, m], or signs [clients, ⌈m/8⌉] if bits is 1, and what multiplies them.

        The 1/m of Algorithm 2, the weight of the client and the scale of the update are in the factors.
        """
        factors = factors / self.m
        values = np.concatenate([update.arrays[-1] for update in updates]).reshape(len(updates), -1)
        if self.bits == 32:
            return values.astype(np.float32, copy=False), factors
        factors = factors * np.concatenate([update.arrays[0] for update in updates])
        if self.bits == 1:
            return values.astype(np.uint8, copy=False), factors
        return self._unpack(values).astype(np.float32), factors

    # --------------------------------------------------------------------------------------------------- on a GPU

    def _encode_on_gpu(self, gradients: "Tensor", keys: list[Key]) -> list[Arrays]:
        from fedmpdd.codecs import mpdd_cuda

        # Scalars are few: once they are made, the rest is done as on the CPU.
        scalars, moments = mpdd_cuda.project_to_host(self, gradients, keys)
        return self._arrays(scalars, moments, keys)

    def _decode_sum_on_gpu(
        self, updates: Sequence[Update], factors: NDArray[np.float64], d: int, device: str
    ) -> "Tensor":
        from fedmpdd.codecs import mpdd_cuda

        scalars, factors = self._scalars(updates, factors)
        return mpdd_cuda.decode_from_host(self, scalars, factors, [update.key for update in updates], d, device)

    def _pack_levels(self, levels: NDArray[Any]) -> NDArray[Any]:
        """Levels of 4 to 16 bits as they stand in an update."""
        if self.bits == 4:
            return pack_nibbles(levels.astype(np.int8))
        return levels.astype(_INTEGER_TYPES[self.bits])

    @property
    def has_graded_scalars(self) -> bool:
        """See Codec: all but signs have sizes."""
        return self.bits > 1

    def magnitude(self, update: Update) -> float:
        """See Codec: scalars are about normal, with the gradient's length as their deviation."""
        if self.bits == 1:
            return float(update.arrays[0][0]) * math.sqrt(2 / math.pi)
        return math.sqrt(float(np.square(self.scalars_of(update)).mean()))

    def scalars_of(self, update: Update) -> NDArray[np.float64]:
        """See Codec."""
        scale = 1.0 if self.bits == 32 else float(update.arrays[0][0])
        return scale * self.levels_of(update).astype(np.float64)

    def mean_update(self, updates: Sequence[Update], bits: int, weights: Sequence[float] | None = None) -> Update:
        """See Codec."""
        from fedmpdd.codecs.shared_mean import mean_rounding, shared_mean

        return shared_mean(self, updates, bits, mean_rounding(updates[0].key), weights)

    def update_of(self, scalars: NDArray[np.float64], d: int, key: Key, bits: int) -> Update:
        """See Codec."""
        from fedmpdd.codecs.shared_mean import mean_rounding, update_of_scalars

        return update_of_scalars(self, scalars, d, key, bits, mean_rounding(key))

    def levels_of(self, update: Update) -> Float32:
        """Return the scalars of an update [m] in units of its scale (1 for 32 bits), as float32."""
        scalars = update.arrays[-1]
        if self.bits == 1:
            return 1.0 - np.float32(2.0) * np.unpackbits(scalars, count=self.m, bitorder="little")
        return self._unpack(scalars).astype(np.float32)

    def _unpack(self, scalars: NDArray[Any]) -> NDArray[Any]:
        """Levels of scalars of 4 to 16 bits."""
        return unpack_nibbles(scalars, self.m) if self.bits == 4 else scalars

    # ----------------------------------------------------------------------------------------------- variance

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """Return the error of the mean of n clients, relative to the mean squared norm of their gradients.

        Independent keys: the error of one client divided by n. Partitioned (one seed, one slot a client): errors of
        clients cancel as far as gradients agree; `alignment` is ‖mean gradient‖² / mean ‖gradient‖², from 0 (they
        cancel) over 1/n (unrelated, the default) to 1 (all the same). One bit: for gradients that spread over many
        coordinates; the bias that others have (docs/codec.md) comes on top.
        """
        self.check(d)
        if n < 1 or not 0 <= (1 if alignment is None else alignment) <= 1 + 1e-9:
            raise CodecError(f"n = {n}, alignment = {alignment}: expected n of at least 1 and an alignment from 0 to 1")
        overlap = family_named(self.family).overlap(d)
        one = d / self.m * self.scalar_second_moment() + (1 - 1 / self.m) * overlap - 1
        if not partitioned or n == 1:
            return one / n
        shared = 1 / n if alignment is None else alignment
        repeated = repeated_share(hadamard_size(d), self.m, n) if self.family == "hadamard" else 0.0
        cosine = (shared - 1 / n) * n / (n - 1)  # of two clients' gradients, on average: from −1/(n − 1) to 1
        # Two signs of one row agree more often than the cosine says: E = 2/π · asin(cosine).
        same_row = d * math.asin(min(1.0, cosine)) / cosine if self.bits == 1 and cosine != 0 else d
        return one / n + ((1 - repeated) * overlap + repeated * same_row - 1) * (shared - 1 / n)

    def scalar_second_moment(self) -> float:
        """E[s̃²] / ‖g‖² of a scalar as it is decoded: 1 plus what its bits add."""
        if self.bits == 32:
            return 1.0
        if self.bits == 1:
            return math.pi / 2
        # A fraction of a step that is uniform adds step²/6; the largest scalar sits on a level and adds nothing.
        return 1.0 + (1 - 1 / self.m) * largest_normal(self.m)[1] / (6 * self.levels**2)


def _one_bit_scales(seconds_and_fourths: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scale √(π/2)·‖g‖ / (1 + Σg⁴/(12‖g‖⁴)) that makes sign · scale unbiased (docs/codec.md)."""
    second, fourth = seconds_and_fourths.T
    safe = np.where(second > 0, second, 1.0)
    return np.asarray(np.sqrt(math.pi / 2 * second) / (1 + fourth / (12 * safe * safe)))


def _one_bit(scalars: Float32, exact_scales: NDArray[np.float64]) -> tuple[Float32, NDArray[np.uint8]]:
    """Scales as they are sent, and packed signs."""
    with np.errstate(over="ignore"):
        scales = exact_scales.astype(np.float32)
    if not (scales <= LARGEST_COORDINATE).all():
        raise CodecError(_SCALE_TOO_LARGE)
    negative = (scalars < 0) & (scales > 0)[:, np.newaxis]
    return scales, np.packbits(negative, axis=1, bitorder="little")
