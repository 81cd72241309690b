"""Updates to bytes and back. The formats are specified, byte by byte, in docs/wire-format.md.

Nothing that comes from outside is believed before it is checked, and nothing is allocated before its size was
checked against the receiver's limits. Checks go in a fixed order (see the spec), so a given frame always
raises the same exception.
"""

import struct
import zlib
from dataclasses import dataclass
from operator import index
from typing import NamedTuple

import numpy as np

from fedmpdd.codecs import NO_KEY, Arrays, Codec, Parameters, Section, Update
from fedmpdd.codecs.registry import self_contained_codecs
from fedmpdd.directions import MAX_D, MAX_M, Key, check_key
from fedmpdd.errors import (
    ChecksumError,
    CodecError,
    ContentError,
    FrameLengthError,
    InputError,
    KeyRangeError,
    LimitError,
    MagicError,
    SessionMismatchError,
    TruncatedFrameError,
    UnknownCodecError,
    VersionError,
)
from fedmpdd.imports import quote

MAGIC = b"FMPD"
VERSION = 1
COMPACT_MARK = 0xF0 | VERSION  # first byte of a compact frame

_HEADER = struct.Struct("<4sBBBBQIIQ")  # magic, version, codec, two parameters, d, size, slot, seed
_COMPACT_HEAD = struct.Struct("<B3s")
_SEED = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_SMALLEST_FRAME = _HEADER.size + _CHECKSUM.size
_SMALLEST_COMPACT = _COMPACT_HEAD.size + _CHECKSUM.size


@dataclass(frozen=True)
class Limits:
    """What a receiver is ready to spend on a frame. The defaults fit a model of a billion parameters.

    max_d: coordinates; decoding allocates as many floats. max_payload: bytes of scale and scalars. max_work: how long
    decoding may take, in the unit of `Codec.work`, an addition of about 10 ps: 2^44 of them are about three minutes on
    one core with AVX-512 kernels, eight with AVX2, and up to half an hour with the plain ones.
    """

    max_d: int = 2**30
    max_payload: int = 2**28
    max_work: int = 2**44

    def __post_init__(self) -> None:
        if not (1 <= self.max_d <= MAX_D and self.max_payload >= 1 and self.max_work >= 1):
            raise CodecError(f"{self} cannot be met: expected max_d from 1 to 2^40, the others of at least 1")


DEFAULT_LIMITS = Limits()


def payload_of(update: Update) -> bytes:
    """Return scale and scalars of an update as they stand in every frame."""
    sections = update.codec.sections(update.d)
    return b"".join(
        array.astype(section.dtype, copy=False).tobytes()
        for section, array in zip(sections, update.arrays, strict=True)
    )


def _checksum(*parts: bytes | memoryview) -> int:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def read_arrays(payload: memoryview, sections: tuple[Section, ...]) -> Arrays:
    """Read the arrays of an update; their lengths were checked, their content was not."""
    arrays = []
    offset = 0
    for section in sections:
        # A copy: an update must not change, nor keep alive, the buffer it was read from.
        arrays.append(np.frombuffer(payload, section.dtype, section.length, offset).copy())
        offset += section.nbytes
    return tuple(arrays)


def check_dimension(codec: Codec, d: int) -> int:
    """Return d as an integer, or raise InputError if a codec cannot encode so many coordinates."""
    try:
        d = index(d)
    except TypeError:
        raise CodecError(f"d = {d!r} is not a number of coordinates; expected an integer") from None
    codec.check(d)
    return d


def header_of(codec: Codec, d: int, key: Key) -> bytes:
    """Return the first 32 bytes of a self-contained frame: all that two sides agree on, as bytes."""
    first, second, size = codec.parameters()
    return _HEADER.pack(MAGIC, VERSION, codec.code, first, second, d, size, key.slot, key.seed)


def _check_length(length: int, overhead: int, sections: tuple[Section, ...]) -> None:
    expected = overhead + sum(section.nbytes for section in sections)
    if length != expected:
        raise FrameLengthError(f"the frame has {length} bytes where its header makes it {expected}; ask for it again")


def _check_sum(checksum: int, expected: int) -> None:
    if checksum != expected:
        raise ChecksumError(
            f"the checksum is {checksum:08x} where the content makes it {expected:08x}: the frame was damaged, or made "
            "for another key; ask for it again"
        )


def _check_update(update: object) -> None:
    if not isinstance(update, Update):
        raise CodecError(f"a frame holds one update, and {quote(update)} came; pack those of a list one by one")


def _view_of(frame: bytes | bytearray | memoryview) -> memoryview:
    try:
        return memoryview(frame).cast("B")
    except TypeError:
        raise MagicError(f"{quote(frame)} came, which is no frame; expected bytes") from None


def _check_limits(codec: Codec, d: int, slot: int, limits: Limits) -> None:
    if not 1 <= d <= limits.max_d:
        raise LimitError(f"d = {d} is outside 1 to {limits.max_d}; if models are that large here, raise Limits.max_d")
    try:
        codec.check(d, slot)
    except InputError as error:
        raise LimitError(f"{codec} cannot be used at d = {d}, slot {slot}: {error}") from None
    payload = codec.bytes_per_update(d)
    if payload > limits.max_payload:
        raise LimitError(
            f"{codec} makes updates of {payload} bytes at d = {d}, above {limits.max_payload}; "
            "if updates are that large here, raise Limits.max_payload"
        )
    work = codec.work(d, slot)
    if work > limits.max_work:
        raise LimitError(
            f"{codec} takes as long as {work:,} additions to decode at d = {d}, slot {slot} (about {work * 1e-11:.2g} "
            f"s on one core); this receiver allows {limits.max_work:,}: if that is meant, raise Limits.max_work"
        )


def pack(update: Update) -> bytes:
    """Return the self-contained frame of an update: whoever reads it needs to know nothing else."""
    _check_update(update)
    if not update.codec.fits_header():
        raise CodecError(f"{update.codec.name} does not fit a self-contained frame; use a Session on both sides")
    body = header_of(update.codec, update.d, update.key) + payload_of(update)
    return body + _CHECKSUM.pack(_checksum(body))


def unpack(
    frame: bytes | bytearray | memoryview,
    limits: Limits = DEFAULT_LIMITS,
    *,
    codec: Codec | None = None,
    d: int | None = None,
) -> Update:
    """Read a self-contained frame, or raise the WireError that says what is wrong with it.

    A server that knows which `codec` and `d` to expect passes them: then no client can choose others for it. They are
    compared with the header before anything behind it is looked at, or copied.
    """
    view = _view_of(frame)
    header = _read_header(view)
    if (codec is not None and header.codec != codec) or (d is not None and header.d != d):
        raise SessionMismatchError(
            f"the frame is from {header.codec} with d = {header.d}, expected {codec or 'any codec'} with "
            f"d = {'any' if d is None else d}: both sides must use the same codec and model"
        )
    return _read_body(view, header, limits)


class _Header(NamedTuple):
    """What a self-contained frame says of itself; nothing of it was held against limits."""

    codec: Codec
    d: int
    key: Key


def _read_header(view: memoryview) -> _Header:
    if len(view) < _SMALLEST_FRAME:
        raise TruncatedFrameError(f"{len(view)} bytes came, the smallest frame has {_SMALLEST_FRAME}; ask for it again")
    magic, version, code, first, second, d, size, slot, seed = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise MagicError(f"the first bytes are {magic.hex(' ')}, a frame starts with {MAGIC.hex(' ')}: not an update")
    if version != VERSION:
        raise VersionError(
            f"the frame has version {version}, this package reads {VERSION}; use one release on both sides"
        )
    codecs = self_contained_codecs()
    if code not in codecs:
        raise UnknownCodecError(f"codec number {code} is unknown: expected one of {sorted(codecs)}; upgrade this side?")
    if not 1 <= size <= MAX_M:
        raise LimitError(f"the frame says size {size}; expected 1 to 2^31 − 1")
    try:
        codec = codecs[code].from_parameters(Parameters(first, second, size))
    except InputError as error:
        raise UnknownCodecError(f"no {codecs[code].name} codec has the parameters of this frame: {error}") from None
    return _Header(codec, d, Key(seed, slot))


def _read_body(view: memoryview, header: _Header, limits: Limits) -> Update:
    codec, d, key = header
    _check_limits(codec, d, key.slot, limits)
    sections = codec.sections(d)
    _check_length(len(view), _SMALLEST_FRAME, sections)
    (checksum,) = _CHECKSUM.unpack_from(view, len(view) - _CHECKSUM.size)
    _check_sum(checksum, _checksum(view[: -_CHECKSUM.size]))
    arrays = read_arrays(view[_HEADER.size : -_CHECKSUM.size], sections)
    if not codec.needs_key and key != NO_KEY:
        raise ContentError(f"{codec} needs no key, but the frame carries {key}; expected zeros: drop this update")
    codec.check_content(arrays, d)
    return Update(codec, d, key, arrays)


class Session:
    """Compact frames, for two sides that already agree on codec and d.

    A compact frame is 8 bytes longer than scale and scalars, and another 8 where it carries its seed. It does not where
    the session assigns keys: pass the key that the client was given to `unpack`. Nor does it where decoding needs none.
    """

    def __init__(self, codec: Codec, d: int, *, sends_seed: bool) -> None:
        d = check_dimension(codec, d)
        sends_seed = bool(sends_seed)
        self.codec = codec
        self.d = d
        self.sends_seed = sends_seed and codec.needs_key
        self.assigns_key = not sends_seed and codec.needs_key
        self._sections = codec.sections(d)
        self._overhead = _SMALLEST_COMPACT + (_SEED.size if self.sends_seed else 0)
        # Three bytes that tell sessions apart: a frame of another one is refused before anything else is read.
        descriptor = header_of(codec, d, Key(0, 0)) + bytes([self.sends_seed])
        self._tag = _CHECKSUM.pack(_checksum(descriptor))[:3]

    @property
    def frame_bytes(self) -> int:
        """Length of every frame of this session."""
        return self._overhead + self.codec.bytes_per_update(self.d)

    def pack(self, update: Update) -> bytes:
        """Return the compact frame of an update."""
        _check_update(update)
        if update.codec != self.codec or update.d != self.d:
            raise CodecError(
                f"the update is from {update.codec} with d = {update.d}, "
                f"this session is for {self.codec} with d = {self.d}"
            )
        if self.sends_seed and update.key.slot != 0:
            raise KeyRangeError(
                f"the update has slot {update.key.slot}, but frames that carry a seed carry no slot; "
                "partitioned rounds assign keys: Session(…, sends_seed=False)"
            )
        payload = payload_of(update)
        checksum = _checksum(header_of(self.codec, self.d, update.key), payload)
        seed = _SEED.pack(update.key.seed) if self.sends_seed else b""
        return _COMPACT_HEAD.pack(COMPACT_MARK, self._tag) + seed + payload + _CHECKSUM.pack(checksum)

    def unpack(self, frame: bytes | bytearray | memoryview, key: Key | int | None = None) -> Update:
        """Read a compact frame; `key` is the one that was assigned, where the session assigns them."""
        if (key is not None) != self.assigns_key:
            expected = (
                "the key that the client was given" if self.assigns_key else "no key: frames carry what is needed"
            )
            raise KeyRangeError(f"unpack got key = {key!r}, this session needs {expected}")
        view = _view_of(frame)
        if len(view) < _SMALLEST_COMPACT:
            raise TruncatedFrameError(
                f"{len(view)} bytes came, the smallest frame has {_SMALLEST_COMPACT}; ask for it again"
            )
        mark, tag = _COMPACT_HEAD.unpack_from(view)
        if mark & 0xF0 != COMPACT_MARK & 0xF0:
            raise MagicError(
                f"the first byte is {mark:02x}, a compact frame starts with {COMPACT_MARK:02x}: not an update"
            )
        if mark != COMPACT_MARK:
            raise VersionError(
                f"the frame has version {mark & 0x0F}, this package reads {VERSION}; use one release on both sides"
            )
        if tag != self._tag:
            raise SessionMismatchError(
                f"the frame has session tag {tag.hex()}, this session ({self.codec}, d = {self.d}) has "
                f"{self._tag.hex()}: both sides must use the same codec, model and way of assigning seeds"
            )
        _check_length(len(view), self._overhead, self._sections)
        start = _COMPACT_HEAD.size
        if not self.codec.needs_key:
            key = NO_KEY
        elif key is None:
            (seed,) = _SEED.unpack_from(view, start)
            key = Key(seed)
            start += _SEED.size
        else:
            key = check_key(key)
            self.codec.check(self.d, key.slot)
        payload = view[start : -_CHECKSUM.size]
        (checksum,) = _CHECKSUM.unpack_from(view, len(view) - _CHECKSUM.size)
        _check_sum(checksum, _checksum(header_of(self.codec, self.d, key), payload))
        arrays = read_arrays(payload, self._sections)
        self.codec.check_content(arrays, self.d)
        return Update(self.codec, self.d, key, arrays)
