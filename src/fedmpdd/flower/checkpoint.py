"""The server's file after every round: model, optimiser, number of rounds."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedmpdd.errors import RunError
from fedmpdd.federation.runs import write_atomically
from fedmpdd.flower.layout import Float32, Layout

_MODEL, _SERVER = "model", "server."


@dataclass(frozen=True)
class Checkpoint:
    """A server between two rounds."""

    rounds: int
    model: Float32
    server: dict[str, Float32]  # the optimiser's vectors
    usual: float | None  # magnitude of an update


def write_checkpoint(path: Path, checkpoint: Checkpoint, layout: Layout) -> None:
    """Write the file; a crash leaves the old one or the new one."""
    arrays = {_MODEL: checkpoint.model} | {_SERVER + name: value for name, value in checkpoint.server.items()}
    notes = {"rounds": str(checkpoint.rounds), "usual": json.dumps(checkpoint.usual), "layout": _text(layout)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda partial: save_file(arrays, partial, metadata=notes))


def read_checkpoint(path: Path, layout: Layout, server: tuple[str, ...]) -> Checkpoint:
    """Read the file of a server with this model and optimiser."""
    try:
        with safe_open(path, framework="numpy") as file:
            notes = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}; delete it to start anew") from None
    expected = {_MODEL, *(_SERVER + name for name in server)}
    fits = set(arrays) == expected and notes.get("layout") == _text(layout)
    if not fits or any(value.shape != (layout.d,) or value.dtype != np.float32 for value in arrays.values()):
        raise RunError(f"{path} is of another model or optimiser; name another file, or delete it to start anew")
    state = {name.removeprefix(_SERVER): value for name, value in arrays.items() if name != _MODEL}
    return Checkpoint(int(notes["rounds"]), arrays[_MODEL], state, json.loads(notes["usual"]))


def _text(layout: Layout) -> str:
    return json.dumps([layout.names, layout.shapes, layout.dtypes])
