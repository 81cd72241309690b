"""From paths on the command line to runs and audits, each read and checked once."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedmpdd.errors import RunError
from fedmpdd.pages.audits import RESULTS, AuditRecord, is_audit, read_audit
from fedmpdd.report.configs import identity
from fedmpdd.runs.history import CONFIG, METRICS, RunRecord, read_run


@dataclass(frozen=True)
class Collection:
    """Everything that a report is about."""

    runs: list[RunRecord] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # in words, for the reader


def collect(paths: Sequence[Path]) -> Collection:
    """Read every run and audit that is named, or that lies below a folder that is named.

    A damaged one is left out, with the reason in `left_out`; it is a RunError if nothing is left then.
    """
    if not paths:
        raise RunError("there is nothing to report on; name run folders, audit folders, or folders that hold some")
    folders: dict[Path, Path] = {}  # the same folder named twice is one
    for path in paths:
        for folder in _folders_of(path):
            folders.setdefault(folder.resolve(), folder)
    collection = Collection()
    for folder in folders.values():
        try:
            if is_audit(folder):
                collection.audits.append(read_audit(folder))
            else:
                collection.runs.append(read_run(folder))
        except RunError as error:
            collection.left_out.append(str(error))
    if not collection.runs and not collection.audits:
        raise RunError(f"there is nothing left to report on: {'; '.join(collection.left_out)}")
    _leave_out_copies(collection)
    return collection


def _folders_of(path: Path) -> list[Path]:
    """The folder itself, or the runs and audits below it in the order of their names."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RunError(f"{path} {what}; expected a run folder, an audit folder, or a folder that holds some")
    if (path / CONFIG).is_file():
        return [path]
    folders = []
    for name, inner, _ in os.walk(path):
        folder = Path(name)
        if _is_run(folder) or is_audit(folder):
            folders.append(folder)
            inner.clear()
        inner[:] = sorted(one for one in inner if not one.startswith("."))  # a run is made in a hidden folder
    if not folders:
        raise RunError(
            f"{path} holds no run ({CONFIG} with {METRICS}) and no audit ({CONFIG} with {RESULTS}), nor does any "
            "folder below it; make one with fedmpdd run or fedmpdd audit, or name another folder"
        )
    return folders


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / METRICS).is_file()


def _leave_out_copies(collection: Collection) -> None:
    """The same config with the same seed gives the same bits: counted twice, it would make the spread look small."""
    best: dict[str, RunRecord] = {}
    for run in sorted(collection.runs, key=lambda run: -run.history.last.rounds):  # of equals the one named first
        kept = best.setdefault(identity(run.config, device=None), run)
        if kept is not run:
            collection.left_out.append(f"{run.folder}: the same config and seed as {kept.folder}")
    collection.runs[:] = [run for run in collection.runs if any(run is kept for kept in best.values())]
