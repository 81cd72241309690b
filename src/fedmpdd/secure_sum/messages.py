"""The messages of a secure sum, specified byte by byte in docs/secure-sum.md.

Nothing that comes from outside is believed: lengths are exact, follow from what the receiver already knows, and are
checked before anything is read.
"""

import struct
from collections.abc import Collection, Sequence
from enum import IntEnum

import numpy as np

from fedmpdd.errors import (
    ContentError,
    FrameLengthError,
    MagicError,
    SessionMismatchError,
    TruncatedFrameError,
    VersionError,
)
from fedmpdd.secure_sum.primitives import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES, TAG_BYTES
from fedmpdd.secure_sum.shamir import PRIME, SHARE_BYTES
from fedmpdd.secure_sum.terms import TERMS_BYTES, Terms

MAGIC = b"FMPS"
VERSION = 1
EVERYBODY = 0xFFFF  # the client's number in messages that are the same for all

_HEADER = struct.Struct("<4sBBH8s")  # magic, version, kind, client, first bytes of the terms' digest
HEADER_BYTES = _HEADER.size
SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES


class Phase(IntEnum):
    """The phases of a round, named after what clients send. Their order is that of `phases_of`, not of the numbers."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    UNMASK = 3
    DONE = 4
    CONFIRM = 5  # between MASK and UNMASK, in rounds with signatures


def phases_of(terms: Terms) -> tuple[Phase, ...]:
    """Return the phases of a round in their order, without DONE, which comes after them."""
    confirm = (Phase.CONFIRM,) if terms.signed else ()
    return (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, *confirm, Phase.UNMASK)


def phase_after(terms: Terms, phase: Phase) -> Phase:
    """Return the phase that follows one of a round's."""
    phases = (*phases_of(terms), Phase.DONE)
    return phases[phases.index(phase) + 1]


class Kind(IntEnum):
    """The kinds of messages: even ones go down and open a phase, odd ones come up and answer them."""

    TERMS = 0
    ADVERTISED = 1
    KEYS = 2
    SHARES = 3
    INBOX = 4
    MASKED = 5
    SURVIVORS = 6
    UNMASKED = 7
    CONFIRMATIONS = 8  # opens UNMASK in rounds with signatures, where SURVIVORS opens CONFIRM
    CONFIRMED = 9


def write(kind: Kind, terms: Terms, client: int, *parts: bytes) -> bytes:
    """Return a message, from a client or for one."""
    return b"".join([_HEADER.pack(MAGIC, VERSION, kind, client, terms.digest[:8]), *parts])


def read(data: bytes, kind: Kind, terms: Terms, client: int) -> memoryview:
    """Return what follows the header of a message of this kind, from this client or for it."""
    came, number, tag, body = _read_header(data)
    if came != kind:
        raise ContentError(f"a message of kind {came} came where {kind.name} ({kind}) was due: drop it")
    if tag != terms.digest[:8]:
        raise SessionMismatchError(
            f"the message is of the round {tag.hex()}, this one is {terms.digest[:8].hex()} (round {terms.round} of "
            f"{terms.run.hex()}): a late or repeated message, or both sides have different terms; drop it"
        )
    if number != client:
        raise ContentError(f"the message says client {number}, but came by the way of client {client}: drop it")
    return body


def write_terms(terms: Terms) -> bytes:
    """Return the message that opens a round."""
    return write(Kind.TERMS, terms, EVERYBODY, terms.to_bytes())


def read_terms(data: bytes) -> Terms:
    """Read the message that opens a round. Whether to take part in such a round is the reader's to say."""
    kind, client, tag, body = _read_header(data)
    if (kind, client) != (Kind.TERMS, EVERYBODY):
        raise ContentError(f"a message of kind {kind} for client {client} came where terms were due: drop it")
    check_length(body, TERMS_BYTES)
    terms = Terms.from_bytes(bytes(body))
    if tag != terms.digest[:8]:
        raise ContentError(
            f"the terms came as {tag.hex()}, their content is {terms.digest[:8].hex()}; ask for them again"
        )
    return terms


def sender_of(data: bytes) -> int:
    """Return the number of the client that a message says it is from, which only its signature can show."""
    return _read_header(data)[1]


def kind_of(data: bytes) -> int:
    """Return the kind that a message says it is of."""
    return _read_header(data)[0]


def tag_of(data: bytes) -> bytes:
    """Return the first bytes of the digest of a message's terms: which sum it says it is of."""
    return _read_header(data)[2]


def _read_header(data: bytes) -> tuple[int, int, bytes, memoryview]:
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        raise TruncatedFrameError(f"{len(view)} bytes came, a message has at least {HEADER_BYTES}; ask for it again")
    magic, version, kind, client, tag = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise MagicError(f"the first bytes are {magic.hex(' ')}, expected {MAGIC.hex(' ')}: not of a secure sum")
    if version != VERSION:
        raise VersionError(
            f"the message has version {version}, this package reads {VERSION}; use one release on both sides"
        )
    return kind, client, tag, view[HEADER_BYTES:]


def check_length(body: memoryview, expected: int) -> None:
    """Raise FrameLengthError unless so many bytes are left, behind the header and a set of clients if there is one."""
    if len(body) != expected:
        raise FrameLengthError(
            f"the message ends with {len(body)} bytes behind header and set of clients, where this round has "
            f"{expected}; ask for it again"
        )


def set_bytes(clients: int) -> int:
    """Bytes of a set of clients."""
    return -(-clients // 8)


def write_set(members: Collection[int], clients: int) -> bytes:
    """Return a set of clients: a bit each, the first in the lowest."""
    bits = np.zeros(clients, np.uint8)
    bits[list(members)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def read_set(body: memoryview, clients: int) -> tuple[list[int], memoryview]:
    """Read the set that a body starts with: its members in order, and what follows it."""
    size = set_bytes(clients)
    if len(body) < size:
        raise FrameLengthError(
            f"the message has {HEADER_BYTES + len(body)} bytes, too few for a set of {clients} clients; ask again"
        )
    bits = np.unpackbits(np.frombuffer(body[:size], np.uint8), bitorder="little")
    if bits[clients:].any():
        raise ContentError(f"a set of clients holds one beyond the last, {clients - 1}: drop this message")
    return [int(member) for member in np.flatnonzero(bits)], body[size:]


def split(body: memoryview, size: int) -> list[bytes]:
    """Cut a body, of a length that was checked, into pieces of one size."""
    return [bytes(body[start : start + size]) for start in range(0, len(body), size)]


def write_shares(shares: Sequence[int]) -> bytes:
    """Return shares as bytes, each the lowest byte first."""
    return b"".join(value.to_bytes(SHARE_BYTES, "little") for value in shares)


def read_shares(data: bytes | memoryview) -> list[int]:
    """Read shares, of a length that was checked."""
    shares = [int.from_bytes(piece, "little") for piece in split(memoryview(data), SHARE_BYTES)]
    if any(value >= PRIME for value in shares):
        raise ContentError("a share is beyond the field that shares are from: drop this message")
    return shares


def advertised_bytes(terms: Terms) -> int:
    """Bytes of what a client says of its keys: two of them, and where it signs, its signature."""
    return 2 * KEY_BYTES + (SIGNATURE_BYTES if terms.signed else 0)


def bytes_up(terms: Terms) -> tuple[int, ...]:
    """Return what a client sends in each phase of a round that nobody leaves, in the order of `phases_of`."""
    bodies = {
        Phase.ADVERTISE: advertised_bytes(terms),
        Phase.SHARE: KEY_BYTES + (terms.most_holders - 1) * SEALED_BYTES,
        Phase.MASK: terms.ring.nbytes(terms.length),
        Phase.CONFIRM: SIGNATURE_BYTES,
        Phase.UNMASK: terms.most_holders * SHARE_BYTES,
    }
    return tuple(HEADER_BYTES + bodies[phase] for phase in phases_of(terms))


def bytes_down(terms: Terms) -> tuple[int, ...]:
    """Return what a client is sent at the start of each phase of a round that nobody leaves, in the same order."""
    members = set_bytes(terms.clients)
    bodies = {
        Phase.ADVERTISE: TERMS_BYTES,
        Phase.SHARE: members + terms.most_holders * advertised_bytes(terms),
        Phase.MASK: members + (terms.most_holders - 1) * SEALED_BYTES,
        Phase.CONFIRM: members,
        Phase.UNMASK: members + (terms.threshold * SIGNATURE_BYTES if terms.signed else 0),
    }
    return tuple(HEADER_BYTES + bodies[phase] for phase in phases_of(terms))
