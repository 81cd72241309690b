"""The journal: whole records only, torn ends cut off, damage named."""

import errno
import hashlib
import json
import logging
import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.errors import JournalError
from fedmpdd.server.journal import BARE, WITH_MODEL, Header, Journal, JournalReader, Record, parse_header

HEADER = Header(d=5, shape=(1, 2, 3), classes=4, model_sha256="ab" * 32, config={"lr": 0.1})
RECORDS = [Record(k, bytes([k] * (10 * k)), f"{k:064x}", {"loss": k / 3}) for k in range(4)]


def written(path: Path, records: list[Record] = RECORDS) -> bytes:
    journal = Journal.create(path, HEADER)
    for record in records:
        journal.append(record)
    journal.close()
    return path.read_bytes()


def read(path: Path) -> tuple[list[Record], int]:
    with JournalReader(path) as reader:
        assert reader.header == HEADER
        records = list(reader)
        return records, reader.torn


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written(tmp_path / "j")
    assert read(tmp_path / "j") == (RECORDS, 0)


def test_a_torn_end_is_cut_off_with_a_warning_and_gone_on_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "j"
    whole = written(path)
    start = len(whole) - len(RECORDS[3].pack())
    for length in range(start + 1, len(whole)):
        path.write_bytes(whole[:length])
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedmpdd"):
            assert read(path) == (RECORDS[:3], length - start)
        assert "not finished" in caplog.text
    journal = Journal(path, start)
    journal.append(RECORDS[3])
    assert path.read_bytes() == whole


def test_zeros_at_the_end_are_a_torn_end_too(tmp_path: Path) -> None:
    """A file system may give a file its new length before its new content."""
    path = tmp_path / "j"
    whole = written(path)
    path.write_bytes(whole[: -len(RECORDS[3].pack())] + bytes(len(RECORDS[3].pack())))
    assert read(path)[0] == RECORDS[:3]


@given(st.data())
@settings(max_examples=150)
def test_damage_in_the_middle_is_found_and_named(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    whole = bytearray(written(path))
    start = len(HEADER.pack())
    ends = [start]
    for record in RECORDS:
        ends.append(ends[-1] + len(record.pack()))
    at = data.draw(st.integers(start, ends[3] - 1), label="byte")
    whole[at] ^= data.draw(st.integers(1, 255), label="flip")
    path.write_bytes(whole)
    broken = next(k for k in range(3) if at < ends[k + 1])
    with JournalReader(path) as reader:
        records: list[Record] = []
        with pytest.raises(JournalError, match=f"round {broken}, at byte {ends[broken]}, is damaged"):
            records.extend(reader)
        assert reader.end == ends[broken]


def test_a_record_in_the_wrong_place_is_damage(tmp_path: Path) -> None:
    written(tmp_path / "j", [RECORDS[0], RECORDS[2], RECORDS[3]])
    with pytest.raises(JournalError, match="round 1, at byte"):
        read(tmp_path / "j")


def test_a_disk_that_is_full_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    journal = Journal.create(path, HEADER)
    journal.append(RECORDS[0])
    real = os.write

    def half(handle: int, data: bytes) -> int:
        if len(data) > 40:
            return real(handle, data[:40])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="no space"):
        journal.append(RECORDS[1])
    monkeypatch.undo()
    journal.append(RECORDS[1])
    assert read(path) == (RECORDS[:2], 0)


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(JournalError, match="journal = true"):
        JournalReader(path)
    whole = bytearray(written(path))
    for at, words in ((0, "not a journal"), (4, "has version"), (11, "header is damaged"), (20, "header is damaged")):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        path.write_bytes(changed)
        with pytest.raises(JournalError, match=words):
            JournalReader(path)


MODEL = np.array([0.5, -1.0, 2.0, 0.0, 3.5], np.float32)
WHOLE = HEADER._replace(model_sha256=hashlib.sha256(MODEL.tobytes()).hexdigest())


def written_with_model(path: Path) -> bytes:
    journal = Journal.create(path, WHOLE, MODEL)
    for record in RECORDS:
        journal.append(record)
    journal.close()
    return path.read_bytes()


def test_the_initial_model_stands_behind_the_header(tmp_path: Path) -> None:
    data = written_with_model(tmp_path / "j")
    start = len(WHOLE.pack())
    assert data[4] == WITH_MODEL
    assert data[:start] == WHOLE.pack(WITH_MODEL)
    assert data[start : start + 20] == MODEL.astype("<f4").tobytes()
    assert data[start + 20 : start + 24] == struct.pack("<I", zlib.crc32(MODEL.astype("<f4").tobytes()))
    with JournalReader(tmp_path / "j") as reader:
        first = next(iter(reader))
        initial = reader.initial_model()  # at any time, and without losing the place
        assert initial is not None
        assert (initial.tobytes(), first) == (MODEL.tobytes(), RECORDS[0])
    with JournalReader(tmp_path / "j") as reader:
        assert list(reader) == RECORDS


def test_a_journal_of_version_1_has_no_model_and_stays_so(tmp_path: Path) -> None:
    data = written(tmp_path / "j", RECORDS[:3])
    assert data.startswith(HEADER.pack(BARE))
    with JournalReader(tmp_path / "j") as reader:
        assert reader.initial_model() is None
        assert list(reader) == RECORDS[:3]
        end = reader.end
    journal = Journal(tmp_path / "j", end)
    journal.append(RECORDS[3])
    journal.close()
    assert (tmp_path / "j").read_bytes() == data + RECORDS[3].pack()


def test_every_flipped_bit_of_the_initial_model_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = written_with_model(path)
    start = len(WHOLE.pack())
    for bit in range(8 * start, 8 * (start + 24)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with JournalReader(path) as reader, pytest.raises(JournalError, match="initial model is damaged"):
            reader.initial_model()
    for length in range(start, start + 24):
        path.write_bytes(whole[:length])
        with pytest.raises(JournalError, match="ends within the initial model"):
            JournalReader(path)


def test_a_message_has_the_header_of_version_1() -> None:
    assert parse_header(WHOLE.pack() + b"more") == (WHOLE, len(WHOLE.pack()))
    with pytest.raises(JournalError, match="version 2, this package reads 1"):
        parse_header(WHOLE.pack(WITH_MODEL))


def sealed(values: Any) -> bytes:
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    body = struct.pack("<4sB3sI", b"FMPJ", 1, bytes(3), len(text)) + text
    return body + struct.pack("<I", zlib.crc32(body))


BAD_HEADERS: dict[str, Any] = {
    "brackets": b"[" * 100_000,
    "null": None,
    "list": [1, 2],
    "digits": b'{"d": ' + b"9" * 5_000 + b"}",
    "d of words": {"d": "x"},
    "d none": {"d": None},
    "d true": {"d": True},
    "d zero": {"d": 0},
    "d negative": {"d": -5},
    "d huge": {"d": 10**30},
    "d real": {"d": 5.0},
    "shape number": {"shape": 3},
    "shape of two": {"shape": [1, 2]},
    "shape of words": {"shape": ["a", "b", "c"]},
    "shape infinite": {"shape": [float("inf"), 1, 1]},
    "shape negative": {"shape": [1, -28, 28]},
    "shape huge": {"shape": [1, 2**40, 2**40]},
    "shape text": {"shape": "abc"},
    "classes word": {"classes": "ten"},
    "classes negative": {"classes": -1},
    "hash number": {"model_sha256": 5},
    "hash short": {"model_sha256": "ab"},
    "hash of words": {"model_sha256": "x" * 64},
    "config list": {"config": []},
    "config null": {"config": None},
    "more": {"more": 1},
}


@pytest.mark.parametrize("change", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_header_with_what_cannot_be_is_refused(tmp_path: Path, change: Any) -> None:
    values = {**HEADER._asdict(), **change} if isinstance(change, dict) else change
    (tmp_path / "j").write_bytes(sealed(values))
    with pytest.raises(JournalError, match="header cannot be understood"):
        JournalReader(tmp_path / "j")
    with pytest.raises(JournalError, match="header cannot be understood"):
        parse_header(sealed(values))


def record_of(note: bytes, round_number: int = 1) -> bytes:
    fields = struct.pack("<4sIII", b"RND\n", round_number, 0, len(note))
    body = fields + struct.pack("<I", zlib.crc32(fields)) + bytes(32) + note
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize("note", [b"[" * 100_000, b"null", b"[]", b"3", b"{", b'{"a": ' + b"9" * 5_000 + b"}"])
def test_a_note_that_is_no_object_is_refused(tmp_path: Path, note: bytes) -> None:
    data = written(tmp_path / "j", RECORDS[:1])
    (tmp_path / "j").write_bytes(data + record_of(note))
    with pytest.raises(JournalError, match="the note of round 1"):
        read(tmp_path / "j")


def claims(bundle: int, note: int) -> bytes:
    fields = struct.pack("<4sIII", b"RND\n", 1, bundle, note)
    return fields + struct.pack("<I", zlib.crc32(fields))


@pytest.mark.parametrize("present", [0, 5 * 2**30])
def test_a_record_that_claims_gigabytes_takes_no_memory(tmp_path: Path, present: int) -> None:
    """Claimed only: a torn end. Really there, as a hole in the file: more than is ever read."""
    path = tmp_path / "j"
    data = written(path, RECORDS[:1]) + claims(2**32 - 1, 2**20 if present else 2**32 - 1)
    path.write_bytes(data)
    os.truncate(path, len(data) + present)
    tracemalloc.start()
    try:
        if present:
            with pytest.raises(JournalError, match=r"a bundle of 4,294,967,295 bytes"):
                read(path)
        else:
            assert read(path) == (RECORDS[:1], 20)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_later_round_is_looked_for_block_by_block(tmp_path: Path) -> None:
    """Wherever its head lies, across two blocks too, and in memory of a few blocks."""
    path = tmp_path / "j"
    head = RECORDS[3].pack()
    data = bytearray(written(path, RECORDS[:1]))
    start = len(data)
    for gap in (1, 50, 2**20 - 30, 2**20 - 19, 2**20 - 10, 2**20 - 2, 2**20, 2**20 + 1, 3 * 2**20 - 7):
        path.write_bytes(data + b"x" * gap + head)
        with pytest.raises(JournalError, match=f"from round 3, byte {start + gap}, on are not"):
            read(path)
    path.write_bytes(data)
    os.truncate(path, start + 64 * 2**20)
    tracemalloc.start()
    try:
        assert read(path)[0] == RECORDS[:1]
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_bundle_that_no_reader_would_take_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpdd.server.journal.LARGEST_BUNDLE", 15)
    journal = Journal.create(tmp_path / "j", HEADER)
    journal.append(RECORDS[0])
    journal.append(RECORDS[1])
    with pytest.raises(JournalError, match="bundle of round 2 has 20 bytes"):
        journal.append(RECORDS[2])
    assert read(tmp_path / "j") == (RECORDS[:2], 0)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.fmpj")
    with pytest.raises(JournalError, match="no plain file"):
        JournalReader(tmp_path / "journal.fmpj")
