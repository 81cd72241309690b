"""The messages of a training over MQTT, byte by byte: docs/mqtt.md specifies them.

An update is two bytes of its round and a bare frame. A round is what the round before added to the model, who is
thereby acknowledged, and hashes. A model travels in parts. Everything is checked before it is believed.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmpdd.codecs import NO_KEY, Codec, Update
from fedmpdd.directions import Key, round_seed
from fedmpdd.errors import (
    ContentError,
    FedmpddError,
    FrameLengthError,
    LimitError,
    SessionMismatchError,
    TruncatedFrameError,
    VersionError,
)
from fedmpdd.mqtt.terms import Terms
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.frames import read_arrays

VERSION = 1
_ROUND = struct.Struct("<H")
_HEAD = struct.Struct("<BBBBI4s4s")  # version, how it is said what came, start, zero, round, tags of terms and model
_COUNT = struct.Struct("<I")
_NOTHING, _WHOLE, _PAYLOADS, _MEAN = range(4)  # how the bundle is given
_MARKED, _LISTED = 0, 16  # how those are given whose updates count: a mark for each that was asked, or a list
_OVER = 32  # the training is over
MOST_UPDATES = 2**20
_PART = struct.Struct("<4sIHH32s")  # tag of terms, round, number of this part, how many there are, hash of the whole
PART_BYTES = 96 * 1024  # of a model in one message: below what any broker in use allows


class Contribution(NamedTuple):
    """A client whose update counts, and by how many rounds it was late."""

    client: int
    age: int = 0


def pack_update(round_number: int, payload: bytes) -> bytes:
    """Return what a client sends: the round of its key, modulo 2^16, and its bare frame.

    >>> pack_update(65_537, b"abc").hex()
    '0100616263'
    """
    return _ROUND.pack(round_number % 2**16) + payload


def split_update(data: bytes, current: int) -> tuple[int, bytes]:
    """Part what a client sent into the number of rounds that it is late, seen from the current one, and its frame.

    Ages of 2^15 and more are those of rounds to come.

    >>> split_update(pack_update(65_535, b"abc"), 65_538)
    (3, b'abc')
    """
    if len(data) < _ROUND.size:
        raise TruncatedFrameError(f"an update has {len(data)} bytes; expected two of its round and a bare frame")
    (number,) = _ROUND.unpack_from(data)
    return (current - number) % 2**16, data[_ROUND.size :]


class RoundMessage(NamedTuple):
    """The round that begins, and what the one before it added to the model.

    Args:
        round: that begins.
        model_tag: the first bytes of the hash of the model that it starts from.
        bundle: of the round before, as a journal holds it; None in the first round of a training.
        contributions: whose updates are in the bundle: they are on the server's disk.
        start: a number of the server's start, from 0 to 255. After another it lacks what it did not acknowledge.
        is_over: whether no round begins any more.

    """

    round: int
    model_tag: bytes
    bundle: bytes | None = None
    contributions: tuple[Contribution, ...] = ()
    start: int = 0
    is_over: bool = False

    def pack(self, terms: Terms) -> bytes:
        """Return the message: the bundle as payloads alone, where keys and weights follow from who contributed."""
        kind, body = _NOTHING, b""
        if self.bundle is not None:
            kind, body = _WHOLE, self.bundle
            for shorter in (_MEAN, _PAYLOADS):
                payloads = _short(shorter, self.bundle, self.contributions, terms, self.round - 1)
                if payloads is not None:
                    kind, body = shorter, payloads
                    break
        how, listed = _MARKED, b""
        if kind != _NOTHING:
            how, listed = _pack_contributions(self.contributions, terms, self.round - 1)
        flags = kind | how | (_OVER if self.is_over else 0)
        head = _HEAD.pack(VERSION, flags, self.start % 256, 0, self.round, terms.tag, self.model_tag)
        return head + listed + body

    @classmethod
    def unpack(cls, data: bytes, terms: Terms) -> "RoundMessage":
        """Read a message, or raise the WireError that says what is wrong with it."""
        if len(data) < _HEAD.size:
            raise TruncatedFrameError(f"a round has {len(data)} bytes; expected at least {_HEAD.size}")
        version, flags, start, zero, number, tag, model_tag = _HEAD.unpack_from(data)
        if version != VERSION:
            raise VersionError(f"the round has version {version}, this package reads {VERSION}; use one release")
        if tag != terms.tag:
            raise SessionMismatchError(
                f"a round of another training came: its terms have tag {tag.hex()}, those here {terms.tag.hex()}; "
                "read the terms again"
            )
        kind, is_listed, is_over = flags & 15, flags & _LISTED, bool(flags & _OVER)
        if zero or flags >= 2 * _OVER or kind > _MEAN:
            raise ContentError(f"a round says {flags:#x} and {zero} of itself, which this package never writes")
        if kind == _NOTHING:
            if len(data) != _HEAD.size or number or is_listed:
                raise ContentError(f"round {number} comes without what the one before it added; only the first does")
            return cls(0, model_tag, None, (), start, is_over)
        if not number:
            raise ContentError("the first round comes with what one before it added, and there is none")
        contributions, at = _read_contributions(data, _HEAD.size, bool(is_listed), terms, number - 1)
        bundle = data[at:] if kind == _WHOLE else _rebuilt(kind, data[at:], contributions, terms, number - 1)
        message = cls(number, model_tag, bundle, contributions, start, is_over)
        if message.pack(terms) != data:
            raise ContentError(f"round {number} is given in a longer way than there is; this package never does")
        return message


def _short(kind: int, bundle: bytes, contributions: Sequence[Contribution], terms: Terms, number: int) -> bytes | None:
    """The payloads of a bundle, where the rest of it follows from who contributed; else None."""
    size = _payload_bytes(kind, contributions, terms, number)
    if size is None or size > len(bundle):
        return None
    body = bundle[len(bundle) - size :]
    try:
        return body if _rebuilt(kind, body, contributions, terms, number) == bundle else None
    except FedmpddError:
        return None


def _payload_bytes(kind: int, contributions: Sequence[Contribution], terms: Terms, number: int) -> int | None:
    codec = terms.bundle_codec(number)
    if not contributions or (kind == _MEAN) != terms.has_one_update or not isinstance(codec, Codec):
        return None
    size = codec.bytes_per_update(terms.d)
    return size if kind == _MEAN else size * len(contributions)


def _rebuilt(kind: int, body: bytes, contributions: Sequence[Contribution], terms: Terms, number: int) -> bytes:
    """The bundle that some payloads stand for, or a WireError."""
    expected = _payload_bytes(kind, contributions, terms, number)
    if len(body) != expected:
        raise FrameLengthError(
            f"what round {number} added has {len(body)} bytes, where {len(contributions)} updates have {expected}"
        )
    codec = terms.bundle_codec(number)
    assert isinstance(codec, Codec)  # of several there are no payloads alone
    sections, size = codec.sections(terms.d), codec.bytes_per_update(terms.d)
    keys = _keys(kind, contributions, terms, number)
    updates = []
    for i, key in enumerate(keys):
        arrays = read_arrays(memoryview(body)[i * size : (i + 1) * size], sections)
        codec.check_content(arrays, terms.d)
        updates.append(Update(codec, terms.d, key, arrays))
    ages = [one.age for one in contributions]
    weights = tuple(terms.arrivals.weight(age) for age in ages) if kind == _PAYLOADS and any(ages) else None
    return Bundle(tuple(updates), weights).pack()


def _keys(kind: int, contributions: Sequence[Contribution], terms: Terms, number: int) -> list[Key]:
    if kind == _MEAN:
        return [Key(round_seed(terms.seed, number)) if terms.session.codec.needs_key else NO_KEY]
    if terms.keys == "partitioned":
        seed, clients = round_seed(terms.seed, number), [one.client for one in contributions]
        return [Key(seed, int(slot)) for slot in np.searchsorted(terms.sample(number), clients)]
    return [terms.key(number - one.age, one.client) for one in contributions]


# ----------------------------------------------------------------------------------------------- who contributed


def _pack_contributions(contributions: Sequence[Contribution], terms: Terms, number: int) -> tuple[int, bytes]:
    """How those are given whose updates count, and the bytes that give them."""
    clients = np.array([one.client for one in contributions], np.int64)
    if not any(one.age for one in contributions) and number >= 0:
        asked = terms.sample(number)
        if np.isin(clients, asked).all() and (np.diff(clients) > 0).all():
            return _MARKED, np.packbits(np.isin(asked, clients), bitorder="little").tobytes()
    entries = b"".join(struct.pack("<IB", *one) for one in contributions)
    return _LISTED, _COUNT.pack(len(contributions)) + entries


def _read_contributions(
    data: bytes, at: int, is_listed: bool, terms: Terms, number: int
) -> tuple[tuple[Contribution, ...], int]:
    """Those whose updates count, and where what follows them begins."""
    if not is_listed:
        asked = terms.sample(number)
        end = at + -(-len(asked) // 8)
        marks = np.unpackbits(np.frombuffer(data[at:end], np.uint8), bitorder="little")
        if len(data) < end or marks[len(asked) :].any():
            raise ContentError(f"round {number + 1} marks others than the {len(asked)} clients that were asked")
        return tuple(Contribution(int(client)) for client in asked[marks[: len(asked)].astype(bool)]), end
    if len(data) < at + _COUNT.size:
        raise TruncatedFrameError(f"round {number + 1} ends before it says whose updates count")
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    if count > MOST_UPDATES or len(data) < at + 5 * count:
        raise LimitError(f"round {number + 1} says that {count:,} updates count, and has {len(data)} bytes")
    entries = np.frombuffer(data, np.dtype([("client", "<u4"), ("age", "u1")]), count, at)
    contributions = tuple(Contribution(client, age) for client, age in entries.tolist())
    for one in contributions:
        if one.client >= terms.clients or one.age > min(terms.arrivals.max_age, number):
            raise ContentError(f"round {number + 1} lists client {one.client}, {one.age} rounds late, of no such round")
    if list(contributions) != sorted(set(contributions)):
        raise ContentError(f"round {number + 1} lists clients twice, or out of order")
    return contributions, at + 5 * count


def pack_contributions(contributions: Sequence[Contribution], terms: Terms, number: int) -> str:
    """Return who contributed to a round as text, for the note of a journal's record."""
    how, data = _pack_contributions(contributions, terms, number)
    return ("listed " if how else "marked ") + data.hex()


def read_contributions(text: object, terms: Terms, number: int) -> tuple[Contribution, ...]:
    """Read such a text, or raise WireError."""
    way, _, digits = str(text).partition(" ")
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        way, data = "", b""
    if way not in ("listed", "marked"):
        raise ContentError(f"{text!r:.60} does not say whose updates counted in round {number}")
    contributions, end = _read_contributions(data, 0, way == "listed", terms, number)
    if end != len(data):
        raise ContentError(f"whose updates counted in round {number} has {len(data) - end} bytes too many")
    return contributions


def mark_clients(round_number: int, clients: Sequence[int], count: int) -> bytes:
    """Return the message that asks some of `count` clients for their update of a round again."""
    marks = np.zeros(count, bool)
    marks[list(clients)] = True
    return _COUNT.pack(round_number) + np.packbits(marks, bitorder="little").tobytes()


def marked_clients(data: bytes, count: int) -> tuple[int, frozenset[int]]:
    """Read such a message: the round, and the clients that are asked; or raise WireError."""
    if len(data) != _COUNT.size - (-count // 8):
        raise FrameLengthError(f"{len(data)} bytes ask for updates again, expected {_COUNT.size - (-count // 8)}")
    (round_number,) = _COUNT.unpack_from(data)
    marks = np.unpackbits(np.frombuffer(data[_COUNT.size :], np.uint8), bitorder="little")[:count]
    return round_number, frozenset(np.flatnonzero(marks).tolist())


# --------------------------------------------------------------------------------------------- models in parts


class Part(NamedTuple):
    """A part of a packed model: see fedmpdd.wire.catch_up."""

    round: int
    number: int
    parts: int
    sha256: bytes
    data: bytes


def pack_parts(round_number: int, message: bytes, terms: Terms) -> list[bytes]:
    """Return a packed model as messages that any broker takes."""
    digest = hashlib.sha256(message).digest()
    pieces = [message[begin : begin + PART_BYTES] for begin in range(0, len(message), PART_BYTES)]
    if len(pieces) >= 2**16:
        raise LimitError(
            f"the model takes {len(pieces):,} messages of {PART_BYTES:,} bytes; at most 65,535 are counted"
        )
    return [
        _PART.pack(terms.tag, round_number, number, len(pieces), digest) + piece for number, piece in enumerate(pieces)
    ]


def read_part(data: bytes, terms: Terms) -> Part:
    """Read a part of a model, or raise WireError."""
    if len(data) <= _PART.size:
        raise TruncatedFrameError(f"a part of a model has {len(data)} bytes; expected more than {_PART.size}")
    tag, round_number, number, count, digest = _PART.unpack_from(data)
    if tag != terms.tag:
        raise SessionMismatchError("a part of the model of another training came; read the terms again")
    most = -(-4 * terms.d * terms.vectors // PART_BYTES) + 1
    if not number < count <= most or len(data) > _PART.size + PART_BYTES:
        raise ContentError(f"a model comes as part {number} of {count}, where it has at most {most}")
    return Part(round_number, number, count, digest, data[_PART.size :])


def join_parts(parts: Sequence[Part]) -> bytes:
    """Return the packed model that parts of one round make, in their order, or raise ContentError."""
    message = b"".join(part.data for part in parts)
    if hashlib.sha256(message).digest() != parts[0].sha256:
        raise ContentError("the parts of a model do not have the hash that they say: they were damaged; ask again")
    return message
