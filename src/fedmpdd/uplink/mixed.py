"""Rounds whose clients have different codecs, each the largest that its link takes: docs/links.md.

The updates of one codec make a part of the round. Every part has a mean of its own, and the server steps along the
means of the parts, each with a share. Shares follow from how large the error of an update is that each codec states:
who sends more says more, and counts more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedmpdd.codecs import Batch, Codec, Update
from fedmpdd.codecs.backends import backend_of
from fedmpdd.codecs.base import Float32, mean_factors
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError
from fedmpdd.uplink.error_feedback import ErrorFeedback
from fedmpdd.uplink.protection import NoiseSource
from fedmpdd.uplink.reference import lower_median
from fedmpdd.uplink.uplink import Mean, Uplink, Uploads
from fedmpdd.wire.bundle import unpack_bundle
from fedmpdd.wire.mixed_bundle import MixedBundle, MixedPart, unpack_mixed_bundle


def client_weights(
    codecs: Sequence[Codec], d: int, weights: Sequence[float] | None = None, *, spread: float | None = None
) -> tuple[float, ...]:
    """Return how much each client counts in a mean of updates of different codecs.

    A client's estimate is off the mean gradient by the error of its codec, and by how far its own gradient is off. The
    mean of independent estimates has the least error with weights in inverse proportion to the sum of the two.

    Args:
        codecs: of the clients, one each; every codec states its variance unless `spread` is infinite.
        d: coordinates of the model.
        weights: what else clients weigh: numbers of examples, times a factor for their age; None for 1 each.
        spread: how far clients' gradients are from their mean, E‖gᵢ − g‖² / E‖gᵢ‖²: 0 for equal gradients, 1 for
            unrelated ones. More than that holds the weights of different codecs together; infinity makes them equal.
            None is `middle_spread` of these codecs.

    Returns:
        One weight per client; they add up to one.

    Example:
        >>> client_weights([Peaks(7), Peaks(28)], d=7850, spread=0.0)  # doctest: +SKIP
        (0.195..., 0.804...)

    """
    given = [1.0] * len(codecs) if weights is None else list(weights)
    mean_factors(len(codecs), given)  # checks them
    variances = [codec.variance(d) for codec in codecs]
    chosen = middle_spread(variances) if spread is None else spread
    trusts = [_trust(codec, variance, chosen) for codec, variance in zip(codecs, variances, strict=True)]
    products = [one * trust for one, trust in zip(given, trusts, strict=True)]
    return tuple(mean_factors(len(products), products).tolist())


def middle_spread(variances: Sequence[float | None]) -> float:
    """Return the spread with which weights lie half way between equal ones and those of the least error.

    Where data differ with the links, whose clients' gradients no average over rounds replaces, the least error is not
    the least harm: who has a small codec would hardly be heard. With this spread the ratio of the largest weight to the
    smallest is the root of what it would be.

    Args:
        variances: of the run's codecs; those that state none are left out.

    Example:
        >>> middle_spread([4.0, 100.0, 20.0])
        20.0

    """
    stated = [variance for variance in variances if variance is not None]
    return max(1.0, math.sqrt(min(stated) * max(stated))) if stated else 1.0


def _trust(codec: Codec, variance: float | None, spread: float) -> float:
    """How much an update of a codec counts, up to a factor that all have in common."""
    check_spread(spread)
    if math.isinf(spread):
        return 1.0
    if variance is None:
        raise CodecError(
            f"{codec.name} does not state the error of its updates, by which links are weighed; choose a codec that "
            'does, such as peaks or mpdd, or an infinite spread (link_spread = "inf"), with which all weigh the same'
        )
    if variance + spread <= 0:
        raise CodecError(
            f"{codec.name} loses nothing, so that with spread = {spread:g} nobody beside it would count; expected a "
            "spread above 0"
        )
    return 1.0 / (variance + spread)


def check_spread(spread: float) -> None:
    """Raise CodecError unless a spread is 0 or more; infinity is one."""
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not spread >= 0:
        raise CodecError(f"spread = {spread!r}: expected 0 or more, or infinity, with which all clients weigh the same")


class Share(NamedTuple):
    """The mean of one part of a round: the number of its codec, how much it counts, and what is decoded."""

    codec: int
    share: float
    mean: Mean


@dataclass(frozen=True)
class MixedMean:
    """What a server steps along after a round of several codecs; what `Mean` is of one.

    parts: in the order of the codecs. Only the ratios of their shares count.
    """

    parts: tuple[Share, ...]

    def estimate(self) -> Any:
        """Decode the mean gradient, as an array or a tensor where the updates are.

        Every product and every sum is rounded to float32 by itself, in the order of the parts: the same bits anywhere.
        """
        shares = mean_factors(len(self.parts), [part.share for part in self.parts]).tolist()
        total: Any = None
        for part, share in zip(self.parts, shares, strict=True):
            product = part.mean.estimate() * float(np.float32(share))
            if total is None:
                total = product
            else:  # some parts may be decoded on the CPU for a model on a GPU
                total = total + (product if type(product) is type(total) else backend_of(total).like(product))
        return total

    def bundle(self) -> MixedBundle:
        """Return it as a journal keeps it, and as it travels to who follows the model."""
        return MixedBundle(tuple(MixedPart(part.codec, part.share, part.mean.bundle()) for part in self.parts))

    @classmethod
    def of(cls, bundle: MixedBundle, device: str = "cpu") -> "MixedMean | None":
        """Return what a bundle holds, on a device; None where it is empty."""
        shares = []
        for part in bundle.parts:
            mean = Mean.of(part.bundle, device)
            assert mean is not None  # parts have updates
            shares.append(Share(part.codec, part.share, mean))
        return cls(tuple(shares)) if shares else None

    @classmethod
    def joined(cls, means: Sequence[Mean | None], variances: Sequence[float | None], spread: float) -> "MixedMean":
        """Return the mean of the parts of a round.

        Args:
            means: one per codec, None where nobody used it. A part counts as much as its weights add up to, or as it
                has updates.
            variances: what each codec states of one update.
            spread: see `client_weights`; the same in all rounds.

        """
        products = []
        for mean, variance in zip(means, variances, strict=True):
            if mean is not None:
                total = float(len(mean.batch)) if mean.weights is None else math.fsum(mean.weights)
                products.append(total * _trust(mean.batch.codec, variance, spread))
        shares = iter(mean_factors(len(products), products).tolist())
        counted = [(number, mean) for number, mean in enumerate(means) if mean is not None]
        return cls(tuple(Share(number, next(shares), mean) for number, mean in counted))


AnyMean = Mean | MixedMean


def mixed_mean(
    updates: Sequence[Update],
    codecs: Sequence[Codec],
    weights: Sequence[float] | None = None,
    *,
    spread: float | None = None,
) -> MixedMean:
    """Return the mean of updates of different codecs, each counted by the error that its codec states.

    Args:
        updates: of one round and one model, at least one, in the order of their clients.
        codecs: of the run, in an order that all who follow the model know. Each update is of one of them.
        weights: of the clients: examples, age; None for equal ones. Who weighs nothing is left out with its part.
        spread: see `client_weights`; None is `middle_spread` of the run's codecs, used in this round or not.

    Returns:
        The mean: `estimate()` decodes it, `bundle()` is what a journal keeps.

    Example:
        >>> mean = mixed_mean(updates, [Peaks(7), Peaks(28)])  # doctest: +SKIP
        >>> replica.take(mean)  # doctest: +SKIP

    """
    check_codecs(codecs)
    numbers = []
    for i, update in enumerate(updates):
        if update.codec not in codecs:
            raise CodecError(f"update {i} is from {update.codec}, which is none of the run's {len(codecs)} codecs")
        numbers.append(codecs.index(update.codec))
    if not updates:
        raise CodecError("there are no updates to take the mean of; a round needs at least one")
    mean_factors(len(updates), weights)  # checks them
    means: list[Mean | None] = []
    for number in range(len(codecs)):
        places = [i for i, one in enumerate(numbers) if one == number]
        some = None if weights is None else tuple(float(weights[i]) for i in places)
        counts = bool(places) and (some is None or any(some))
        means.append(Mean(Batch.of([updates[i] for i in places]), some) if counts else None)
    variances = [codec.variance(updates[0].d) for codec in codecs]
    return MixedMean.joined(means, variances, middle_spread(variances) if spread is None else spread)


def read_mean(data: bytes, codec: Codec | Sequence[Codec], d: int, device: str = "cpu") -> AnyMean | None:
    """Return what the bytes of a round's bundle say, or raise WireError; None where nobody answered.

    Args:
        data: the bundle.
        codec: of its updates; several where clients have different ones.
        d: coordinates of the model.
        device: where to decode.

    """
    if isinstance(codec, Codec):
        return Mean.of(unpack_bundle(data, codec, d), device)
    return MixedMean.of(unpack_mixed_bundle(data, codec, d), device)


def check_codecs(codecs: Sequence[Codec]) -> None:
    """Raise CodecError unless codecs can be told apart, which are those of a run's links."""
    for i, codec in enumerate(codecs):
        if codec in codecs[:i]:
            raise CodecError(f"links {codecs.index(codec)} and {i} have the same codec, {codec}; give each codec once")


def check_links(keys: str, *, sums: bool = False) -> None:
    """Raise CodecError where clients of different codecs cannot have such keys, or be summed.

    Args:
        keys: who chooses keys.
        sums: whether the server is to see sums alone.

    """
    if sums:
        raise CodecError(
            "secure sums add up the numbers of clients one by one, and those of different codecs have none in common; "
            "leave out links or secure"
        )
    if keys == "shared":
        raise CodecError(
            'links with keys = "shared": clients with the same directions have the same error, which no weights '
            'reduce; use keys = "sent" or "derived"'
        )
    if keys == "partitioned":
        raise CodecError(
            'links with keys = "partitioned": slots of different lengths overlap, so that clients would not have '
            'directions of their own; use keys = "sent" or "derived"'
        )


@dataclass(frozen=True)
class MixedUploads:
    """What the clients of a round sent, part by part; what `Uploads` is of one codec.

    parts: by codec, None where nobody used it. places: of the clients of each part in the round.
    """

    parts: tuple[Uploads | None, ...]
    places: tuple[tuple[int, ...], ...]

    @property
    def frame_bytes(self) -> int:
        """Whole compact frames, all clients together."""
        return sum(part.frame_bytes for part in self.parts if part is not None)

    @property
    def payload_bytes(self) -> int:
        """Scale and scalars alone, all clients together."""
        return sum(part.payload_bytes for part in self.parts if part is not None)

    def updates(self) -> list[Update]:
        """Return the updates, in the order of their clients."""
        by_place = {
            place: update
            for part, places in zip(self.parts, self.places, strict=True)
            if part is not None
            for place, update in zip(places, part.updates(), strict=True)
        }
        return [by_place[place] for place in sorted(by_place)]

    @classmethod
    def joined(cls, groups: "Sequence[MixedUploads]") -> "MixedUploads":
        """Return what several groups of clients sent as one, the clients in the order of the groups."""
        parts, places = [], []
        sizes = [sum(map(len, group.places)) for group in groups]
        starts = [sum(sizes[:i]) for i in range(len(groups))]
        for number in range(len(groups[0].parts)):
            some = [group.parts[number] for group in groups]
            there = [part for part in some if part is not None]
            parts.append(Uploads.joined(there) if there else None)
            rows = [
                start + place for start, group in zip(starts, groups, strict=True) for place in group.places[number]
            ]
            places.append(tuple(rows))
        return cls(tuple(parts), tuple(places))


class MixedMemory:
    """What clients of several codecs remember from round to round.

    Args:
        memories: one per codec.
        links: see `MixedUplink`.

    """

    def __init__(self, memories: Sequence[ErrorFeedback], links: Sequence[int]) -> None:
        self._memories, self._links = tuple(memories), tuple(links)

    def state(self) -> dict[int, Float32]:
        """Return a copy of all vectors by client, for a checkpoint."""
        return {client: vector for memory in self._memories for client, vector in memory.state().items()}

    def load(self, state: Mapping[int, Float32]) -> None:
        """Put back what `state` returned, instead of all vectors there are."""
        numbers = {client: self._links[client % len(self._links)] for client in state}
        for number, memory in enumerate(self._memories):
            memory.load({client: one for client, one in state.items() if numbers[client] == number})


class MixedUplink:
    """The uplinks of clients with different codecs. See `Uplink`.

    Args:
        uplinks: one per codec, alike but for their codecs and memories.
        links: which of them clients have, by number: client i has that of `links[i mod len(links)]`.
        spread: see `client_weights`; None is `middle_spread` of all codecs.

    """

    in_groups = True

    def __init__(self, uplinks: Sequence[Uplink], links: Sequence[int], spread: float | None = None) -> None:
        self.uplinks, self.links, self.spread = tuple(uplinks), tuple(links), spread
        check_codecs([uplink.codec for uplink in uplinks])
        for uplink in uplinks:
            check_links(uplink.keys)
        variances = self._variances(0)
        for uplink, variance in zip(uplinks, variances, strict=True):  # refused now, and not after the first round
            _trust(uplink.codec, variance, middle_spread(variances) if spread is None else spread)

    def places(self, clients: Sequence[int]) -> list[list[int]]:
        """Return, for each codec, at which places of a list the clients stand that have it."""
        numbers = [self.links[client % len(self.links)] for client in clients]
        return [[place for place, one in enumerate(numbers) if one == number] for number in range(len(self.uplinks))]

    def encode(
        self,
        round_number: int,
        gradients: Any,
        keys: Sequence[Key],
        clients: Sequence[int],
        noise: Sequence[NoiseSource] | None = None,
    ) -> MixedUploads:
        """Encode the gradients [clients, d] of a round, each with the codec of its client; see Uplink."""
        places = self.places(clients)
        parts = [
            uplink.encode(
                round_number, gradients[some], _at(keys, some), _at(clients, some), noise and _at(noise, some)
            )
            if some
            else None
            for uplink, some in zip(self.uplinks, places, strict=True)
        ]
        return MixedUploads(tuple(parts), tuple(map(tuple, places)))

    def encode_scalars(
        self,
        round_number: int,
        scalars: Sequence[Any],
        keys: Sequence[Key],
        clients: Sequence[int],
        noise: Sequence[NoiseSource] | None = None,
    ) -> MixedUploads:
        """Encode scalars that clients have instead of gradients: as many of each client as its codec has."""
        places = self.places(clients)
        parts = [
            uplink.encode_scalars(
                round_number, np.stack(_at(scalars, some)), _at(keys, some), noise and _at(noise, some)
            )
            if some
            else None
            for uplink, some in zip(self.uplinks, places, strict=True)
        ]
        return MixedUploads(tuple(parts), tuple(map(tuple, places)))

    def through_frames(self, round_number: int, uploads: MixedUploads) -> MixedUploads:
        """Return what arrives when every update becomes a frame, and every frame is checked and read again."""
        parts = [
            None if part is None else uplink.through_frames(round_number, part)
            for uplink, part in zip(self.uplinks, uploads.parts, strict=True)
        ]
        return replace(uploads, parts=tuple(parts))

    def uploads_of(self, updates: Sequence[Update], round_number: int = 0) -> MixedUploads:
        """Return updates of one round, which came in frames, as what clients sent; see Uplink.

        updates: each of one of the codecs. round_number: from 0.
        """
        codecs = [uplink.session(round_number).codec for uplink in self.uplinks]
        places = [tuple(i for i, one in enumerate(updates) if one.codec == codec) for codec in codecs]
        parts = [
            uplink.uploads_of(_at(updates, some)) if some else None
            for uplink, some in zip(self.uplinks, places, strict=True)
        ]
        return MixedUploads(tuple(parts), tuple(places))

    def mean(
        self,
        uploads: MixedUploads,
        weights: Sequence[float] | None = None,
        reference: float | None = None,
        round_number: int = 0,
    ) -> MixedMean:
        """Return what the server steps along.

        A robust mean is taken of every part by itself. What counts as too large is the same for all parts, since one
        client alone in its part has nobody beside it.

        Args:
            uploads: the updates of a round that count.
            weights: of the clients, in the order of the round; None for equal ones.
            reference: the running median magnitude, for a robust mean that knows one; else the median of the round.
            round_number: from 0; codecs may change with it, and with them their shares.

        """
        if weights is not None:
            mean_factors(len(weights), weights)  # checks them
        is_robust = any(uplink.robust is not None for uplink in self.uplinks)
        if is_robust and weights is None:  # said aloud, so that what is left of them says how much the part counts
            weights = [1.0] * sum(map(len, uploads.places))
        if is_robust and reference is None:
            updates = [update for part in uploads.parts if part is not None for update in part.batch.updates()]
            reference = lower_median([update.codec.magnitude(update) for update in updates])
        means: list[Mean | None] = []
        for uplink, part, places in zip(self.uplinks, uploads.parts, uploads.places, strict=True):
            some = None if weights is None else [weights[place] for place in places]
            counts = part is not None and (some is None or any(some))
            mean = uplink.mean(part, some, reference) if part is not None and counts else None
            means.append(mean if mean is None or mean.weights is None or any(mean.weights) else None)
        variances = self._variances(round_number)
        return MixedMean.joined(means, variances, middle_spread(variances) if self.spread is None else self.spread)

    def _variances(self, round_number: int) -> list[float | None]:
        """What an update of each codec is off by; clipped gradients are as long as their bound, as far as is known."""
        variances: list[float | None] = []
        for uplink in self.uplinks:
            codec = uplink.session(round_number).codec
            if uplink.protection is None:
                variances.append(codec.variance(uplink.d))
            else:
                protection = replace(uplink.protection, codec=codec)
                variances.append(protection.variance(uplink.d, norm=protection.clip or 1.0))
        return variances


def _at(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [values[place] for place in places]
