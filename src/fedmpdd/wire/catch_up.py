"""What a client is sent before a round, so that it has the model: docs/journal.md, "Catching up".

Without PyTorch, so that it serves clients that have none. What comes first for who has seen nothing yet, the header of
a journal, is the local engine's (fedmpdd.simulation.catch_up); Flower's clients are sent none.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ChecksumError, ContentError, FrameLengthError, MagicError, TruncatedFrameError, VersionError

MAGIC = b"FMPC"
VERSION = 1
_HEAD = struct.Struct("<4sBBHII")  # magic, version, kind, zero, round, number of bundles or vectors
_LENGTH = struct.Struct("<I")
_BUNDLES, _MODEL, _WITH_HEADER = 1, 2, 128


class AnyHeader(Protocol):
    """What a header must be able to do here."""

    @property
    def d(self) -> int:
        """Number of coordinates of the model."""

    def pack(self) -> bytes:
        """Return it as bytes."""


H = TypeVar("H", bound=AnyHeader)


@dataclass(frozen=True)
class CatchUp(Generic[H]):
    """Bundles from a round on, or the starting model of a round; the journal's header for who has not seen it."""

    round: int
    bundles: tuple[bytes, ...] = ()
    vectors: tuple[NDArray[np.float32], ...] = ()  # the model, then the server's optimiser
    header: H | None = None

    def pack(self) -> bytes:
        """Return the message."""
        kind = (_MODEL if self.vectors else _BUNDLES) | (0 if self.header is None else _WITH_HEADER)
        parts = [_HEAD.pack(MAGIC, VERSION, kind, 0, self.round, len(self.vectors) or len(self.bundles))]
        if self.header is not None:
            parts.append(self.header.pack())
        for bundle in self.bundles:
            parts += [_LENGTH.pack(len(bundle)), bundle]
        parts += [np.asarray(vector, "<f4").tobytes() for vector in self.vectors]
        body = b"".join(parts)
        return body + _LENGTH.pack(zlib.crc32(body))


def message_bytes(bundles: Sequence[int] = (), *, vectors: int = 0, header: int = 0) -> int:
    """Return how long a message is: of bundles of these lengths, or of so many bytes of vectors."""
    return _HEAD.size + header + sum(_LENGTH.size + length for length in bundles) + vectors + _LENGTH.size


PER_BUNDLE = _LENGTH.size
PER_MESSAGE = message_bytes()


def unpack_catch_up(
    data: bytes | memoryview, d: int | None = None, parse_header: Callable[[bytes], tuple[H, int]] | None = None
) -> CatchUp[H]:
    """Read a message, or raise the WireError that says what is wrong with it; `d` of who knows it already.

    parse_header: reads a header and says how long it is; where there is none, a message must not have one.
    """
    view = memoryview(data).cast("B")
    if len(view) < PER_MESSAGE:
        raise TruncatedFrameError(f"{len(view)} bytes came, the smallest message has {PER_MESSAGE}; ask for it again")
    magic, version, kind, zero, first, count = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise MagicError(f"the first bytes are {magic.hex(' ')}, expected {MAGIC.hex(' ')}: nothing to catch up with")
    if version != VERSION:
        raise VersionError(f"the message has version {version}, this package reads {VERSION}; use one release")
    if kind & ~_WITH_HEADER not in (_BUNDLES, _MODEL) or zero != 0:
        raise ContentError(f"the message is of kind {kind}, which this package never writes")
    body, (checksum,) = view[: -_LENGTH.size], _LENGTH.unpack_from(view, len(view) - _LENGTH.size)
    if checksum != zlib.crc32(body):
        raise ChecksumError("the checksum does not fit: the message was damaged; ask for it again")
    at, header = _HEAD.size, None
    if kind & _WITH_HEADER:
        if parse_header is None:
            raise ContentError("the message begins with a header, which nobody here sends; ask for one without")
        header, length = parse_header(bytes(body[at:]))
        at += length
        d = header.d
    if kind & _MODEL:
        # With d = 0 any number of vectors would fit the length.
        if d is None or d < 1 or count == 0 or len(body) != at + 4 * d * count:
            raise FrameLengthError(f"a message with {count} vectors of {d or 'unknown'} numbers has {len(body)} bytes")
        vectors = np.frombuffer(body[at:], "<f4").astype(np.float32).reshape(count, d)
        if not np.isfinite(vectors).all():
            raise ContentError("the model that came holds NaN or infinity; ask for it again")
        return CatchUp(first, (), tuple(vectors), header)
    bundles: list[bytes] = []
    for _ in range(count):
        if len(body) < at + _LENGTH.size:
            raise FrameLengthError(f"the message ends after {len(bundles)} of its {count} bundles")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if len(body) < at + length:
            raise FrameLengthError(f"the message ends within bundle {len(bundles)} of {count}")
        bundles.append(bytes(body[at : at + length]))
        at += length
    if at != len(body):
        raise FrameLengthError(f"the message has {len(body) - at} bytes more than its bundles")
    return CatchUp(first, tuple(bundles), (), header)
