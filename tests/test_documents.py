"""JSON from files and from outside: values, or one error of ours, in bounded memory."""

import tracemalloc
from pathlib import Path

import pytest

from fedmpdd.documents import parse_json, read_json, write_atomically, write_json
from fedmpdd.errors import DocumentError, RunError

BAD = {
    "brackets": b"[" * 100_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "braces": b'{"a":' * 100_000,
    "cut": b'{"a": 1',
    "nothing": b"",
    "digits": b"1" * 10_000,
    "not UTF-8": b'{"a": "\xff"}',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_text_that_is_no_document_is_one_error(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(DocumentError):
        parse_json(text)
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(RunError, match=r"a\.json is damaged: .*; delete it$"):
        read_json(tmp_path / "a.json", "delete it")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, None, "x"]})
    assert read_json(tmp_path / "a.json", "") == {"a": [1, None, "x"]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**30)
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=r"at most 1,024 are read; delete it"):
            read_json(tmp_path / "a.json", "delete it", largest=1024)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is missing; make it"):
        read_json(tmp_path / "none.json", "make it")
    with pytest.raises(RunError, match="is damaged"):
        read_json(tmp_path, "make it")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        partial.write_text("half")
        raise OSError("no space left")

    write_json(tmp_path / "a.json", 1)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "a.json", fail)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "1\n")]


def test_a_link_in_the_place_of_the_file_beside_is_not_written_through(tmp_path: Path) -> None:
    """A folder from somebody else may hold `metrics.jsonl.part`, a link to a file of who resumes it."""
    victim, path = tmp_path / "victim", tmp_path / "metrics.jsonl"
    victim.write_text("mine")
    path.with_name("metrics.jsonl.part").symlink_to(victim)
    write_json(path, {"theirs": 1})
    assert victim.read_text() == "mine"
    assert read_json(path, "delete it") == {"theirs": 1}
    assert not path.is_symlink()
