"""EDEN (DRIVE at one bit): a random rotation, and the best quantiser of a normal variable on every coordinate of it.

The rotation is the whole hadamard family of a key, all N rows: s_j = u_jᵀ g, so that s_j/‖g‖ is about standard normal.
Its quantised values c_j are sent with scale = ‖g‖² / mean(s_j c_j), and ĝ = scale/N · Σ c_j u_j: then ĝᵀg = ‖g‖²,
and by symmetry the rest of the error has mean zero. (The paper's ‖x‖²/⟨Rx, Q(Rx)⟩, with R the rotation of length 1.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import as_float32
from fedmpdd.codecs._packing import (
    check_scale,
    check_spare_bits,
    largest_size,
    length_of,
    pack_indices,
    packed_bytes,
    unpack_indices,
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
from fedmpdd.directions import Key, check_d, family_named, hadamard_size, moments
from fedmpdd.errors import CodecError

BITS = (1, 2, 3, 4)
# Every level is below 4, so that no coordinate of an estimate is above 4 times the scale.
_LARGEST_SCALE = LARGEST_COORDINATE / 4
# Lloyd–Max levels of the standard normal above 0; those below are their mirror image, thresholds lie half-way.
LLOYD_MAX = {
    1: (0.7978845608,),
    2: (0.4527800346, 1.5104176085),
    3: (0.2450941789, 0.7560052812, 1.3439092785, 2.1519457045),
    4: (
        *(0.1283950299, 0.3880482995, 0.6567591185, 0.9423404565),
        *(1.2562311973, 1.6180463860, 2.0690172265, 2.7325895710),
    ),
}


@dataclass(frozen=True)
class EDEN(Codec):
    """All N ≥ d rotated coordinates with `bits` bits each, or the first `rows` of the key's order (sub-bit rates)."""

    bits: int = 1
    rows: int | None = None

    name: ClassVar[str] = "eden"
    code: ClassVar[int] = 10
    unbiased: ClassVar[bool] = True  # as one-bit FedMPDD is: up to terms that vanish with 1/d

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        if self.rows is not None:
            check_count("rows", self.rows, "rotated coordinates")

    # ---------------------------------------------------------------------------------- what is on the wire

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)
        if self.rows is not None and self.rows > hadamard_size(d):
            raise CodecError(
                f"rows = {self.rows} of the {hadamard_size(d)} rotated coordinates of d = {d}: there are not as many; "
                "leave rows out to send them all"
            )

    def sent(self, d: int) -> int:
        """Return how many rotated coordinates are sent."""
        return hadamard_size(d) if self.rows is None else self.rows

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return Section("scale", "<f4", 1), Section("levels", "|u1", packed_bytes(self.sent(d), self.bits))

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        scale, packed = arrays
        check_scale(float(scale[0]), packed, largest=_LARGEST_SCALE)
        check_spare_bits(packed, self.sent(d), self.bits)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec. Unpacking levels takes longer than the transform."""
        return 64 * d + 640 * self.sent(d)

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec."""
        return 4 * largest_size(np.concatenate([update.arrays[0] for update in updates]))

    def magnitude(self, update: Update) -> float:
        """See Codec: rows of a rotation are orthogonal, so that levels have the length of what they stand for."""
        levels = quantiser_levels(self.bits)[unpack_indices(update.arrays[1], self.bits, self.sent(update.d))]
        return float(update.arrays[0][0]) * length_of(levels) / math.sqrt(self.sent(update.d))

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(self.bits) if self.rows is None else Parameters(self.bits, 1, self.rows)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.first, parameters.size if parameters.second else None)

    # -------------------------------------------------------------------------------------- encode and decode

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        squares = moments(gradients)[:, 0]
        # One client at a time: a rotated gradient is as large as a gradient.
        return [self._quantise(gradients[i : i + 1], key, float(squares[i])) for i, key in enumerate(keys)]

    def _quantise(self, gradient: Float32, key: Key, square: float) -> Arrays:
        size = hadamard_size(gradient.shape[1])
        rotated = family_named("hadamard").encode(gradient, [Key(key.seed)], size)[0]
        rotated = as_float32(rotated, "a rotated coordinate").astype(np.float64)
        levels = quantiser_levels(self.bits)
        thresholds = (levels[1:].astype(np.float64) + levels[:-1]) / 2
        indices = np.searchsorted(thresholds, rotated / math.sqrt(square or 1.0), side="right").astype(np.uint8)
        # The scale is that of all rows, sent or not: rows are left out at random, which scaling by N/rows makes up for.
        product = float((rotated * levels[indices]).mean())
        scale = as_float32(np.array([square / product if square > 0 else 0.0]), "the scale", _LARGEST_SCALE)
        if self.rows is not None:
            indices = indices[(key.slot * self.rows % size + np.arange(self.rows)) % size]
        if scale[0] == 0:
            indices[:] = 0
        return scale, pack_indices(indices, self.bits)

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        sent, levels = self.sent(d), quantiser_levels(self.bits)
        out = np.zeros(d, dtype=np.float32)
        groups: dict[int, list[int]] = {}
        for i, update in enumerate(updates):
            groups.setdefault(update.key.seed, []).append(i)
        for group in groups.values():  # one seed, one inverse transform
            scalars = np.stack([levels[unpack_indices(updates[i].arrays[1], self.bits, sent)] for i in group])
            scales = np.array([updates[i].arrays[0][0] for i in group], dtype=np.float64)
            # All rows are the same rows in every slot.
            keys = [updates[i].key if self.rows is not None else Key(updates[i].key.seed) for i in group]
            out += family_named("hadamard").decode(scalars, factors[group] * scales / sent, keys, d)
        return out

    # ----------------------------------------------------------------------------------------------- variance

    def variance(
        self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None
    ) -> float | None:
        """Return (N/(rows·(1 − D)) − 1)·(d − 1)/(N − 1)/n, D the distortion of the quantiser (docs/codecs.md).

        None for a partitioned round: its clients share a rotation, and their errors depend on how gradients are alike.
        """
        if partitioned and n > 1:
            return None
        size = hadamard_size(d)
        if size == 1:
            return 0.0
        return (size / (self.sent(d) * (1 - distortion(self.bits))) - 1) * (d - 1) / (size - 1) / n


@cache
def quantiser_levels(bits: int) -> Float32:
    """Return all levels of the quantiser, from the lowest up."""
    above = np.array(LLOYD_MAX[bits], dtype=np.float32)
    levels = np.concatenate([-above[::-1], above])
    levels.flags.writeable = False
    return levels


@cache
def distortion(bits: int) -> float:
    """Return E(z − Q(z))² = 1 − E[Q(z)²] of a standard normal z: each level is the mean of what falls on it."""
    above = LLOYD_MAX[bits]
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(above)), math.inf]
    tails = [math.erfc(edge / math.sqrt(2)) for edge in edges]
    return 1 - sum(c * c * (tails[i] - tails[i + 1]) for i, c in enumerate(above))
