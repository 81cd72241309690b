"""The journal of a run: one record per round, on the disk before the round counts as done. docs/journal.md is the spec.

The initial model follows from the header, every later one from the records before it: the journal is the model, and
all its past.
"""

import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from fedmpdd.errors import JournalError

JOURNAL = "journal.fmpj"
MAGIC = b"FMPJ"
VERSION = 1

_FILE_HEAD = struct.Struct("<4sB3sI")  # magic, version, zeros, length of the text
_RECORD_HEAD = struct.Struct("<4sIIII")  # mark, round, length of bundle, length of note, checksum of the four
_CHECKSUM = struct.Struct("<I")
_MARK = b"RND\n"
_HASH = hashlib.sha256().digest_size
LONGEST_TEXT = 2**20

_log = logging.getLogger("fedmpdd")


class Header(NamedTuple):
    """What a journal starts with: all that the initial model and the meaning of the records follow from."""

    d: int
    shape: tuple[int, int, int]  # of an example
    classes: int
    model_sha256: str  # of the initial model
    config: dict[str, Any]

    def pack(self) -> bytes:
        """Return the header as it stands in the file."""
        text = json.dumps(self._asdict(), separators=(",", ":"), sort_keys=True).encode()
        body = _FILE_HEAD.pack(MAGIC, VERSION, bytes(3), len(text)) + text
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
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise JournalError(f"{path} cannot be read: {error}; only runs with journal = true have one") from None
        self.size = path.stat().st_size
        try:
            self.header = self._read_header()
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

    def _read_header(self) -> Header:
        try:
            header, length = parse_header(self._file.read(_FILE_HEAD.size + LONGEST_TEXT + _CHECKSUM.size))
        except JournalError as error:
            raise JournalError(f"{self.path}: {error}") from None
        self._file.seek(length)
        return header

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
        head = self._file.read(_RECORD_HEAD.size)
        whole = len(head) == _RECORD_HEAD.size and _is_head(head)
        if whole:
            _, number, bundle_length, note_length, _ = _RECORD_HEAD.unpack(head)
            rest = self._file.read(bundle_length + _HASH + note_length + _CHECKSUM.size)
            content, checksum = rest[: -_CHECKSUM.size], rest[-_CHECKSUM.size :]
            whole = (
                len(rest) == bundle_length + _HASH + note_length + _CHECKSUM.size
                and checksum == _CHECKSUM.pack(zlib.crc32(head + content))
                and number == expected
            )
        if not whole:
            later = self._find_later(expected)
            if later is None:
                return None
            raise JournalError(
                f"{self.path}: the record of round {expected}, at byte {self.end}, is damaged, and those from round "
                f"{later[0]}, byte {later[1]}, on are not; rounds before {expected} can be rebuilt (--until {expected})"
            )
        try:
            note = json.loads(content[bundle_length + _HASH :])
        except ValueError:
            raise JournalError(f"{self.path}: the note of round {expected} is no JSON, though it is whole") from None
        return Record(number, content[:bundle_length], content[bundle_length : bundle_length + _HASH].hex(), note)

    def _find_later(self, after: int) -> tuple[int, int] | None:
        """Look for the head of a later round behind the last whole record: then damage is not a torn end."""
        self._file.seek(self.end)
        data = self._file.read()
        at = data.find(_MARK, 1)
        while at >= 0:
            head = data[at : at + _RECORD_HEAD.size]
            if len(head) == _RECORD_HEAD.size and _is_head(head):
                number = _RECORD_HEAD.unpack(head)[1]
                if number > after:
                    return number, self.end + at
            at = data.find(_MARK, at + 1)
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
    def create(cls, path: Path, header: Header) -> Self:
        """Begin a journal; it is on the disk, or there is none."""
        content = header.pack()
        partial = path.with_name(path.name + ".part")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return cls(path, len(content))

    def append(self, record: Record) -> None:
        """Put a round on the disk. When this returns, it is there to stay."""
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
    """Read the header that some bytes begin with, and return its length too."""
    head = data[: _FILE_HEAD.size]
    if len(head) < _FILE_HEAD.size or not head.startswith(MAGIC):
        raise JournalError(f"it starts with {head[:4].hex(' ')!r}: not a journal")
    _, version, _, length = _FILE_HEAD.unpack(head)
    if version != VERSION:
        raise JournalError(f"it has version {version}, this package reads {VERSION}")
    end = _FILE_HEAD.size + length
    checksum = data[end : end + _CHECKSUM.size]
    if length > LONGEST_TEXT or checksum != _CHECKSUM.pack(zlib.crc32(data[:end])):
        raise JournalError("the header is damaged: nothing can be rebuilt from it")
    try:
        values = json.loads(data[_FILE_HEAD.size : end])
        return Header(**{**values, "shape": tuple(values["shape"])}), end + _CHECKSUM.size
    except (ValueError, TypeError, KeyError) as error:
        raise JournalError(f"the header cannot be understood: {error}") from None


def _is_head(head: bytes) -> bool:
    return head.startswith(_MARK) and head[-_CHECKSUM.size :] == _CHECKSUM.pack(zlib.crc32(head[: -_CHECKSUM.size]))
