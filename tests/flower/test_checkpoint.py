"""The server's file: what it says is checked, whoever wrote it."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedmpdd.errors import RunError
from fedmpdd.flower import checkpoint
from fedmpdd.flower.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedmpdd.flower.layout import ParameterLayout

LAYOUT = ParameterLayout(("w", "b"), ((2, 3), (2,)), ("float32", "float32"))
MODEL = np.linspace(-1, 1, 8, dtype=np.float32)
KEPT = Checkpoint(7, MODEL, {"v": MODEL * 2}, 0.25)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "c.safetensors", KEPT, LAYOUT)
    return tmp_path / "c.safetensors"


def read(path: Path) -> Checkpoint:
    return read_checkpoint(path, LAYOUT, ("v",))


def test_what_was_written_is_read(file: Path) -> None:
    found = read(file)
    assert (found.rounds, found.usual) == (7, 0.25)
    assert found.model.tobytes() == MODEL.tobytes()
    assert found.server["v"].tobytes() == (2 * MODEL).tobytes()


def test_flipped_bits_are_errors(file: Path) -> None:
    whole = file.read_bytes()
    for bit in random.Random(11).sample(range(8 * len(whole)), 2_000):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(RunError, match="start anew"):
            read(file)


def old_file(path: Path, **changes: str) -> None:
    """As versions before the hash wrote it."""
    notes = {"rounds": "7", "usual": "0.25", "layout": json.dumps([LAYOUT.names, LAYOUT.shapes, LAYOUT.dtypes])}
    save_file({"model": MODEL, "server.v": MODEL}, path, metadata={**notes, **changes})


def test_an_old_file_is_read(tmp_path: Path) -> None:
    old_file(tmp_path / "c")
    assert (read(tmp_path / "c").rounds, read(tmp_path / "c").usual) == (7, 0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": "-5"}, "rounds = -5"),
        ({"rounds": "9" * 4_001}, "rounds = 999"),
        ({"rounds": "1e3"}, "rounds = 1e3"),
        ({"usual": "NaN"}, "usual = NaN, expected finite"),
        ({"usual": "Infinity"}, "usual = Infinity"),
        ({"usual": "-1.0"}, "usual = -1.0, expected null or a number from 0 on"),
        ({"usual": '"x"'}, "usual"),
        ({"usual": "true"}, "usual"),
        ({"usual": "[" * 100_000}, "usual cannot be understood"),
        ({"layout": "[]"}, "another model or optimiser"),
    ],
)
def test_an_old_file_with_what_cannot_be_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    old_file(tmp_path / "c", **changes)
    with pytest.raises(RunError, match=f"{message}.*start anew"):
        read(tmp_path / "c")


def test_a_model_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    layout = json.dumps([LAYOUT.names, LAYOUT.shapes, LAYOUT.dtypes])
    broken = np.where(np.arange(8) == 3, np.float32(np.nan), MODEL)
    save_file(
        {"model": broken, "server.v": MODEL}, tmp_path / "c", metadata={"rounds": "7", "usual": "1", "layout": layout}
    )
    with pytest.raises(RunError, match="model holds NaN"):
        read(tmp_path / "c")


def test_a_server_that_remembers_more_adds_a_field(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class More(Checkpoint):
        weights: dict[str, float] | None = None

    monkeypatch.setattr(checkpoint, "Checkpoint", More)
    before = read(file)
    assert isinstance(before, More)
    assert before.weights is None
    write_checkpoint(file, More(8, MODEL, {"v": MODEL}, weights={"a": 1.5}), LAYOUT)
    after = read(file)
    assert isinstance(after, More)
    assert (after.rounds, after.usual, after.weights) == (8, None, {"a": 1.5})
