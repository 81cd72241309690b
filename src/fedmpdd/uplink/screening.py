"""Which updates count at all: what is impossible is dropped here, before a mean is taken of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedmpdd.codecs import Update
from fedmpdd.uplink.reference import FEW, Reference, lower_median


@dataclass(frozen=True)
class Candidate:
    """An update that was read and whose frame was in order.

    client: its number or name, for messages. weight: what it claims to weigh, its number of examples.
    """

    client: int
    update: Update
    weight: float = 1.0

    @property
    def magnitude(self) -> float:
        """About how long the gradient was that the update stands for."""
        return self.update.codec.magnitude(self.update)


class Rejection(NamedTuple):
    """A client whose update does not count, and why, as the end of a sentence that begins with it."""

    client: int
    reason: str


class Screening:
    """Drops updates that are too large to be meant, by fixed limits and by the reference of earlier rounds.

    Args:
        max_value: the largest magnitude of an update.
        max_ratio: how many times larger than the largest median of any round an update may be, and how many times
            more examples than the median it may claim.
        weighted: whether claimed examples weigh.

    """

    def __init__(self, max_value: float, max_ratio: float, *, weighted: bool) -> None:
        self._max_value, self._max_ratio, self._weighted = max_value, max_ratio, weighted
        self.reference = Reference()

    def screen(self, candidates: Sequence[Candidate], asked: int) -> tuple[list[Candidate], list[Rejection]]:
        """Return the candidates that count, in the order they came, and those that do not.

        Args:
            candidates: of one round.
            asked: how many clients were asked for an update.

        """
        magnitudes = {one.client: one.magnitude for one in candidates}
        possible = [one for one in candidates if magnitudes[one.client] <= self._max_value]
        rejections = [
            Rejection(
                one.client,
                f"its magnitude is {magnitudes[one.client]:.3g}, above max_value = {self._max_value:g}",
            )
            for one in candidates
            if magnitudes[one.client] > self._max_value
        ]
        kept = []
        limits = self._limits(possible, magnitudes, asked)
        for one in possible:
            reason = self._objection(one, magnitudes[one.client], limits)
            if reason is None:
                kept.append(one)
            else:
                rejections.append(Rejection(one.client, reason))
        self.reference.add([magnitudes[one.client] for one in kept], asked)
        return kept, rejections

    def _limits(self, possible: Sequence[Candidate], magnitudes: dict[int, float], asked: int) -> "_Limits":
        """What all candidates of a round are held against, found once for all of them."""
        if not possible:
            return _Limits(asked, largest=None, weight=0.0)
        largest = self.reference.largest
        # One of two that were asked is half of them. If it did not count, nothing would be learned while the other is
        # away. One of more is no reason to move the model before others were heard.
        if largest is None and not (len(possible) == 1 and asked >= FEW):
            largest = lower_median([magnitudes[one.client] for one in possible])
        weight = lower_median([one.weight for one in possible])
        return _Limits(asked, largest, weight)

    def _objection(self, one: Candidate, magnitude: float, limits: "_Limits") -> str | None:
        """Why an update does not count, None if it does."""
        largest = limits.largest
        if largest is None:
            return f"it answered alone of {limits.asked}, and no earlier round says how large an update is"
        if 0 < largest < magnitude / self._max_ratio:
            return f"it is {magnitude / largest:.3g} times larger than the median update of any round"
        if self._weighted and one.weight > self._max_ratio * limits.weight:
            return f"it claims {one.weight / limits.weight:.3g} times more examples than the median"
        return None


class _Limits(NamedTuple):
    """Of one round: nodes that were asked, the largest median magnitude so far, and the median claim."""

    asked: int
    largest: float | None
    weight: float
