"""The server's file after every round: model, optimiser, number of rounds, and whatever else the server remembers.

A field of `Checkpoint` that is not an array is a note in the file, as JSON, under its own name. To remember more, add
a field with a default: files that were written before have it.
"""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedmpdd.documents import parse_json
from fedmpdd.errors import DocumentError, RunError
from fedmpdd.flower.layout import Float32, ParameterLayout
from fedmpdd.server import checkpoints

_MODEL, _SERVER, _ESTIMATE, _STATISTICS = "model", "server.", "estimate", "statistics"
_LAYOUT, _ROUNDS = "layout", "rounds"
_ELSEWHERE = (_ROUNDS, "model", "server", _ESTIMATE, _STATISTICS)  # fields that are no JSON notes
_UNSEALED_NOTES = (_ROUNDS, "usual", _LAYOUT)
_MOST_ROUNDS = 2**32 - 1
_REMEDY = "name another file, or delete it to start anew"


@dataclass(frozen=True)
class Checkpoint:
    """A server between two rounds."""

    rounds: int
    model: Float32
    server: dict[str, Float32]  # the optimiser's vectors
    usual: float | None = None  # the largest median magnitude of a round, in files from before there was a reference
    reference: dict[str, Any] | None = None  # of magnitudes, see fedmpdd.uplink.Reference
    estimate: Float32 | None = None  # along which the server stepped last, where its caution needs it,
    caution: dict[str, Any] | None = None  # and what else that knows, see fedmpdd.flower.caution
    statistics: Float32 | None = None  # of batch norm, where the server averages them


def write_checkpoint(path: Path, checkpoint: Checkpoint, layout: ParameterLayout) -> None:
    """Write the file; a crash leaves the old one or the new one."""
    vectors = {_MODEL: checkpoint.model} | {_SERVER + name: value for name, value in checkpoint.server.items()}
    if checkpoint.estimate is not None:
        vectors[_ESTIMATE] = checkpoint.estimate
    if checkpoint.statistics is not None:
        vectors[_STATISTICS] = checkpoint.statistics
    notes = {name: json.dumps(getattr(checkpoint, name), allow_nan=False) for name in _note_names()}
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.write_checkpoint(path, vectors, {**notes, _ROUNDS: str(checkpoint.rounds), _LAYOUT: _text(layout)})


def read_checkpoint(path: Path, layout: ParameterLayout, server: tuple[str, ...]) -> Checkpoint:
    """Read the file of a server with this model and optimiser, or raise RunError."""
    sizes = dict(zip(layout.buffers.names, map(math.prod, layout.buffers.shapes), strict=True))
    length = sum(sizes[name] for name in layout.buffers.averaged)
    record = checkpoints.read_checkpoint(path, layout.d, _REMEDY, _UNSEALED_NOTES, {_STATISTICS: {length}})
    expected = {_MODEL, *(_SERVER + name for name in server), *([_STATISTICS] if length else [])}
    if set(record.vectors) - {_ESTIMATE} != expected or record.notes.get(_LAYOUT) != _text(layout):
        raise RunError(f"{path} is of another model or optimiser; {_REMEDY}")
    rounds = checkpoints.read_count(path, record.notes, _ROUNDS, _MOST_ROUNDS, _REMEDY)
    remembered = {name: _value(path, name, record.notes[name]) for name in _note_names() if name in record.notes}
    state = {name.removeprefix(_SERVER): record.vectors[name] for name in record.vectors if name.startswith(_SERVER)}
    estimate = record.vectors.get(_ESTIMATE)
    try:
        return Checkpoint(
            rounds=rounds,
            model=record.vectors[_MODEL],
            server=state,
            estimate=estimate,
            statistics=record.vectors.get(_STATISTICS),
            **remembered,
        )
    except TypeError:  # a field without a default
        raise RunError(f"{path} is damaged: it says only {', '.join(sorted(record.notes))}; {_REMEDY}") from None


def _note_names() -> list[str]:
    return [field.name for field in fields(Checkpoint) if field.name not in _ELSEWHERE]


def _value(path: Path, name: str, text: str) -> Any:
    """What a note holds: any JSON whose numbers are finite, and for a magnitude a number that is not negative."""
    try:
        value = parse_json(text)
    except DocumentError as error:
        raise RunError(f"{path} is damaged: {name} cannot be understood: {error}; {_REMEDY}") from None
    if not _is_finite(value):
        raise RunError(f"{path} is damaged: {name} = {text:.40}, expected finite numbers; {_REMEDY}")
    if name == "usual" and not (value is None or (_is_number(value) and value >= 0)):
        raise RunError(f"{path} is damaged: usual = {text:.40}, expected null or a number from 0 on; {_REMEDY}")
    return value


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(layout: ParameterLayout) -> str:
    return json.dumps([layout.names, layout.shapes, layout.dtypes])
