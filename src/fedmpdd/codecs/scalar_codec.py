"""Codecs whose updates are scalars along directions of the key: directions × how scalars are written.

What makes scalars is a third choice that a codec does not see: projecting a gradient, differentiating forwards along
each direction, or taking the difference of two losses. All three end in `encode_scalars`.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import HOST, Array, Backend
from fedmpdd.codecs.base import LARGEST_COORDINATE, Arrays, Batch, Codec, Columns, Section, Update, mean_factors
from fedmpdd.codecs.evidence import Evidence, Projections
from fedmpdd.codecs.packing import length_of
from fedmpdd.codecs.scalar_codes import EncodedScalars, ScalarCode, SignCode
from fedmpdd.directions import Key, derive_seed, family_named
from fedmpdd.errors import CodecError

Float64 = NDArray[np.float64]
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class Terms(NamedTuple):
    """What kernels add up: numbers [rows, m] along m directions of one key a row, and what multiplies each row.

    packed: the numbers are ±1 and come as bits, as in EncodedScalars.
    """

    numbers: Array
    multipliers: Array
    keys: Sequence[Key]
    m: int
    packed: bool


class ScalarCodec(Codec):
    """`count` scalars along directions of `family`, written in `scalars`."""

    unbiased: ClassVar[bool] = True
    self_contained: ClassVar[bool] = True
    in_a_row: ClassVar[bool] = True  # whether an update's directions are neighbours in the order of its seed
    family: str
    m: int  # scalars, or peaks, that are sent

    @property
    def step(self) -> float | None:
        """How far a model is moved to and fro for a slope; None where slopes are derivatives."""
        return None

    @property
    @abstractmethod
    def count(self) -> int:
        """How many directions an update has scalars along."""

    @property
    @abstractmethod
    def scalars(self) -> ScalarCode:
        """How the scalars are written."""

    @property
    def adds_up(self) -> bool:
        return self.scalars.rounding == "exact"

    @property
    def scalar_codec(self) -> "ScalarCodec":
        return self

    def with_bits(self, bits: int) -> "ScalarCodec":
        """Return a codec along the same directions, FedMPDD if it can be, with scalars of so many bits."""
        from fedmpdd.codecs.mpdd import MPDD

        return MPDD(self.count, bits, self.family)

    # ---------------------------------------------------------------------------------- what is on the wire

    def check(self, d: int, slot: int = 0) -> None:
        family_named(self.family).check(d, self.count, slot)

    def sections(self, d: int) -> tuple[Section, ...]:
        return self.scalars.sections(self.count)

    def check_content(self, arrays: Arrays, d: int) -> None:
        self.scalars.check_content(arrays, self.count)

    def work(self, d: int, slot: int = 0) -> int:
        return d * self.count if self.family == "rademacher" else 64 * d + 128 * self.count

    def _bound(self, columns: Columns) -> float:
        """See Codec. A coordinate is a mean of scalars, with signs."""
        return self.scalars.bound(columns)

    # -------------------------------------------------------------------------------------- encode and decode

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        # On the CPU moments are the fastest way to find a coordinate that is not finite; a GPU finds it in the scalars.
        moments = backend.moments(gradients) if backend is HOST or self.scalars.needs_moments else None
        # Algorithm 2, lines 7-10: s[j] = u_jᵀ g
        scalars = backend.project(self.family, gradients, keys, self.count)
        return self.write(backend, scalars, moments, keys)

    def write(
        self,
        backend: Backend,
        scalars: Array,
        moments: Array | None,
        keys: list[Key],
        sign_scales: Array | None = None,
    ) -> Columns:
        """Turn scalars [clients, count] into sections, or raise CodecError where one is too large.

        moments: as for ScalarCode.write. sign_scales: the scales of signs, where somebody else makes them.
        """
        backend.require(
            backend.xp.abs(scalars) <= LARGEST_COORDINATE,  # NaN is not
            f"a projection is above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave float32: the "
            "gradient is too large; scale or clip it before encoding",
        )
        if sign_scales is not None and isinstance(self.scalars, SignCode):
            return self.scalars.write_scaled(backend, scalars, sign_scales)
        return self.scalars.write(backend, scalars, moments, keys)

    def encode_scalars(self, scalars: Float64, keys: Sequence[Key | int], d: int) -> Batch:
        """Encode scalars [clients, count] that were made without a gradient at hand.

        They are rounded with the numbers that `encode` takes, so that the updates are those of a gradient with these
        projections; the scale of signs and peaks is made from the scalars.
        """
        if scalars.ndim != 2 or scalars.shape[1] != self.count:
            raise CodecError(f"scalars have shape {list(scalars.shape)}, expected [{len(keys)}, {self.count}]")
        checked = self.check_keys(keys, len(scalars), d)
        if not (np.abs(scalars) <= _LARGEST_FLOAT32).all():
            raise CodecError("a scalar is beyond float32: the gradients are too large; scale or clip them")
        return Batch(self, d, tuple(checked), self.write(HOST, scalars, None, checked))

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        # Algorithm 2, lines 13-20
        written = self.scalars.read(backend, columns, self.count)
        return self.combine(backend, written, keys, factors, d)

    def combine(self, backend: Backend, written: EncodedScalars, keys: Sequence[Key], factors: Array, d: int) -> Array:
        """Sum over updates of factor times estimate, given the scalars as they were written."""
        numbers, multipliers, keys, m, packed = self.terms(backend, written, keys, factors)
        if packed:
            return backend.combine_signs(self.family, numbers, multipliers, keys, m, d)
        return backend.combine(self.family, numbers, multipliers, keys, d)

    def terms(self, backend: Backend, written: EncodedScalars, keys: Sequence[Key], factors: Array) -> Terms:
        """Return what kernels add up to the sum over updates of factor times estimate: a row for each update."""
        multipliers = self.scalars.multipliers(factors, written.scales, self.count)
        return Terms(written.numbers, multipliers, keys, self.count, written.packed)

    def direction_keys(self, key: Key, begin: int, end: int) -> list[Key]:
        """Return directions begin … end − 1 of an update with this key, each as the only one of a key of its own."""
        return [Key(key.seed, key.slot * self.count + j) for j in range(begin, end)]

    # ------------------------------------------------------------------------- scalars along the same directions

    def written(self, updates: Sequence[Update]) -> EncodedScalars:
        """Return the scalars of updates as numbers and scales; signs as ±1."""
        numbers, scales, packed = self.scalars.read(HOST, Batch.of(updates).columns, self.count)
        if packed:
            numbers = 1.0 - np.float32(2.0) * HOST.unpack_bits(numbers, self.count)
        return EncodedScalars(numbers, np.broadcast_to(scales, len(updates)))

    def scalars_of(self, update: Update) -> Float64:
        """Return the scalars of an update [count]."""
        numbers, scales, _ = self.written([update])
        return np.asarray(scales[0] * numbers[0].astype(np.float64))

    def mean_update(self, updates: Sequence[Update], bits: int, weights: Sequence[float] | None = None) -> Update:
        """Return the (weighted) mean of updates with one key as one update with scalars of so many bits."""
        if len({update.key for update in updates}) != 1:
            raise CodecError(
                'the updates have different keys, so that their scalars do not add up; use keys = "shared"'
            )
        numbers, scales, _ = self.written(updates)
        # One client after another: a matrix product would add up in an order that depends on the machine.
        scalars = np.zeros(self.count)
        for factor, row in zip(mean_factors(len(updates), weights) * scales, numbers.astype(np.float64), strict=True):
            scalars += factor * row
        return self.update_of(scalars, updates[0].d, updates[0].key, bits)

    def update_of(self, scalars: Float64, d: int, key: Key, bits: int) -> Update:
        """Return the update that carries these scalars with so many bits each: a mean that somebody else took."""
        sent = self.with_bits(bits)
        # Rounded with the clients' numbers, its errors would add to theirs instead of cancelling.
        rounding = Key(derive_seed(key.seed, 0, 0))
        batch = sent.encode_scalars(scalars[np.newaxis], [rounding], d)
        return Update(sent, d, key, batch.updates()[0].arrays)

    # ------------------------------------------------------------------------------------- answers to others

    def magnitude(self, update: Update) -> float:
        """See Codec: scalars are about normal, with the gradient's length as their deviation."""
        length = length_of(self.scalars_of(update)) / math.sqrt(self.count)
        return length if self.scalars.graded else length * math.sqrt(2 / math.pi)

    def evidence(self, updates: Sequence[Update]) -> Evidence:
        """See Codec: the scalars themselves, as they were rounded."""
        (numbers, scales, _), code = self.written(updates), self.scalars
        keys = [update.key for update in updates]
        return Projections(self.family, keys, numbers, scales, code.rounding, sized=code.sized)
