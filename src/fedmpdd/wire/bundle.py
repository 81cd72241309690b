"""What a round adds to the model of the round before, as bytes: docs/journal.md, "Bundles".

A bundle is what the journal keeps of a round and what `downlink = "replay"` sends: the updates in the order in which
they are added up, without the frames that they came in. Codec and d are known to both sides.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import NO_KEY, Codec, Update
from fedmpdd.codecs.base import mean_factors
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError, ContentError, FrameLengthError, InputError, LimitError, TruncatedFrameError
from fedmpdd.wire.frames import payload_of, read_arrays

_HEAD = struct.Struct("<BBHI")  # how keys are given, whether there are weights, zero, number of updates
_SEED = struct.Struct("<Q")
_SLOTS = struct.Struct("<I")
_NO_KEYS, _OWN_SEEDS, _ONE_KEY, _ONE_SEED = range(4)
MOST_UPDATES = 2**20  # an update of two bytes takes some hundred bytes of memory once it is read


@dataclass(frozen=True)
class Bundle:
    """The updates of a round, all of one codec, and their weights (None: equal ones)."""

    updates: tuple[Update, ...] = ()
    weights: tuple[float, ...] | None = None

    def pack(self) -> bytes:
        """Return the bundle as bytes."""
        updates = self.updates
        if len(updates) > MOST_UPDATES:
            raise LimitError(f"a round has {len(updates):,} updates; a bundle holds at most {MOST_UPDATES:,}")
        keys = [update.key for update in updates]
        way = _way_of(keys, bool(updates) and updates[0].codec.needs_key)
        weights = b"" if self.weights is None else np.asarray(self.weights, "<f8").tobytes()
        head = _HEAD.pack(way, self.weights is not None, 0, len(updates))
        return b"".join([head, _pack_keys(keys, way), weights, *(payload_of(update) for update in updates)])


def unpack_bundle(data: bytes | memoryview, codec: Codec, d: int) -> Bundle:
    """Read a bundle of updates of this codec, or raise the WireError that says what is wrong with it.

    A round has one bundle: what is read here packs to the very same bytes.
    """
    view = memoryview(data).cast("B")
    kind, weighted, zero, count = _HEAD.unpack(_take(view, 0, _HEAD.size))
    if kind > _ONE_SEED or weighted > 1 or zero != 0:
        raise ContentError(f"a bundle starts with {view[:4].hex(' ')}, which this package never writes")
    if count > MOST_UPDATES:
        raise LimitError(f"a bundle says that it holds {count:,} updates; expected at most {MOST_UPDATES:,}")
    if count == 0:
        if len(view) != _HEAD.size or kind != _NO_KEYS or weighted:
            raise ContentError("a bundle without updates holds something else; expected nothing")
        return Bundle()
    if codec.needs_key == (kind == _NO_KEYS):
        raise ContentError(f"a bundle gives keys in way {kind}, which {codec} cannot be decoded with")
    at_weights = _HEAD.size + _key_bytes(view, kind, count)
    at_payloads = at_weights + (8 * count if weighted else 0)
    _take(view, 0, at_payloads)
    size = codec.bytes_per_update(d)
    if len(view) != at_payloads + count * size:  # before anything is made for each update
        raise FrameLengthError(
            f"a bundle has {len(view)} bytes where its {count} updates make it {at_payloads + count * size}"
        )
    keys = _unpack_keys(view[_HEAD.size : at_weights], kind, count)
    if _way_of(keys, codec.needs_key) != kind:
        raise ContentError(f"a bundle gives keys in way {kind}, where there is a shorter one; this package never does")
    weights = _unpack_weights(view[at_weights:at_payloads]) if weighted else None
    try:
        codec.check(d, max(key.slot for key in keys))
    except InputError as error:
        raise LimitError(f"a bundle has a slot that {codec} does not: {error}") from None
    sections = codec.sections(d)
    updates = []
    for i, key in enumerate(keys):
        arrays = read_arrays(view[at_payloads + i * size : at_payloads + (i + 1) * size], sections)
        codec.check_content(arrays, d)
        updates.append(Update(codec, d, key, arrays))
    return Bundle(tuple(updates), weights)


def _way_of(keys: Sequence[Key], needed: bool) -> int:
    """The one way to give these keys."""
    if not needed:
        return _NO_KEYS
    slots = [key.slot for key in keys]
    if len({key.seed for key in keys}) == 1 and (len(keys) > 1 or slots[0] > 0):
        if not any(slots):
            return _ONE_KEY
        if all(before < after for before, after in pairwise(slots)):
            return _ONE_SEED
    if any(slots):
        raise ContentError("keys with slots and different seeds have no place in a bundle; partitioned keys share one")
    return _OWN_SEEDS


def _pack_keys(keys: Sequence[Key], way: int) -> bytes:
    if way == _NO_KEYS:
        return b""
    if way == _OWN_SEEDS:
        return b"".join(_SEED.pack(key.seed) for key in keys)
    seed = _SEED.pack(keys[0].seed)
    if way == _ONE_KEY:
        return seed
    slots = [key.slot for key in keys]
    return seed + _SLOTS.pack(slots[-1] + 1) + _marks(slots)


def _marks(slots: Sequence[int]) -> bytes:
    """One bit for each slot up to the last, set for these."""
    marks = np.zeros(slots[-1] // 8 + 1, dtype=np.uint8)
    numbers = np.array(slots)
    np.bitwise_or.at(marks, numbers // 8, (1 << numbers % 8).astype(np.uint8))
    return marks.tobytes()


def _marked(packed: NDArray[np.uint8], most: int) -> NDArray[np.int64]:
    """The slots of `_marks`; none where more than `most` bytes are marked, lest these take eight times the memory."""
    if np.count_nonzero(packed) > most:
        return np.empty(0, dtype=np.int64)
    used = np.flatnonzero(packed)
    rows, bits = np.nonzero(np.unpackbits(packed[used, np.newaxis], axis=1, bitorder="little"))
    return np.asarray(8 * used[rows] + bits)


def _key_bytes(view: memoryview, kind: int, count: int) -> int:
    """How many bytes keys take that are given in this way."""
    if kind != _ONE_SEED:
        return {_NO_KEYS: 0, _OWN_SEEDS: _SEED.size * count, _ONE_KEY: _SEED.size}[kind]
    (size,) = _SLOTS.unpack(_take(view, _HEAD.size + _SEED.size, _SLOTS.size))
    return _SEED.size + _SLOTS.size + -(-int(size) // 8)


def _unpack_keys(view: memoryview, kind: int, count: int) -> list[Key]:
    if kind == _NO_KEYS:
        return [NO_KEY] * count
    if kind == _OWN_SEEDS:
        return [Key(seed) for seed in np.frombuffer(view, "<u8").tolist()]
    (seed,) = _SEED.unpack_from(view)
    if kind == _ONE_KEY:
        return [Key(seed)] * count
    (size,) = _SLOTS.unpack_from(view, _SEED.size)
    slots = _marked(np.frombuffer(view[_SEED.size + _SLOTS.size :], np.uint8), count)
    if slots.size != count or slots[-1] != size - 1:
        raise ContentError(f"a bundle marks other slots, of {size}, than its {count} updates have, the last included")
    return [Key(seed, slot) for slot in slots.tolist()]


def _unpack_weights(view: memoryview) -> tuple[float, ...]:
    weights = tuple(np.frombuffer(view, "<f8").tolist())
    try:
        mean_factors(len(weights), weights)
    except CodecError:
        raise ContentError(
            "a bundle holds weights that are negative, not finite or all zero, or whose sum is"
        ) from None
    return weights


def _take(view: memoryview, start: int, length: int) -> memoryview:
    if len(view) < start + length:
        raise TruncatedFrameError(f"a bundle has {len(view)} bytes, and what it says of itself needs more")
    return view[start : start + length]
