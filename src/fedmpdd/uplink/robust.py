"""Means that a minority of lying clients cannot move far.

Three bounds, each on another thing that a liar can choose:

* size: an update larger than the running median shrinks to it, and so does a claimed number of examples;
* direction: an update that disagrees with most others, far more than those disagree among themselves, does not count;
* single scalars: where all clients have the same directions, the m scalars are averaged one by one without the
  smallest and the largest, in O(clients · m).

The first two only choose weights, so that the round stays a bundle of the updates that came. The third makes one
update of them. docs/flower.md says what each is worth against which lie, and what none of them can see.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD, Codec, Update
from fedmpdd.documents import check_number
from fedmpdd.uplink.reference import FEW, lower_median
from fedmpdd.wire.bundle import Bundle

FEWEST_COMPARED = 5  # with fewer, two liars of one opinion would be as many as the honest
WHOLE = 2**24  # numbers of all estimates together that are compared as they are, 64 MiB;
SKETCH = 4_096  # beyond that in so many directions, which gives cosines to a percent and a half
COSINES = 2**22  # that are in memory at once, 32 MiB
NORMAL = 1.4826  # what makes a median deviation that of a normal variable


@dataclass(frozen=True)
class RobustMean:
    """How a server averages updates of which some may be lies.

    Args:
        shrink: the largest magnitude that an update may have in the mean, and the largest number of examples that it
            may claim, both as multiples of the median.
        trim: the share of clients that is left out at either end of every scalar, where directions are shared and
            scalars have more than one bit; 0 takes the mean. Up to this share of clients may lie then.
        disagreement: how many deviations an update's agreement with the others may fall short of the median
            agreement; infinity counts all.

    Example:
        >>> FedMPDD(codec="mpdd:m=400:keys=shared", robust=RobustMean(trim=0.2))  # doctest: +SKIP

    """

    shrink: float = 1.0
    trim: float = 0.3
    disagreement: float = 2.0

    def __post_init__(self) -> None:
        check_number("shrink", self.shrink, math.ulp(0.0), math.inf, "a finite number above 0, such as 1.0")
        check_number("trim", self.trim, 0, 0.5, "a share from 0 to below 0.5, such as 0.3")
        if self.disagreement != math.inf:
            words = "a number above 0, such as 2.0"
            check_number("disagreement", self.disagreement, math.ulp(0.0), math.inf, words)

    def trims(self, codec: Codec, *, shared: bool) -> bool:
        """Return whether the mean of a codec's updates becomes one update, made of trimmed scalars."""
        scalar_codec = codec.scalar_codec
        return shared and self.trim > 0 and scalar_codec is not None and scalar_codec.scalars.graded

    def bundle(
        self,
        updates: Sequence[Update],
        weights: Sequence[float] | None,
        reference: float | None,
        *,
        shared: bool,
        mean_bits: int | None = None,
        sketch: int = 0,
    ) -> Bundle:
        """Return what the server steps along: the updates with other weights, or one update that stands for them.

        Args:
            updates: of one round and one codec, at least one.
            weights: what the clients claim to weigh, None for equal weights.
            reference: the running median magnitude, None where it is not known.
            shared: whether all updates have one key, so that their scalars add up.
            mean_bits: with shared keys, the bits of the scalars of their mean; None leaves the updates as they are
                unless scalars are trimmed.
            sketch: the seed of the directions in which estimates are compared; clients should not know it.

        """
        codec = updates[0].codec
        factors = self._factors(updates, weights, reference)
        effective = factors * self._agreeing(updates, shared=shared, sketch=sketch)
        if self.trims(codec, shared=shared):
            scalars = self._trimmed_scalars(updates, effective)
            return Bundle((codec.along_directions().update_of(scalars, updates[0].d, updates[0].key, mean_bits or 32),))
        if mean_bits is not None:
            return Bundle((codec.along_directions().mean_update(updates, mean_bits, effective.tolist()),))
        equal = weights is None and (effective == effective[0]).all()
        return Bundle(tuple(updates), None if equal else tuple(effective.tolist()))

    def share(self, updates: Sequence[Update], weights: Sequence[float] | None, reference: float | None) -> float:
        """Return how much of the step along a bundle to take, above 0 and at most 1.

        Weights only say how much an update counts beside others. One or two updates that are all too large have nobody
        beside them, and it is the step that shrinks. From three on it is 1: gradients of a majority may grow.

        Args:
            updates: as for `bundle`, and so are the others.
            weights: what the clients claim to weigh.
            reference: the running median magnitude.

        """
        if not reference or len(updates) >= FEW:
            return 1.0
        return float(
            self._factors(updates, weights, reference).sum() / self._bounded_claims(len(updates), weights).sum()
        )

    def _trimmed_scalars(self, updates: Sequence[Update], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean of scalars of who weighs anything; who does not is one liar fewer among the rest."""
        counted = np.flatnonzero(weights)
        liars = math.floor(self.trim * len(updates) + 1e-9) - (len(updates) - counted.size)
        codec = updates[0].codec.along_directions()
        rows = np.stack([codec.scalars_of(updates[i]) for i in counted.tolist()])
        return trimmed_mean(rows, weights[counted], max(0, liars))

    def _factors(
        self, updates: Sequence[Update], weights: Sequence[float] | None, reference: float | None
    ) -> NDArray[np.float64]:
        """Weights that no claim and no magnitude makes large."""
        bounded = self._bounded_claims(len(updates), weights)
        magnitudes = np.array([update.codec.magnitude(update) for update in updates])
        # A reference of 0 says nothing: nodes that had nothing to learn, or a step size that starts at 0.
        most = self.shrink * (reference or lower_median(magnitudes.tolist()))
        too_large = magnitudes > most
        if most > 0:
            bounded[too_large] *= most / magnitudes[too_large]
        return bounded

    def _bounded_claims(self, count: int, weights: Sequence[float] | None) -> NDArray[np.float64]:
        claimed = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
        return np.asarray(np.minimum(claimed, self.shrink * lower_median(claimed.tolist())))

    def _agreeing(self, updates: Sequence[Update], *, shared: bool, sketch: int) -> NDArray[np.float64]:
        """1 for each update that agrees with the others about as much as those do with each other, else 0."""
        if len(updates) < FEWEST_COMPARED or math.isinf(self.disagreement):
            return np.ones(len(updates))
        agreement = agreements(comparable_vectors(updates, shared=shared, sketch=sketch))
        median = float(np.median(agreement))
        deviation = NORMAL * float(np.median(np.abs(agreement - median)))
        # Where all agree to the second digit, the third is no reason to leave somebody out.
        tolerance = max(self.disagreement * deviation, 0.1 * abs(median))
        return (agreement >= median - tolerance).astype(np.float64)


def trimmed_mean(rows: NDArray[np.float64], weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the weighted mean of each column of rows [clients, m] without its smallest and its largest values.

    Args:
        rows: one client's scalars each.
        weights: of the clients, not negative.
        count: how many clients are left out at either end; never so many that nobody is left.

    """
    count = min(count, (len(rows) - 1) // 2)
    order = np.argsort(rows, axis=0, kind="stable")[count : len(rows) - count]
    values, shares = np.take_along_axis(rows, order, axis=0), weights[order]
    total, sums = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for value, share in zip(values, shares, strict=True):  # one after another: the same bits on every machine
        sums += value * share
        total += share
    return np.asarray(sums / np.where(total > 0, total, 1.0))


def agreements(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return, for each of the rows, how well it agrees with the others: the mean of the middle third of its cosines.

    A minority that agrees with itself is in the third above, and one that disagrees with everybody in the one below.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)[:, np.newaxis]
    rows = max(1, COSINES // len(unit))
    return np.concatenate([_middle_cosines(unit, start, rows) for start in range(0, len(unit), rows)])


def _middle_cosines(unit: NDArray[np.floating], start: int, count: int) -> NDArray[np.floating]:
    """The agreements of some of the rows, with a part of all cosines in memory."""
    cosines = unit[start : start + count] @ unit.T
    places = np.arange(len(cosines))
    cosines[places, start + places] = np.inf  # with itself: sorted to the end, and left out there
    others = len(unit) - 1
    return np.asarray(np.sort(cosines, axis=1)[:, others // 3 : others - others // 3].mean(axis=1))


def comparable_vectors(updates: Sequence[Update], *, shared: bool, sketch: int) -> NDArray[np.floating]:
    """Return vectors [updates, k] whose angles are about those of the estimates that the updates stand for.

    Updates with one key whose scalars add up are compared by these. Others are decoded one by one. Where all estimates
    together would be large, they are compared in some thousand directions of another key, and one is in memory at a
    time.
    """
    codec, d = updates[0].codec, updates[0].d
    if shared and codec.scalar_codec is not None:
        return np.stack([codec.scalar_codec.scalars_of(update) for update in updates])
    if len(updates) * d <= WHOLE:
        return np.stack([codec.decode_mean([update]) for update in updates])
    common = MPDD(min(SKETCH, d), family="hadamard")
    rows = [common.encode(codec.decode_mean([update])[np.newaxis], [sketch])[0].arrays[0] for update in updates]
    return np.stack(rows)
