"""What a round of several codecs adds to the model, as bytes: docs/journal.md, "Mixed bundles".

A mixed bundle is a plain one for each codec that somebody used, with the share that its mean has in the mean of all.
Which codecs a run has, and in which order, is known to both sides.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedmpdd.codecs import Codec
from fedmpdd.codecs.base import mean_factors
from fedmpdd.errors import CodecError, ContentError, FrameLengthError, LimitError, TruncatedFrameError
from fedmpdd.wire.bundle import MOST_UPDATES, Bundle, unpack_bundle

_HEAD = struct.Struct("<BBHI")  # as of a bundle: the way, no weights, zero, number of parts
_PART = struct.Struct("<IId")  # which codec, length of the bundle behind it, share
_MIXED = 4  # the way that no plain bundle has
_EMPTY = bytes(_HEAD.size)  # a round without answers is the same bytes whatever the codecs


class MixedPart(NamedTuple):
    """The updates of one codec in a round.

    codec: its number in the run's list, from 0. share: how much their mean counts beside those of other parts.
    """

    codec: int
    share: float
    bundle: Bundle


@dataclass(frozen=True)
class MixedBundle:
    """The updates of a round, each part of one codec, in the order of the run's codecs."""

    parts: tuple[MixedPart, ...] = ()

    def pack(self) -> bytes:
        """Return the bundle as bytes."""
        if not self.parts:
            return _EMPTY
        _check_count(sum(len(part.bundle.updates) for part in self.parts))
        pieces = [_HEAD.pack(_MIXED, 0, 0, len(self.parts))]
        for part in self.parts:
            data = part.bundle.pack()
            pieces += [_PART.pack(part.codec, len(data), part.share), data]
        return b"".join(pieces)


def unpack_mixed_bundle(data: bytes | memoryview, codecs: Sequence[Codec], d: int) -> MixedBundle:
    """Read a mixed bundle of updates of these codecs, or raise the WireError that says what is wrong with it.

    A round has one bundle: what is read here packs to the very same bytes.
    """
    view = memoryview(data).cast("B")
    if bytes(view) == _EMPTY:
        return MixedBundle()
    way, weighted, zero, count = _HEAD.unpack(_take(view, 0, _HEAD.size))
    if way != _MIXED or weighted or zero:
        raise ContentError(
            f"a bundle starts with {view[:4].hex(' ')} where clients have {len(codecs)} codecs; expected 04 00 00 00, "
            "a mixed one: does this run have links?"
        )
    if not 1 <= count <= len(codecs):
        raise ContentError(f"a mixed bundle has {count:,} parts; expected 1 to {len(codecs)}, one a codec at most")
    parts: list[MixedPart] = []
    at, updates = _HEAD.size, 0
    for _ in range(count):
        number, length, share = _PART.unpack(_take(view, at, _PART.size))
        at += _PART.size
        if not (parts[-1].codec if parts else -1) < number < len(codecs):
            raise ContentError(
                f"a mixed bundle has a part of codec {number}; expected ascending numbers below {len(codecs)}"
            )
        bundle = unpack_bundle(_take(view, at, length), codecs[number], d)
        if not bundle.updates:
            raise ContentError(f"a mixed bundle has a part of codec {number} without updates; expected at least one")
        at, updates = at + length, updates + len(bundle.updates)
        _check_count(updates)
        parts.append(MixedPart(number, share, bundle))
    if at != len(view):
        raise FrameLengthError(f"a mixed bundle has {len(view)} bytes where its {count} parts make it {at}")
    _check_shares([part.share for part in parts])
    return MixedBundle(tuple(parts))


def _check_shares(shares: Sequence[float]) -> None:
    try:
        mean_factors(len(shares), shares)
    except CodecError:
        usable = False
    else:
        usable = all(0 < share < math.inf for share in shares)
    if not usable:
        raise ContentError(
            "a mixed bundle holds shares that are not finite numbers above 0, or whose sum is not; expected such"
        )


def _check_count(updates: int) -> None:
    if updates > MOST_UPDATES:
        raise LimitError(f"a round has {updates:,} updates; a bundle holds at most {MOST_UPDATES:,}")


def _take(view: memoryview, start: int, length: int) -> memoryview:
    if len(view) < start + length:
        raise TruncatedFrameError(f"a mixed bundle has {len(view)} bytes, and what it says of itself needs more")
    return view[start : start + length]
