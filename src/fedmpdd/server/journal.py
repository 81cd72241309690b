"""The journal of a run: one record per round, on the disk before the round counts as done. docs/journal.md is the spec.

The file begins with the initial model, and every later one follows from the records before it: the journal is the
model, and all its past. A file of version 1 says only how the initial model is made, which
another CPU may do otherwise.
"""

import functools
import hashlib
import json
import logging
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.documents import parse_json
from fedmpdd.errors import DocumentError, JournalError

JOURNAL = "journal.fmpj"
MAGIC = b"FMPJ"
BARE, WITH_MODEL = 1, 2  # versions: without and with the initial parameters behind the header

_FILE_HEAD = struct.Struct("<4sB3sI")  # magic, version, zeros, length of the text
_RECORD_HEAD = struct.Struct("<4sIIII")  # mark, round, length of bundle, length of note, checksum of the four
_CHECKSUM = struct.Struct("<I")
_MARK = b"RND\n"
_HASH = hashlib.sha256().digest_size
LONGEST_TEXT = 2**20  # of a header or a note
LARGEST_BUNDLE = 2**31  # more than any federation sends in a round that fits one machine
LARGEST_D = 2**31
_LARGEST_SIDE = 2**16  # of an example, and number of classes
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BLOCK = 2**20  # bytes that are looked at together

_log = logging.getLogger("fedmpdd")


class Header(NamedTuple):
    """What a journal starts with: all that the initial model and the meaning of the records follow from."""

    d: int
    shape: tuple[int, int, int]  # of an example
    classes: int
    model_sha256: str  # of the initial model
    config: dict[str, Any]
    frozen_sha256: str | None = None  # of what is not trained, which no journal carries; None where all of it is

    def pack(self, version: int = BARE) -> bytes:
        """Return the header as it stands in a file of this version; messages have that of version 1."""
        values = self._asdict()
        if self.frozen_sha256 is None:
            del values["frozen_sha256"]
        text = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
        body = _FILE_HEAD.pack(MAGIC, version, bytes(3), len(text)) + text
        return body + _CHECKSUM.pack(zlib.crc32(body))


@dataclass(frozen=True)
class Record:
    """One round: its bundle, the hash of the model that it led to, and a note of how the round went."""

    round: int
    bundle: bytes
    model_sha256: str
    note: dict[str, Any]

    def pack(self) -> bytes:
        """Return the record as it stands in the file."""
        note = json.dumps(self.note, separators=(",", ":"), allow_nan=False).encode()
        fields = struct.pack("<4sIII", _MARK, self.round, len(self.bundle), len(note))
        head = fields + _CHECKSUM.pack(zlib.crc32(fields))
        body = head + self.bundle + bytes.fromhex(self.model_sha256) + note
        return body + _CHECKSUM.pack(zlib.crc32(body))


class JournalReader:
    """A journal as it is on the disk, read one record after the other and never changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for, without end
            raise JournalError(f"{path} is no plain file; take the journal from its source again")
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise JournalError(f"{path} cannot be read: {error}; only runs with journal = true have one") from None
        self.size = path.stat().st_size
        try:
            self.header, self.version = self._read_header()
            self._model_at = self._file.tell()
            if self.version == WITH_MODEL:
                self._skip_model()
        except JournalError:
            self._file.close()
            raise
        self.end = self._file.tell()  # of the last whole record that was read
        self.torn = 0  # bytes behind it that are no record, known once all were read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read_header(self) -> tuple[Header, int]:
        data = self._file.read(_FILE_HEAD.size + LONGEST_TEXT + _CHECKSUM.size)
        try:
            header, length, version = _parse_any_header(data, (BARE, WITH_MODEL))
        except JournalError as error:
            raise JournalError(f"{self.path}: {error}") from None
        self._file.seek(length)
        return header, version

    def _skip_model(self) -> None:
        end = self._model_at + 4 * self.header.d + _CHECKSUM.size
        if end > self.size:
            raise JournalError(
                f"{self.path}: it ends within the initial model: {self.size - self._model_at} bytes are left of "
                f"{end - self._model_at}; nothing can be rebuilt from it"
            )
        self._file.seek(end)

    def initial_model(self) -> NDArray[np.float32] | None:
        """Return the initial parameters [d], or None where the file does not hold them (version 1)."""
        if self.version != WITH_MODEL:
            return None
        before = self._file.tell()
        self._file.seek(self._model_at)
        data = self._file.read(4 * self.header.d)
        checksum = self._file.read(_CHECKSUM.size)
        self._file.seek(before)
        whole = checksum == _CHECKSUM.pack(zlib.crc32(data))
        model = np.frombuffer(data, "<f4").astype(np.float32)  # a copy that may be changed
        if not whole or hashlib.sha256(data).hexdigest() != self.header.model_sha256 or not np.isfinite(model).all():
            raise JournalError(f"{self.path}: the initial model is damaged: nothing can be rebuilt from it")
        return model

    def __iter__(self) -> Iterator[Record]:
        """Yield the rounds in order; stop before a torn last record, and raise JournalError at a damaged one."""
        expected = 0
        while self.end < self.size:
            record = self._read_record(expected)
            if record is None:
                self.torn = self.size - self.end
                _log.warning(
                    "%s ends in %d bytes of a round that was not finished: they are left out", self.path, self.torn
                )
                return
            self.end = self._file.tell()
            expected += 1
            yield record

    def _read_record(self, expected: int) -> Record | None:
        """Read the next record; None if what is left was torn off while it was written."""
        record = self._read_whole(expected)
        if record is not None:
            return record
        later = self._find_later(expected)
        if later is None:
            return None
        raise JournalError(
            f"{self.path}: the record of round {expected}, at byte {self.end}, is damaged, and those from round "
            f"{later[0]}, byte {later[1]}, on are not; rounds before {expected} can be rebuilt (--until {expected})"
        )

    def _read_whole(self, expected: int) -> Record | None:
        """Read the next record if it is whole and in its place. What a head claims is believed only if it is there."""
        head = self._file.read(_RECORD_HEAD.size)
        if len(head) != _RECORD_HEAD.size or not _is_head(head):
            return None
        _, number, bundle_length, note_length, _ = _RECORD_HEAD.unpack(head)
        left = self.size - self.end - _RECORD_HEAD.size
        if bundle_length + _HASH + note_length + _CHECKSUM.size > left or number != expected:
            return None
        if bundle_length > LARGEST_BUNDLE or note_length > LONGEST_TEXT:
            raise JournalError(
                f"{self.path}: the record of round {expected} has a bundle of {bundle_length:,} bytes and a note of "
                f"{note_length:,}; at most {LARGEST_BUNDLE:,} and {LONGEST_TEXT:,} are read: it is damaged"
            )
        bundle, digest, text, checksum = (
            self._file.read(length) for length in (bundle_length, _HASH, note_length, _CHECKSUM.size)
        )
        computed = functools.reduce(lambda crc, part: zlib.crc32(part, crc), (head, bundle, digest, text), 0)
        if checksum != _CHECKSUM.pack(computed):
            return None
        return Record(number, bundle, digest.hex(), self._parse_note(text, expected))

    def _parse_note(self, text: bytes, expected: int) -> dict[str, Any]:
        try:
            note = parse_json(text)
        except DocumentError as error:
            raise JournalError(f"{self.path}: the note of round {expected} is whole, but {error}") from None
        if not isinstance(note, dict):
            raise JournalError(
                f"{self.path}: the note of round {expected} is a {type(note).__name__}, expected an object"
            )
        return note

    def _find_later(self, after: int) -> tuple[int, int] | None:
        """Look for the head of a later round behind the last whole record: then damage is not a torn end."""
        at, begin, data = 1, self.end, b""
        self._file.seek(begin)
        while block := self._file.read(_BLOCK):
            data += block
            while (at := data.find(_MARK, at)) >= 0 and at + _RECORD_HEAD.size <= len(data):
                head = data[at : at + _RECORD_HEAD.size]
                if _is_head(head) and (number := _RECORD_HEAD.unpack(head)[1]) > after:
                    return number, begin + at
                at += 1
            # A head may lie across two blocks.
            kept = min(len(data), _RECORD_HEAD.size) if at < 0 else len(data) - at
            begin += len(data) - kept
            data = data[len(data) - kept :]
            at = 1 if begin == self.end else 0
        return None


class Journal:
    """A journal that is written to: appended to, never changed."""

    def __init__(self, path: Path, end: int) -> None:
        self._path = path
        self._end = end
        self._handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(self._handle, end)  # what a crash tore off in the middle
        os.lseek(self._handle, end, os.SEEK_SET)

    @classmethod
    def create(cls, path: Path, header: Header, initial: NDArray[np.float32] | None = None) -> Self:
        """Begin a journal; it is on the disk, or there is none.

        initial: the parameters that the header has the hash of. Without them the file is of version 1.
        """
        parts = [header.pack(BARE if initial is None else WITH_MODEL)]
        if initial is not None:
            model = initial.astype("<f4", copy=False).tobytes()
            parts += [model, _CHECKSUM.pack(zlib.crc32(model))]
        partial = path.with_name(path.name + ".part")
        with partial.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return cls(path, sum(map(len, parts)))

    def append(self, record: Record) -> None:
        """Put a round on the disk. When this returns, it is there to stay."""
        if len(record.bundle) > LARGEST_BUNDLE:
            raise JournalError(
                f"the bundle of round {record.round} has {len(record.bundle):,} bytes, and a journal takes "
                f"{LARGEST_BUNDLE:,}; use a codec that sends less, or journal = false"
            )
        data = record.pack()
        try:
            written = 0
            while written < len(data):
                written += os.write(self._handle, data[written:])
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, self._end)  # half a record is none
            os.lseek(self._handle, self._end, os.SEEK_SET)
            raise
        self._end += len(data)

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __del__(self) -> None:
        if getattr(self, "_handle", -1) >= 0:
            self.close()


def parse_header(data: bytes) -> tuple[Header, int]:
    """Read the header that a message begins with, and return its length too; it is that of version 1."""
    header, length, _ = _parse_any_header(data, (BARE,))
    return header, length


def _parse_any_header(data: bytes, versions: tuple[int, ...]) -> tuple[Header, int, int]:
    """Read the header that some bytes begin with, and return its length and version too."""
    head = data[: _FILE_HEAD.size]
    if len(head) < _FILE_HEAD.size or not head.startswith(MAGIC):
        raise JournalError(f"it starts with {head[:4].hex(' ')!r}: not a journal")
    _, version, _, length = _FILE_HEAD.unpack(head)
    if version not in versions:
        raise JournalError(f"it has version {version}, this package reads {' and '.join(map(str, versions))} here")
    end = _FILE_HEAD.size + length
    checksum = data[end : end + _CHECKSUM.size]
    if length > LONGEST_TEXT or checksum != _CHECKSUM.pack(zlib.crc32(data[:end])):
        raise JournalError("the header is damaged: nothing can be rebuilt from it")
    try:
        values = parse_json(data[_FILE_HEAD.size : end])
    except DocumentError as error:
        raise JournalError(f"the header cannot be understood: {error}") from None
    return _header_of(values), end + _CHECKSUM.size, version


def _header_of(values: Any) -> Header:
    """The header that a JSON document says, each field looked at."""
    required = set(Header._fields) - set(Header._field_defaults)
    if not isinstance(values, dict) or not required <= set(values) <= set(Header._fields):
        keys = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise JournalError(f"the header cannot be understood: it has {keys!s:.200}, expected {list(Header._fields)}")
    shape, digest = values["shape"], values["model_sha256"]
    frozen = values.get("frozen_sha256", digest)
    for name, holds, expected in (
        ("d", _is_count(values["d"], LARGEST_D), f"a whole number from 1 to {LARGEST_D}"),
        (
            "shape",
            isinstance(shape, list) and len(shape) == 3 and all(_is_count(side, _LARGEST_SIDE) for side in shape),
            f"three whole numbers from 1 to {_LARGEST_SIDE}",
        ),
        ("classes", _is_count(values["classes"], _LARGEST_SIDE), f"a whole number from 1 to {_LARGEST_SIDE}"),
        ("model_sha256", isinstance(digest, str) and bool(_SHA256.fullmatch(digest)), "64 hexadecimal digits"),
        ("frozen_sha256", isinstance(frozen, str) and bool(_SHA256.fullmatch(frozen)), "64 hexadecimal digits"),
        ("config", isinstance(values["config"], dict), "an object"),
    ):
        if not holds:
            raise JournalError(
                f"the header cannot be understood: {name} = {values[name]!r:.60}, expected {expected}; take the "
                "journal from its source again"
            )
    return Header(values["d"], tuple(shape), values["classes"], digest, values["config"], values.get("frozen_sha256"))


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_head(head: bytes) -> bool:
    return head.startswith(_MARK) and head[-_CHECKSUM.size :] == _CHECKSUM.pack(zlib.crc32(head[: -_CHECKSUM.size]))
