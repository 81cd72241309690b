"""Checkpoints: every damage is an error, and no damage is another model."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedmpdd.errors import RunError
from fedmpdd.server.checkpoints import read_checkpoint, read_count, write_checkpoint

D = 5
VECTORS = {"model": np.arange(D, dtype=np.float32), "server.m": np.full(D, -2.5, np.float32)}
NOTES = {"next_round": "3", "config": '{"lr": 0.1, "name": "é\\"x"}'}
OLD = ("next_round",)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "c.safetensors", VECTORS, NOTES)
    return tmp_path / "c.safetensors"


def test_what_was_written_is_read(file: Path) -> None:
    found = read_checkpoint(file, D, "delete it", OLD)
    assert found.notes == NOTES
    assert found.sealed
    assert set(found.vectors) == set(VECTORS)
    for name, vector in VECTORS.items():
        assert found.vectors[name].tobytes() == vector.tobytes()


def test_every_flipped_bit_is_an_error(file: Path) -> None:
    """All bits of the file: the header's length, names, notes, the seal, and the vectors."""
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(RunError, match="delete it"):
            read_checkpoint(file, D, "delete it", OLD)


def test_every_cut_is_an_error(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(RunError, match="delete it"):
            read_checkpoint(file, D, "delete it", OLD)
    file.write_bytes(whole + b"\0")
    with pytest.raises(RunError, match="delete it"):
        read_checkpoint(file, D, "delete it", OLD)


def test_a_file_put_together_from_two_is_an_error(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    other = tmp_path / "other.safetensors"
    write_checkpoint(other, {name: vector + 1 for name, vector in VECTORS.items()}, NOTES)
    half = len(whole) - 4 * D  # the last vector of one, everything else of the other
    file.write_bytes(whole[:half] + other.read_bytes()[half:])
    with pytest.raises(RunError, match="does not have the hash that it says"):
        read_checkpoint(file, D, "delete it", OLD)


def test_an_old_file_without_a_hash_is_read_if_it_is_finite(tmp_path: Path) -> None:
    file = tmp_path / "old.safetensors"
    save_file(VECTORS, file, metadata={"next_round": "3"})
    found = read_checkpoint(file, D, "delete it", OLD)
    assert (found.notes, found.sealed) == ({"next_round": "3"}, False)
    for value in (np.nan, np.inf, -np.inf):
        save_file({"model": np.array([0, 1, value, 3, 4], np.float32)}, file, metadata={"next_round": "3"})
        with pytest.raises(RunError, match=r"model holds NaN or infinity; delete it"):
            read_checkpoint(file, D, "delete it", OLD)
    for notes in ({"next_round": "3", "rha256": "0" * 64}, {"next_rounc": "3"}, None):
        save_file(VECTORS, file, metadata=notes)
        with pytest.raises(RunError, match="neither a hash nor the notes of an earlier version"):
            read_checkpoint(file, D, "delete it", OLD)


@pytest.mark.parametrize("vector", [np.zeros(D + 1, np.float32), np.zeros(D, np.float64), np.zeros((D, 1), np.float32)])
def test_vectors_of_another_model_are_refused(tmp_path: Path, vector: np.ndarray) -> None:
    save_file({"model": vector}, tmp_path / "c", metadata={"next_round": "3"})
    with pytest.raises(RunError, match=r"of another model or optimiser: model is F\d\d .* expected F32 \[5\]"):
        read_checkpoint(tmp_path / "c", D, "delete it", OLD)


def test_nothing_that_is_not_finite_is_written(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(RunError, match="not written: model holds NaN"):
        write_checkpoint(file, {"model": np.full(D, np.nan, np.float32)}, NOTES)
    assert file.read_bytes() == before


@pytest.mark.parametrize("text", ["-1", "1" * 4_001, "1" * 5_000, "1000000000", "13", "1.0", "", " 3", "٣", "03", None])
def test_a_round_that_cannot_be_is_refused(text: str | None) -> None:
    notes = {} if text is None else {"next_round": text}
    with pytest.raises(RunError, match=r"next_round.*delete it"):
        read_count(Path("c"), notes, "next_round", 12, "delete it")
    assert read_count(Path("c"), {"next_round": "12"}, "next_round", 12, "delete it") == 12
