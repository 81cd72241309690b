"""The journal: whole records only, torn ends cut off, damage named."""

import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.errors import JournalError
from fedmpdd.federation.journal import Header, Journal, JournalReader, Record

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
