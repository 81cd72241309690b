"""From paths on the command line to runs and audits, each read and checked once."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from fedmpdd.documents import read_json
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.report.configs import identity
from fedmpdd.runs.folders import CONFIG, METRICS, SUMMARY, read_config, read_metrics, read_starts
from fedmpdd.simulation.config import RunConfig

# An audit's files. Their names stand here again because the module that writes them needs packages for attacks.
RESULTS, CELLS = "results.json", "cells"
LARGEST_RESULTS = 2**26  # bytes: an audit has numbers of every image
_ROW_WORDS = ("model", "codec", "attack", "verdict")
_ROW_NUMBERS = ("ssim", "control_ssim", "class_mean_ssim", "mse", "psnr", "labels_found", "bits_revealed")


class Round(NamedTuple):
    """The state after one round; bytes are of all rounds so far and all clients."""

    rounds: int
    loss: float | None
    accuracy: float | None
    uplink_bytes: int
    payload_bytes: int


@dataclass(frozen=True)
class RunRecord:
    """One run folder as it was found."""

    folder: Path
    config: RunConfig
    history: tuple[Round, ...]
    starts: tuple[dict[str, Any], ...]  # versions and machine, one entry per start
    summary: dict[str, Any] | None  # written when a run ends, be it before its last round

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.config.seed

    @property
    def finished(self) -> bool:
        """Whether it ran all its rounds, or ended before on purpose: at a target, say."""
        ended = self.summary is not None and self.summary["rounds"] == len(self.history)
        return ended or len(self.history) == self.config.rounds

    @property
    def evaluations(self) -> list[Round]:
        """The rounds after which the model was tested."""
        return [entry for entry in self.history if entry.accuracy is not None]


@dataclass(frozen=True)
class AuditRecord:
    """One audit folder as it was found; without results where it is unfinished."""

    folder: Path
    config: dict[str, Any]
    results: dict[str, Any] | None
    cells: int  # attacks that are done


@dataclass(frozen=True)
class Collection:
    """Everything that a report is about."""

    runs: list[RunRecord] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # in words, for the reader


def collect(paths: Sequence[Path]) -> Collection:
    """Read every run and audit that is named, or that lies below a folder that is named."""
    if not paths:
        raise RunError("there is nothing to report on; name run folders, audit folders, or folders that hold some")
    folders: dict[Path, Path] = {}  # the same folder named twice is one
    for path in paths:
        for folder in _folders_of(path):
            folders.setdefault(folder.resolve(), folder)
    found = Collection()
    for folder in folders.values():
        if _is_audit(folder):
            found.audits.append(_read_audit(folder))
        else:
            found.runs.append(_read_run(folder))
    _leave_out_copies(found)
    return found


def _folders_of(path: Path) -> list[Path]:
    """The folder itself, or the runs and audits below it in the order of their names."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RunError(f"{path} {what}; expected a run folder, an audit folder, or a folder that holds some")
    if (path / CONFIG).is_file():
        return [path]
    found = []
    for name, inner, _ in os.walk(path):
        folder = Path(name)
        if _is_run(folder) or _is_audit(folder):
            found.append(folder)
            inner.clear()
        inner[:] = sorted(one for one in inner if not one.startswith("."))  # a run is made in a hidden folder
    if not found:
        raise RunError(
            f"{path} holds no run ({CONFIG} with {METRICS}) and no audit ({CONFIG} with {RESULTS}), nor does any "
            "folder below it; make one with fedmpdd run or fedmpdd audit, or name another folder"
        )
    return found


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / METRICS).is_file()


def _is_audit(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and ((folder / RESULTS).is_file() or (folder / CELLS).is_dir())


def _read_run(folder: Path) -> RunRecord:
    try:
        config = read_config(folder)
    except ConfigError as error:
        raise RunError(f"{folder / CONFIG} is not the config of a run: {error}; leave this folder out") from None
    history = _read_history(folder, config.rounds)
    starts = read_starts(folder, "delete it, or leave this folder out")
    summary = _read_json(folder / SUMMARY) if (folder / SUMMARY).is_file() else None
    if summary is not None:
        _check_summary(folder, summary, history)
    return RunRecord(folder, config, history, tuple(starts), summary)


def _read_history(folder: Path, rounds: int) -> tuple[Round, ...]:
    rows = list(read_metrics(folder))
    for number, row in enumerate(rows):
        wrong = _wrong_in(row, number)
        if wrong:
            raise RunError(
                f"{folder / METRICS}, line {number + 1} is damaged: {wrong}; put back what it was, or leave this "
                "folder out"
            )
    if len(rows) > rounds:
        raise RunError(
            f"{folder / METRICS} has {len(rows)} rounds, but {CONFIG} says rounds = {rounds}: one of them was changed; "
            "leave this folder out"
        )
    uplink = accumulate(row["uplink_bytes"] for row in rows)
    payload = accumulate(row["payload_bytes"] for row in rows)
    return tuple(
        Round(row["round"] + 1, row.get("loss"), row["accuracy"], frames, scalars)
        for row, frames, scalars in zip(rows, uplink, payload, strict=True)
    )


def _wrong_in(row: dict[str, Any], number: int) -> str | None:
    """What cannot be in the line of this round, if anything."""
    if row["round"] != number:
        return f"round = {row['round']!r}, expected {number}"
    for key in ("uplink_bytes", "payload_bytes"):
        if not isinstance(row[key], int) or isinstance(row[key], bool) or not 0 <= row[key] < 2**63:
            return f"{key} = {row[key]!r:.40}, expected a number of bytes"
    if row["accuracy"] is not None and not (_is_number(row["accuracy"]) and 0 <= row["accuracy"] <= 1):
        return f"accuracy = {row['accuracy']!r}, expected null or a number from 0 to 1"
    if row.get("loss") is not None and not _is_number(row["loss"]):
        return f"loss = {row['loss']!r}, expected null or a number"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _check_summary(folder: Path, summary: Any, history: tuple[Round, ...]) -> None:
    """A summary is written after its last line; a run that went on after it has more, but not other ones."""
    came = (summary.get("rounds"), summary.get("uplink_bytes")) if isinstance(summary, dict) else summary
    if came not in [(entry.rounds, entry.uplink_bytes) for entry in history]:
        sent = history[-1].uplink_bytes if history else 0
        raise RunError(
            f"{folder / SUMMARY} does not belong to {METRICS}, which has {len(history)} rounds and {sent} uplink bytes "
            f"where the summary says {came!r}; run it again into another folder, or leave this one out"
        )


def _read_audit(folder: Path) -> AuditRecord:
    cells = len(list((folder / CELLS).glob("*.npz")))
    if not (folder / RESULTS).is_file():
        config = _read_json(folder / CONFIG)
        _check_audit_config(folder / CONFIG, config)
        return AuditRecord(folder, config, None, cells)
    path = folder / RESULTS
    results = _read_json(path)
    if not isinstance(results, dict) or not isinstance(results.get("rows"), list) or "config" not in results:
        raise RunError(f"{path} is damaged: expected a table with rows and config; {again(folder)}")
    _check_audit_config(path, results["config"])
    for number, row in enumerate(results["rows"]):
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in _ROW_WORDS):
            raise RunError(
                f"{path}, row {number} is damaged: expected words for {', '.join(_ROW_WORDS)}; {again(folder)}"
            )
        for key in _ROW_NUMBERS:
            if not _is_number(row.get(key)):
                raise RunError(
                    f"{path}, row {number} is damaged: {key} = {row.get(key)!r}, expected a number; {again(folder)}"
                )
        each = row.get("ssim_each")
        if not isinstance(each, list) or not all(_is_number(value) for value in each):
            raise RunError(f"{path}, row {number} is damaged: ssim_each, expected numbers; {again(folder)}")
        if row.get("linkage") is not None and not _is_number(row["linkage"]):
            raise RunError(f"{path}, row {number} is damaged: linkage = {row['linkage']!r}; {again(folder)}")
    return AuditRecord(folder, results["config"], results, cells)


def again(folder: Path) -> str:
    """What to do about a damaged file of an audit."""
    return f"delete the file and repeat fedmpdd audit … --out {folder}, which keeps what is done"


def _check_audit_config(path: Path, config: Any) -> None:
    tables = isinstance(config, dict) and all(isinstance(config.get(key), dict) for key in ("config", "audit"))
    if not tables:
        raise RunError(f"{path} is not of an audit: expected tables config and audit; leave this folder out")


def _read_json(path: Path) -> Any:
    return read_json(path, "leave this folder out, or make it again", largest=LARGEST_RESULTS)


def _leave_out_copies(found: Collection) -> None:
    """The same config with the same seed gives the same bits: counted twice, it would make the spread look small."""
    best: dict[str, Path] = {}
    for run in sorted(found.runs, key=lambda run: -len(run.history)):  # stable: of equals the one named first
        kept = best.setdefault(identity(run.config, device=None), run.folder)
        if kept != run.folder:
            found.left_out.append(f"{run.folder}: the same config and seed as {kept}")
    found.runs[:] = [run for run in found.runs if run.folder in best.values()]
