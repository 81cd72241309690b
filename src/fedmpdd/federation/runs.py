"""Run folders: what was run, how it went, and how to go on after any interruption.

    RUN/config.json              the resolved config; its presence makes the folder a run
    RUN/environment.json         versions and machine, one entry per start
    RUN/metrics.jsonl            one line per round
    RUN/journal.fmpj             one record per round, where the config asks for it (docs/journal.md)
    RUN/checkpoint.safetensors   model and server state after some round
    RUN/summary.json             written when the run is done
    RUN/.lock                    held by the process that trains

Files appear whole or not at all: they are written beside and renamed. Since every random choice follows from (seed,
round, client), a checkpoint needs no more than vectors and a number, and a resumed run ends in the same bits.
"""

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import fedmpdd
from fedmpdd.directions import backend
from fedmpdd.errors import CodecError, ConfigError, GradientError, JournalError, MissingDependencyError, RunError
from fedmpdd.federation.config import RunConfig, parse_config
from fedmpdd.federation.engine import Federation, RoundMetrics, make_federation
from fedmpdd.federation.interrupts import Deferred
from fedmpdd.federation.journal import JOURNAL, Journal, JournalReader, Record
from fedmpdd.federation.replay import model_sha256

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"
CHECKPOINT, SUMMARY, LOCK = "checkpoint.safetensors", "summary.json", ".lock"

_COUNTED = {"round", "clients", "uplink_bytes", "payload_bytes", "downlink_bytes", "accuracy"}

OnRound = Callable[[RoundMetrics, "Run"], None]


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` make a file beside `path`, then put it in place in one step."""
    partial = path.with_name(path.name + ".part")
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # there only if something went wrong
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on the disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FolderLock:
    """Takes a folder for this process as long as it lives: two trainings in one folder would ruin it."""

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        try:
            import fcntl
        except ModuleNotFoundError:  # not a Unix: nothing to lock with
            return
        self._handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is in use by another process; wait for it, or stop it first") from None

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document in one step."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text in one step."""

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    write_atomically(path, write)


class Run:
    """One training in one folder."""

    def __init__(self, folder: Path, config: RunConfig, federation: Federation, lock: FolderLock | None = None) -> None:
        self.folder = folder
        self._lock = lock or FolderLock(folder)
        self.config = config
        self.federation = federation
        self.uplink_bytes = self.downlink_bytes = self.payload_bytes = self.updates = 0
        self.accuracy: float | None = None
        self.last: RoundMetrics | None = None  # round, as it stands in the file
        self._journal: Journal | None = None

    @classmethod
    def create(cls, folder: Path, config: RunConfig, data_dir: Path | None = None) -> "Run":
        """Make a new run folder; nothing is written over."""
        if folder.exists():
            raise RunError(
                f"{folder} exists already; choose another --out, or go on with it: fedmpdd run --resume {folder}"
            )
        federation = make_federation(config, data_dir)  # before anything is written: it may refuse the config
        # The folder appears with its config in it: a kill in between leaves nothing that looks like a run.
        made = folder.with_name(f".{folder.name}-{os.getpid()}")
        try:
            made.mkdir(parents=True)
            write_json(made / CONFIG, federation.config.model_dump(mode="json"))
            journal = None
            if federation.config.journaled:
                journal = Journal.create(made / JOURNAL, federation.journal_header)
            made.rename(folder)
            _sync_folder(folder.parent)
        except OSError as error:
            raise RunError(f"{folder} cannot be made: {error}; choose another --out") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)
        run = cls(folder, federation.config, federation)
        run._journal = journal
        return run

    @classmethod
    def resume(cls, folder: Path, data_dir: Path | None = None) -> "Run":
        """Open a run folder where its journal ends, or where its last checkpoint left it if it keeps none."""
        config = read_config(folder)
        lock = FolderLock(folder)
        run = cls(folder, config, make_federation(config, data_dir), lock)
        if (folder / CHECKPOINT).is_file():
            run.federation.load_state(*_read_checkpoint(folder / CHECKPOINT))
        if config.journaled:
            rows = run._follow_journal()
        else:
            done = run.federation.next_round
            rows = [row for row in read_metrics(folder) if row["round"] < done]
            if [row["round"] for row in rows] != list(range(done)):
                raise RunError(
                    f"{folder / METRICS} does not hold rounds 0 to {done - 1}, those before the checkpoint: it was "
                    f"changed; put back what it was, or delete {folder} and start the run again"
                )
        write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            run._count(row)
        return run

    def _follow_journal(self) -> list[dict[str, Any]]:
        """Go on from the checkpoint to the journal's last round; return the metrics of all rounds, which it holds."""
        federation, path = self.federation, self.folder / JOURNAL
        checkpointed, federation.next_round = federation.next_round, 0
        rows = []
        with JournalReader(path) as reader:
            if _essence(reader.header._asdict()) != _essence(federation.journal_header._asdict()):
                raise JournalError(f"{path} is the journal of another run: its initial model or config differ")
            for record in reader:
                federation.advance(record.bundle, changes_model=record.round >= checkpointed)
                known = federation.next_round >= checkpointed
                if known and model_sha256(federation.flat) != record.model_sha256:
                    raise JournalError(
                        f"{path}: round {record.round} leads to another model than it did when it was written; "
                        f"fedmpdd replay {self.folder} says where they part"
                    )
                rows.append(record.note)
        if federation.next_round < checkpointed:
            raise JournalError(
                f"{path} ends after round {federation.next_round}, and the checkpoint is of round {checkpointed}: it "
                "was cut off; delete the checkpoint to go on from the journal"
            )
        self._journal = Journal(path, reader.end)
        return rows

    def train(
        self,
        on_round: OnRound | None = None,
        until: Callable[[RoundMetrics], bool] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Run the rounds that are left, or until a round is enough, and return the summary.

        Ctrl-C ends it after the round, with a checkpoint; a second one at once. So does `stopped`, which is asked after
        every round. The summary is written when the run is over: not if it was stopped, but if it diverged.
        """
        self._note_environment()
        (self.folder / SUMMARY).unlink(missing_ok=True)  # of a run that goes on
        with (self.folder / METRICS).open("a", encoding="utf-8") as lines, Deferred() as interrupt:
            is_over = is_stopped = False
            while self.federation.next_round < self.config.rounds and not interrupt.heard and not is_stopped:
                try:
                    metrics = self.federation.run_round()
                except (GradientError, CodecError) as error:  # nothing is left that could be encoded
                    lines.flush()
                    write_json(self.folder / SUMMARY, {**self.summary(), "diverged": str(error)})
                    raise
                if self._journal is not None:  # before anybody hears of the round
                    digest = model_sha256(self.federation.flat)
                    self._journal.append(Record(metrics.round, self.federation.bundle, digest, metrics.as_dict()))
                self._count(metrics.as_dict())
                lines.write(json.dumps(metrics.as_dict(), allow_nan=False) + "\n")
                if self.federation.next_round % self.config.checkpoint_every == 0:
                    # Lines first: a checkpoint never speaks of a round whose line could be lost.
                    lines.flush()
                    os.fsync(lines.fileno())
                    self._checkpoint()
                if on_round is not None:
                    on_round(metrics, self)
                if until is not None and until(metrics):
                    is_over = True
                    break
                is_stopped = stopped()
            lines.flush()
            os.fsync(lines.fileno())
            self._checkpoint()
            if is_over or self.federation.next_round == self.config.rounds:
                write_json(self.folder / SUMMARY, self.summary())
            self.federation.close()
        if interrupt.heard:
            raise KeyboardInterrupt
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """Return what `fedmpdd run --json` prints."""
        return {
            "run": str(self.folder),
            "rounds": self.federation.next_round,
            "accuracy": self.accuracy,
            "uplink_bytes": self.uplink_bytes,
            "payload_bytes": self.payload_bytes,
            "downlink_bytes": self.downlink_bytes,
            "model_sha256": model_sha256(self.federation.flat),
        }

    def _count(self, row: dict[str, Any]) -> None:
        self.last = RoundMetrics.from_dict(row)
        self.updates += row["clients"]
        self.uplink_bytes += row["uplink_bytes"]
        self.payload_bytes += row["payload_bytes"]
        self.downlink_bytes += row["downlink_bytes"]
        if row["accuracy"] is not None:
            self.accuracy = row["accuracy"]

    def _checkpoint(self) -> None:
        tensors = {name: value.contiguous() for name, value in self.federation.state().items()}
        metadata = {"next_round": str(self.federation.next_round)}
        try:
            write_atomically(self.folder / CHECKPOINT, lambda partial: save_file(tensors, partial, metadata=metadata))
        except SafetensorError as error:  # the disk is full, say
            raise OSError(f"{self.folder / CHECKPOINT} cannot be written: {error}") from None

    def _note_environment(self) -> None:
        path = self.folder / ENVIRONMENT
        try:
            starts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}; delete it and resume") from None
        write_json(path, [*starts, {"from_round": self.federation.next_round, **environment()}])


def _essence(header: dict[str, Any]) -> dict[str, Any]:
    """What of a journal's header must agree: it may be gone on with on another device, or by a later version.

    A setting that came with that has its default, which is what the earlier version did.
    """
    return {**header, "config": parse_config({**header["config"], "device": "cpu"}).model_dump(mode="json")}


def free_folder(config: str, below: Path = Path("runs")) -> Path:
    """Return the first of runs/NAME-001, -002, … that does not exist."""
    name = Path(config).stem
    number = 1
    while (folder := below / f"{name}-{number:03}").exists():
        number += 1
    return folder


def check_tensorboard() -> None:
    """Raise MissingDependencyError before a run starts, not after."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingDependencyError("--tensorboard needs the package tensorboard; pip install tensorboard")


def tensorboard_sink(folder: Path) -> Callable[[RoundMetrics], None]:
    """Return a function that writes the metrics of a round as TensorBoard events below the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def write(metrics: RoundMetrics) -> None:
        for name, value in metrics.as_dict().items():
            if name != "round" and value is not None:
                writer.add_scalar(name, value, metrics.round)
        writer.flush()

    return write


def environment() -> dict[str, Any]:
    """Return versions and machine."""
    versions = {}
    for name in ("numpy", "torch", "pydantic", "safetensors"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    return {
        "fedmpdd": fedmpdd.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernels": backend().isa,
        "threads": backend().threads,
        "torch_threads": torch.get_num_threads(),
        "byte_order": sys.byteorder,
        **versions,
    }


def read_config(folder: Path) -> RunConfig:
    """Return the resolved config of a run folder."""
    try:
        return parse_config(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder} is not a run: it has no {CONFIG}; start one with fedmpdd run CONFIG --out {folder}"
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise RunError(
            f"{folder / CONFIG} is damaged: {error}; put back what it was, or delete {folder} and start the run again"
        ) from None


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rounds of a run; a last line that was cut off by a crash is left out."""
    path = folder / METRICS
    if not path.is_file():
        return
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines):
        try:
            row = json.loads(line) if line.endswith("\n") else None
        except (ValueError, RecursionError):  # a number of thousands of digits, a thousand brackets
            row = None
        if not isinstance(row, dict) or not set(row) >= _COUNTED:
            if number == len(lines) - 1:
                return
            raise RunError(
                f"{path}, line {number + 1} is damaged; put back what it was, or delete {folder} and start the run "
                "again"
            )
        yield row


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], int]:
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return state, int(file.metadata()["next_round"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}; delete it to start the run again") from None
