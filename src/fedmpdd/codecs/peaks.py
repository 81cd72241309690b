"""Peaks: of every group of directional derivatives only the place of the largest, its sign, and one byte of scale.

FedMPDD with one bit says of m derivatives on which side of 0 they lie. The same bytes say more if they point out which
of K derivatives is the largest: log2(K) + 1 bits for a direction along which the gradient is E max|z| times as long as
along a random one. The derivation is in docs/codecs.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.arithmetic import largest_normal
from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.base import Batch, Parameters, Update, check_count
from fedmpdd.codecs.evidence import Choices, Evidence
from fedmpdd.codecs.scalar_codec import ScalarCodec
from fedmpdd.codecs.scalar_codes import PeakCode, rounding_factor, scale_values
from fedmpdd.directions import family_named, family_numbered, hadamard_size
from fedmpdd.errors import CodecError

GROUPS = tuple(2**k for k in range(2, 17))
FREE_DERIVATIVES = 2**20  # that an update may name whatever d is: 4 MiB while it is decoded


@dataclass(frozen=True)
class Peaks(ScalarCodec):
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

    @property
    def count(self) -> int:
        """See ScalarCodec: all directions of all groups."""
        return self.m * self.group

    @property
    def scalars(self) -> PeakCode:
        return PeakCode(self.group)

    def at_round(self, round_number: int) -> "Peaks":
        """See Codec: as many peaks as there are in this round."""
        if self.grows_to is None or self.grows_after is None:
            return self
        doublings = (round_number // self.grows_after).bit_length()
        return Peaks(min(self.grows_to, self.m << doublings), self.group, self.family)

    def largest(self) -> "Peaks":
        return self if self.grows_to is None else Peaks(self.grows_to, self.group, self.family)

    def check(self, d: int, slot: int = 0) -> None:
        largest = self.largest()
        if self.family == "hadamard":
            most, words = d, "d of hadamard directions"
        else:
            # Decoding lays out m · group numbers, which a few bytes of a frame can name; d numbers it lays out anyway.
            most, words = max(d, FREE_DERIVATIVES), f"d, or {FREE_DERIVATIVES:,}"
        if largest.count > most:
            lower = "m" if self.grows_to is None else "grows_to"
            raise CodecError(
                f"{largest.m} peaks of {self.group} are {largest.count:,} derivatives of d = {d} coordinates: expected "
                f"no more than {words}; lower {lower} or group"
            )
        family_named(self.family).check(d, largest.count, slot)

    def work(self, d: int, slot: int = 0) -> int:
        return super().work(d, slot) + 1_024 * self.m

    def magnitude(self, update: Update) -> float:
        """See Codec: the scale tells the length of the gradient within a fifth or so."""
        return float(scale_values()[int(update.arrays[0][0])]) * largest_normal(self.group)[0]

    def parameters(self) -> Parameters:
        return Parameters(family_named(self.family).code, self.scalars.bits - 1, self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        family = family_numbered(parameters.first).name
        return cls(parameters.size, 2 ** min(parameters.second, 32), family)

    def revealed_bits(self, d: int) -> int:
        return self.m * self.scalars.bits + 8

    def evidence(self, updates: Sequence[Update]) -> Evidence:
        """See Codec: which of each group is the largest, and the length that the scale gives away."""
        places, negative = self.scalars.peaks(HOST, Batch.of(updates).columns, self.count)
        lengths = HOST.like([self.magnitude(update) for update in updates])
        keys = [update.key for update in updates]
        return Choices(self.family, keys, self.group, places % self.group, negative == 1, lengths)

    def variance(
        self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None
    ) -> float | None:
        """Return the error of the mean of n clients, as MPDD.variance does.

        None for a partitioned round in which directions repeat: clients that agree then choose the same ones.
        """
        self.check(d)
        if partitioned and n > 1 and n * self.count > hadamard_size(d) and self.family == "hadamard":
            return None
        overlap = family_named(self.family).overlap(d)
        second = d / self.count * self.scalars.second_moment(self.count)
        one = second + rounding_factor() * (1 - 1 / self.m) * overlap - 1
        if not partitioned or n == 1:
            return one / n
        shared = 1 / n if alignment is None else alignment
        return one / n + (overlap - 1) * (shared - 1 / n)
