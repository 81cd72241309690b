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

from fedmpdd.codecs.backends import HOST, Array, Backend, as_float32
from fedmpdd.codecs.base import (
    LARGEST_COORDINATE,
    Arrays,
    Codec,
    Columns,
    Parameters,
    Section,
    Update,
    check_bits,
    check_count,
)
from fedmpdd.codecs.packing import (
    check_scale,
    check_spare_bits,
    largest_of,
    length_of,
    pack_indices,
    packed_bytes,
    unpack_indices,
)
from fedmpdd.directions import Key, check_d, hadamard_size
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
    self_contained: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True  # as one-bit FedMPDD is: up to terms that vanish with 1/d

    def __post_init__(self) -> None:
        check_bits(self.bits, BITS)
        if self.rows is not None:
            check_count("rows", self.rows, "rotated coordinates")

    # ---------------------------------------------------------------------------------- what is on the wire

    def check(self, d: int, slot: int = 0) -> None:
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
        return Section("scale", "<f4", 1), Section("levels", "|u1", packed_bytes(self.sent(d), self.bits))

    def check_content(self, arrays: Arrays, d: int) -> None:
        scale, packed = arrays
        check_scale(float(scale[0]), packed, largest=_LARGEST_SCALE)
        check_spare_bits(packed, self.sent(d), self.bits)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec. Unpacking levels takes longer than the transform."""
        return 64 * d + 640 * self.sent(d)

    def _bound(self, columns: Columns) -> float:
        return 4 * largest_of(columns[0])

    def magnitude(self, update: Update) -> float:
        """See Codec: rows of a rotation are orthogonal, so that levels have the length of what they stand for."""
        packed = update.arrays[1][np.newaxis]
        levels = quantiser_levels(self.bits)[unpack_indices(HOST, packed, self.bits, self.sent(update.d))[0]]
        return float(update.arrays[0][0]) * length_of(levels) / math.sqrt(self.sent(update.d))

    def parameters(self) -> Parameters:
        return Parameters(self.bits) if self.rows is None else Parameters(self.bits, 1, self.rows)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(parameters.first, parameters.size if parameters.second else None)

    # -------------------------------------------------------------------------------------- encode and decode

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        squares = backend.moments(gradients)[:, 0]
        # Few clients at a time: a rotated gradient is as large as a gradient.
        together = backend.rows_at_once(hadamard_size(gradients.shape[1]))
        cuts = [slice(start, start + together) for start in range(0, len(keys), together)]
        parts = [self._quantise(backend, gradients[rows], keys[rows], squares[rows]) for rows in cuts]
        return tuple(backend.xp.concatenate(column) for column in zip(*parts, strict=True))

    def _quantise(self, backend: Backend, gradients: Array, keys: list[Key], squares: Array) -> Columns:
        xp, size = backend.xp, hadamard_size(gradients.shape[1])
        rotated = backend.project("hadamard", gradients, [Key(key.seed) for key in keys], size)
        rotated = backend.cast(as_float32(backend, rotated, "a rotated coordinate"), "<f8")
        levels = backend.like(quantiser_levels(self.bits))
        exact_levels = backend.cast(levels, "<f8")
        thresholds = (exact_levels[1:] + exact_levels[:-1]) / 2
        norms = xp.sqrt(xp.where(squares > 0, squares, 1.0))[:, None]
        indices = backend.settled(lambda factor: backend.search(thresholds, rotated / (norms * factor)))
        # The scale is that of all rows, sent or not: rows are left out at random, which scaling by N/rows makes up for.
        products = backend.mean(rotated * levels[indices])
        scales = xp.where(squares > 0, squares / xp.where(products > 0, products, 1.0), 0.0)
        scales = as_float32(backend, backend.rounded(scales), "the scale", _LARGEST_SCALE)
        if self.rows is not None:
            firsts = backend.like(np.array([key.slot * self.rows % size for key in keys]))
            places = firsts[:, None] + backend.like(np.arange(self.rows))
            indices = backend.take(indices, places % size)
        packed = pack_indices(backend, backend.cast(indices, "|u1"), self.bits)
        return scales[:, None], packed * backend.cast(scales > 0, "|u1")[:, None]

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        sent, levels = self.sent(d), backend.like(quantiser_levels(self.bits))
        # All rows are the same rows in every slot.
        rows = list(keys) if self.rows is not None else [Key(key.seed) for key in keys]
        groups: dict[int, list[int]] = {}  # one seed, one inverse transform
        for i, key in enumerate(keys):
            groups.setdefault(key.seed, []).append(i)
        out = backend.zeros((d,), "<f4")
        # A GPU takes all seeds at once, and adds them up in this order too; levels are as large as gradients.
        for group in groups.values() if backend is HOST else [list(range(len(rows)))]:
            packed, scales = (backend.stacked(tuple(column[i] for i in group)) for column in columns[::-1])
            scalars = levels[unpack_indices(backend, packed, self.bits, sent)]
            multipliers = factors[group] * backend.cast(scales[:, 0], "<f8") / sent
            out += backend.combine("hadamard", scalars, multipliers, [rows[i] for i in group], d)
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
def quantiser_levels(bits: int) -> NDArray[np.float32]:
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
