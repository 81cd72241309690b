"""What a round adds to the model of the round before, as bytes: docs/journal.md, "Bundles".

A bundle is what the journal keeps of a round and what `downlink = "replay"` sends: the updates in the order in which
they are added up, without the frames that they came in. Codec and d are known to both sides.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedmpdd.codecs import NO_KEY, Codec, Update
from fedmpdd.directions import Key
from fedmpdd.errors import ContentError, FrameLengthError, InputError, LimitError, TruncatedFrameError
from fedmpdd.wire import payload_of, read_arrays

if TYPE_CHECKING:  # PyTorch is there where it is asked for a tensor
    from torch import Tensor

_HEAD = struct.Struct("<BBHI")  # how keys are given, whether there are weights, zero, number of updates
_SEED = struct.Struct("<Q")
_SLOTS = struct.Struct("<I")
_NO_KEYS, _OWN_SEEDS, _ONE_KEY, _ONE_SEED = range(4)
MOST_UPDATES = 2**24


@dataclass(frozen=True)
class Bundle:
    """The updates of a round, all of one codec, and their weights (None: equal ones)."""

    updates: tuple[Update, ...] = ()
    weights: tuple[float, ...] | None = None

    def estimate(self, device: str = "cpu") -> "Tensor":
        """Decode the mean gradient: the same bits on every device."""
        import torch

        codec = self.updates[0].codec
        if device == "cpu":
            return torch.from_numpy(codec.decode_mean(self.updates, self.weights))
        return codec.decode_mean_on(device, self.updates, self.weights)

    def pack(self) -> bytes:
        """Return the bundle as bytes."""
        updates = self.updates
        kind, keys = _pack_keys([update.key for update in updates], bool(updates) and updates[0].codec.needs_key)
        weights = b"" if self.weights is None else np.asarray(self.weights, "<f8").tobytes()
        head = _HEAD.pack(kind, self.weights is not None, 0, len(updates))
        return b"".join([head, keys, weights, *(payload_of(update) for update in updates)])


def unpack_bundle(data: bytes | memoryview, codec: Codec, d: int) -> Bundle:
    """Read a bundle of updates of this codec, or raise the WireError that says what is wrong with it."""
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
    keys, start = _unpack_keys(view, kind, count)
    weights = None
    if weighted:
        values = np.frombuffer(_take(view, start, 8 * count), "<f8")
        if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
            raise ContentError("a bundle holds weights that are negative, not finite or all zero")
        weights = tuple(values.tolist())
        start += 8 * count
    size = codec.bytes_per_update(d)
    if len(view) != start + count * size:
        raise FrameLengthError(
            f"a bundle has {len(view)} bytes where its {count} updates make it {start + count * size}"
        )
    try:
        codec.check(d, max(key.slot for key in keys))
    except InputError as error:
        raise LimitError(f"a bundle has a slot that {codec} does not: {error}") from None
    sections = codec.sections(d)
    updates = []
    for i, key in enumerate(keys):
        arrays = read_arrays(view[start + i * size : start + (i + 1) * size], sections)
        codec.check_content(arrays, d)
        updates.append(Update(codec, d, key, arrays))
    return Bundle(tuple(updates), weights)


def _pack_keys(keys: Sequence[Key], needed: bool) -> tuple[int, bytes]:
    """The shortest way to say these keys."""
    if not needed:
        return _NO_KEYS, b""
    slots = [key.slot for key in keys]
    if len({key.seed for key in keys}) == 1 and (len(keys) > 1 or slots[0] > 0):
        seed = _SEED.pack(keys[0].seed)
        if set(slots) == {0}:
            return _ONE_KEY, seed
        if all(before < after for before, after in pairwise(slots)):
            taken = np.zeros(slots[-1] + 1, dtype=bool)
            taken[slots] = True
            return _ONE_SEED, seed + _SLOTS.pack(taken.size) + np.packbits(taken, bitorder="little").tobytes()
    if any(slots):
        raise ContentError("keys with slots and different seeds have no place in a bundle; partitioned keys share one")
    return _OWN_SEEDS, b"".join(_SEED.pack(key.seed) for key in keys)


def _unpack_keys(view: memoryview, kind: int, count: int) -> tuple[list[Key], int]:
    start = _HEAD.size
    if kind == _NO_KEYS:
        return [NO_KEY] * count, start
    if kind == _OWN_SEEDS:
        seeds = np.frombuffer(_take(view, start, 8 * count), "<u8")
        return [Key(int(seed)) for seed in seeds], start + 8 * count
    (seed,) = _SEED.unpack(_take(view, start, 8))
    start += 8
    if kind == _ONE_KEY:
        return [Key(seed)] * count, start
    (size,) = _SLOTS.unpack(_take(view, start, 4))
    start += 4
    packed = np.frombuffer(_take(view, start, -(-size // 8)), np.uint8)
    taken = np.unpackbits(packed, bitorder="little")
    slots = np.flatnonzero(taken[:size])
    if slots.size != count or slots[-1] != size - 1 or taken[size:].any():
        raise ContentError(f"a bundle marks {slots.size} of {size} slots for {count} updates, or more than there are")
    return [Key(seed, int(slot)) for slot in slots], start + packed.size


def _take(view: memoryview, start: int, length: int) -> memoryview:
    if len(view) < start + length:
        raise TruncatedFrameError(f"a bundle has {len(view)} bytes, and what it says of itself needs more")
    return view[start : start + length]
