"""Run folders: what was run, how it went, and how to go on after any interruption.

    RUN/config.json              the resolved config; its presence makes the folder a run
    RUN/environment.json         versions, machine, config and files of one's own, one entry per start
    RUN/metrics.jsonl            one line per round
    RUN/journal.fmpj             one record per round, where the config asks for it (docs/journal.md)
    RUN/checkpoint.safetensors   model and server state after some round
    RUN/summary.json             written when the run is done
    RUN/.lock                    held by the process that trains

Files appear whole or not at all: they are written beside and renamed. Since every random choice follows from (seed,
round, client), a checkpoint needs no more than vectors and a number, and a resumed run ends in the same bits.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedmpdd.documents import parse_json, sync_folder, write_json, write_text
from fedmpdd.errors import ConfigError, DocumentError, JournalError, RunError
from fedmpdd.imports import OBJECT, Trust, import_paths, sources_of
from fedmpdd.runs import driver
from fedmpdd.runs.environment import differences, environment
from fedmpdd.runs.history import CONFIG, ENVIRONMENT, METRICS, SUMMARY, History, problem_of, read_config, read_starts
from fedmpdd.runs.history import read_metrics as read_metrics
from fedmpdd.runs.settings import breaking_changes, changes, check_same_run, config_record, describe, with_changes
from fedmpdd.server import checkpoints
from fedmpdd.server.journal import JOURNAL, Header, Journal, JournalReader
from fedmpdd.simulation.clients import answered
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.engine import Federation, RoundMetrics, federation_of
from fedmpdd.simulation.replay import ANOTHER_START, model_sha256
from fedmpdd.simulation.tasks import load_task
from fedmpdd.tasks.data import Dataset
from fedmpdd.tasks.task import Task, fingerprint
from fedmpdd.torch.frozen import FROZEN, check_frozen

CHECKPOINT, LOCK = "checkpoint.safetensors", ".lock"

SIZES = "bundle_bytes"  # a note of checkpoints: of all rounds, where clients are sent bundles and no journal has them

_UNSEALED_NOTES = ("next_round",)  # of checkpoints of versions that did not seal them

_log = logging.getLogger("fedmpdd")

Loaded = Task | Dataset  # what a config names, where somebody has loaded it
OnRound = Callable[[RoundMetrics, "Run"], None]
Engine = Callable[[RunConfig, Loaded], Federation]  # who runs the clients; by default the local engine


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


class Run:
    """One training in one folder."""

    def __init__(self, folder: Path, config: RunConfig, federation: Federation, lock: FolderLock | None = None) -> None:
        self.folder = folder
        self._lock = lock or FolderLock(folder)
        self.config = config
        self.federation = federation
        self.history = History(score=config.score)
        self._journal: Journal | None = None

    @classmethod
    def at(
        cls,
        folder: Path,
        config: RunConfig,
        data_dir: Path | None = None,
        *,
        task: Loaded | None = None,
        engine: Engine = federation_of,
    ) -> "Run":
        """Return the run of a folder: a new one, or one that goes on; `resume` says what of its settings may differ.

        task: what the config names, where it is loaded already. engine: what makes the federation.
        """
        if not folder.exists():
            return cls.create(folder, config, data_dir, task=task, engine=engine)
        kept = read_config(folder)
        check_same_run(folder, kept, config)
        device = {"device": kept.device} if config.device == "auto" else {}
        return cls._resumed(folder, config.model_copy(update=device), data_dir, task, engine)

    @classmethod
    def create(
        cls,
        folder: Path,
        config: RunConfig,
        data_dir: Path | None = None,
        *,
        task: Loaded | None = None,
        engine: Engine = federation_of,
    ) -> "Run":
        """Make a new run folder; nothing is written over."""
        if folder.exists():
            is_run = (folder / CONFIG).is_file()
            how = f", or go on with it: fedmpdd run --resume {folder}" if is_run else "; it is no run to go on with"
            raise RunError(f"{folder} exists already; choose another --out{how}")
        federation = _federation(config, data_dir, task, engine)  # before anything is written: it may refuse the config
        # The folder appears with its config in it: a kill in between leaves nothing that looks like a run.
        made = folder.with_name(f".{folder.name}-{os.getpid()}")
        try:
            made.mkdir(parents=True)
            write_json(made / CONFIG, federation.config.model_dump(mode="json"))
            journal = None
            if federation.config.journaled:
                journal = Journal.create(made / JOURNAL, federation.journal_header, federation.flat.cpu().numpy())
            made.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise RunError(f"{folder} cannot be made: {error}; choose another --out") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)
        run = cls(folder, federation.config, federation)
        run._journal = journal
        return run

    @classmethod
    def resume(
        cls,
        folder: Path,
        data_dir: Path | None = None,
        *,
        trust_imports: Trust = False,
        engine: Engine = federation_of,
        **settings: Any,
    ) -> "Run":
        """Open a run folder where its journal ends, or where its last checkpoint left it if it keeps none.

        Args:
            folder: the run.
            data_dir: where the datasets are.
            trust_imports: whether the code that the folder names may be imported and called: True, or the import paths
                that may. What is of this package needs neither.
            engine: what makes the federation; by default the local engine.
            settings: what may change in a run: rounds, evaluate_every, checkpoint_every, device.

        Example:
            >>> Run.resume(Path("runs/demo-001"), rounds=300).train()  # doctest: +SKIP

        """
        config = with_changes(folder, read_config(folder, trust_imports), settings)
        return cls._resumed(folder, config, data_dir, engine=engine)

    @classmethod
    def _resumed(
        cls,
        folder: Path,
        config: RunConfig,
        data_dir: Path | None = None,
        task: Loaded | None = None,
        engine: Engine = federation_of,
    ) -> "Run":
        done = sum(1 for _ in read_metrics(folder))
        if done > config.rounds:
            raise RunError(
                f"rounds = {config.rounds}, and {folder} has {done} already; give at least as many, or choose another "
                "folder"
            )
        lock = FolderLock(folder)
        run = cls(folder, config, _federation(config, data_dir, task, engine), lock)
        run._check_task()
        if config.journaled:
            with JournalReader(folder / JOURNAL) as reader:
                run._begin_as(reader)
                run._load_checkpoint()
                rows = run._follow(reader)
            run._journal = Journal(folder / JOURNAL, reader.end)
        else:
            run._load_checkpoint(keeps_sizes=config.is_followed)
            rows = run._rows_before(run.federation.next_round)
        write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        run.history = History.of(rows, config.score)
        return run

    def _check_task(self) -> None:
        """Raise RunError if a run would go on with other examples than those that it began with."""
        check_same_task(self.folder, starts_of(self.folder), task_hash(self.config, self.federation.task))

    def _load_checkpoint(self, *, keeps_sizes: bool = False) -> None:
        path = self.folder / CHECKPOINT
        if path.is_file():
            checkpoint = read_checkpoint(path, self.config, self.federation.model.d, self.federation.state_lengths)
            check_frozen(checkpoint.notes.get(FROZEN), self.federation.journal_header.frozen_sha256, str(path))
            vectors = {name: torch.from_numpy(vector) for name, vector in checkpoint.vectors.items()}
            most = self.config.rounds
            done = checkpoints.read_count(path, checkpoint.notes, "next_round", most, _remedy(path))
            if keeps_sizes:
                self.federation.follow_again(_sizes_of(path, checkpoint.notes.get(SIZES, ""), done))
            self.federation.load_state(vectors, done)

    def _rows_before(self, done: int) -> list[dict[str, Any]]:
        """The metrics of the rounds before a checkpoint; later ones are computed again."""
        rows = [row for row in read_metrics(self.folder) if row["round"] < done]
        if len(rows) != done:
            raise RunError(
                f"{self.folder / METRICS} does not hold rounds 0 to {done - 1}, those before the checkpoint: it was "
                f"changed; put back what it was, or delete {self.folder} and start the run again"
            )
        return rows

    def _begin_as(self, reader: JournalReader) -> None:
        """Begin with the initial model of a journal, which may not be the one that this machine makes."""
        ours, theirs = _read(self.federation.journal_header), _read(reader.header)
        start, journal_start = ours.pop("model_sha256"), theirs.pop("model_sha256")
        check_frozen(theirs.pop(FROZEN), ours.pop(FROZEN), str(reader.path))
        if other := breaking_changes(changes(theirs.pop("config"), ours.pop("config"))):
            raise JournalError(f"{reader.path} is the journal of another run: {describe(other)}; put back what it was")
        if ours != theirs:
            raise JournalError(f"{reader.path} is the journal of another run: its examples differ")
        initial = reader.initial_model()
        if initial is not None:
            self.federation.begin_at(torch.from_numpy(initial))
        elif start != journal_start:
            raise JournalError(
                f"{reader.path} is of a version that does not hold the initial model, and the one made here is another "
                f"one than it says: the journal of another run, or {ANOTHER_START}; resume where it was begun"
            )

    def _follow(self, reader: JournalReader) -> list[dict[str, Any]]:
        """Go on from the checkpoint to the journal's last round; return the metrics of all rounds, which it holds."""
        federation, path = self.federation, reader.path
        checkpointed, federation.next_round = federation.next_round, 0
        rows = []
        for record in reader:
            if record.round >= self.config.rounds:
                raise JournalError(
                    f"{path} holds more rounds than the {self.config.rounds} of its config: it was changed; put back "
                    "what it was"
                )
            if federation.is_remembered and record.round >= checkpointed:
                federation.run_round()
                if federation.bundle != record.bundle:
                    raise JournalError(
                        f"{path}: round {record.round}, computed again since clients remember it, sends other updates; "
                        "resume on a machine like the one that it was trained on, with the same versions"
                    )
            else:
                federation.advance(record, changes_model=record.round >= checkpointed)
            known = federation.next_round >= checkpointed
            if known and model_sha256(federation.flat) != record.model_sha256:
                raise JournalError(
                    f"{path}: round {record.round} leads to another model than it did when it was written; "
                    f"fedmpdd replay {self.folder} says where they part"
                )
            if problem := problem_of(record.note, record.round):
                raise JournalError(f"{path}: the note of round {record.round} cannot be used: {problem}")
            rows.append(record.note)
        if federation.next_round < checkpointed:
            raise JournalError(
                f"{path} ends after round {federation.next_round}, and the checkpoint is of round {checkpointed}: it "
                "was cut off; delete the checkpoint to go on from the journal"
            )
        return rows

    def train(
        self,
        on_round: OnRound | None = None,
        *,
        callbacks: Sequence[driver.Callback] = (),
        stopped: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Run the rounds that are left, or until a callback ends it, and return the summary.

        Ctrl-C ends it after the round, with a checkpoint; a second one at once. So does `stopped`, which is asked after
        every round. The summary is written when the run is over: not if it was stopped, but if it diverged.
        """
        interruption = driver.Interruption()
        beside = [*callbacks] if on_round is None else [driver.AfterRound(lambda _, m: on_round(m, self)), *callbacks]
        pauses = [interruption] if stopped is None else [driver.PauseWhen(stopped), interruption]
        answered(self.steps([*beside, *pauses]))
        if interruption.heard:
            raise KeyboardInterrupt
        return self.summary()

    def steps(self, callbacks: Sequence[driver.Callback]) -> driver.Steps:
        """Train as `train` does, asking somebody else for the gradients of every round."""
        self._note_environment()
        lines = driver.MetricsFile(self.folder / METRICS)
        files: list[driver.Callback] = [
            lines,
            driver.Checkpoints(self._checkpoint, self.config.checkpoint_every, lines),
            driver.SummaryFile(self.folder / SUMMARY, self.summary),
        ]
        if self._journal is not None:
            files.insert(0, driver.JournalFile(self._journal))  # before anybody hears of the round
        return driver.steps(driver.Training(self.federation, self.history), [*files, *callbacks])

    def summary(self) -> dict[str, Any]:
        """Return what `fedmpdd run --json` prints."""
        return {
            "run": str(self.folder),
            "rounds": self.federation.next_round,
            "accuracy": self.history.final_accuracy,
            "uplink_bytes": self.history.last.uplink_bytes,
            "payload_bytes": self.history.last.payload_bytes,
            "downlink_bytes": self.history.last.downlink_bytes,
            "model_sha256": model_sha256(self.federation.flat),
        }

    def _checkpoint(self) -> None:
        """Write the file, but for a model that is not finite: nobody could go on from that, and from the last one can.

        The next round of such a model ends the run, and so it does after a resume.
        """
        vectors = {name: value.contiguous().numpy() for name, value in self.federation.state().items()}
        if not all(torch.isfinite(torch.from_numpy(vector)).all() for vector in vectors.values()):
            _log.warning("%s: the model is not finite; the checkpoint before it stays", self.folder)
            return
        config = json.dumps(self.config.model_dump(mode="json"))
        notes = {"next_round": str(self.federation.next_round), "config": config}
        if (frozen := self.federation.journal_header.frozen_sha256) is not None:
            notes[FROZEN] = frozen
        if self.config.is_followed and not self.config.journaled:
            notes[SIZES] = json.dumps(self.federation.bundle_sizes)
        checkpoints.write_checkpoint(self.folder / CHECKPOINT, vectors, notes)

    def _note_environment(self) -> None:
        path = self.folder / ENVIRONMENT
        starts = starts_of(self.folder)
        kept, table = read_config(self.folder), self.config.model_dump(mode="json")
        here = {**environment(), **config_record(self.config), "sources": sources_of(import_paths(table))}
        if (digest := task_hash(self.config, self.federation.task)) is not None:
            here["task_sha256"] = digest
        if starts and (changed := differences(starts[-1], here)):
            _log.warning(
                "%s: since the last start what may change bits has changed: %s; rounds from here on may differ from "
                "those of a run that was not interrupted",
                self.folder,
                "; ".join(changed),
            )
        write_json(path, [*starts, {"from_round": self.federation.next_round, **here}])
        if changes(kept, self.config):
            write_json(self.folder / CONFIG, table)


def _federation(config: RunConfig, data_dir: Path | None, task: Loaded | None, engine: Engine) -> Federation:
    return engine(config, load_task(config, data_dir) if task is None else task)


def starts_of(folder: Path) -> list[dict[str, Any]]:
    """Return what every start of a run noted, or raise RunError."""
    return read_starts(folder, "delete it and resume")


def task_hash(config: RunConfig, task: Task) -> str | None:
    """Return a hash of a task that exists as an object alone; what has a name is found again by it."""
    return fingerprint(task) if config.dataset.startswith(OBJECT) else None


def check_same_task(folder: Path, starts: Sequence[Mapping[str, Any]], task_sha256: str | None) -> None:
    """Raise RunError if a folder is of another task, by what its starts noted."""
    known = next((start["task_sha256"] for start in starts if start.get("task_sha256")), None)
    if known is not None and known != task_sha256:
        raise RunError(
            f"{folder} was trained with another model, other examples or another partition than those of this "
            "task; give what it began with, or choose another folder"
        )


def read_checkpoint(
    path: Path, config: RunConfig, d: int, lengths: Mapping[str, Collection[int]] | None = None
) -> checkpoints.Checkpoint:
    """Return the checkpoint of a run with this config and so many parameters, or raise RunError."""
    checkpoint = checkpoints.read_checkpoint(path, d, _remedy(path), _UNSEALED_NOTES, lengths)
    if checkpoint.sealed:
        _check_config(path, config, checkpoint.notes.get("config", ""))
    else:
        _log.warning("%s is of a version that wrote no hash: a changed bit in it would go unnoticed", path)
    return checkpoint


def _check_config(path: Path, config: RunConfig, text: str) -> None:
    """Raise RunError if a checkpoint was made with another config, but for settings that change no round."""
    try:
        made_with = parse_config(parse_json(text), follow_imports=False)
    except (DocumentError, ConfigError) as error:
        raise RunError(f"{path} was made with a config that cannot be read: {error}; {_remedy(path)}") from None
    if other := breaking_changes(changes(made_with, config)):
        raise RunError(
            f"{path} is of another run: it was made with another config, {describe(other)} in {CONFIG}; put back what "
            f"it was, or {_remedy(path)}"
        )


def _sizes_of(path: Path, text: str, rounds: int) -> list[int]:
    """Return the bytes of the bundles of so many rounds, which a note of a checkpoint holds."""
    try:
        sizes = parse_json(text)
    except DocumentError:
        sizes = None
    if not isinstance(sizes, list) or len(sizes) != rounds or not all(type(one) is int and one >= 0 for one in sizes):
        raise RunError(f"{path} is damaged: {SIZES} = {text:.40}, expected {rounds} numbers of bytes; {_remedy(path)}")
    return sizes


def _remedy(path: Path) -> str:
    return f"delete it to start the run again: rm {path}"


def _read(header: Header) -> dict[str, Any]:
    """A journal's header with its config checked; it may be of an earlier version, and nothing it names is imported."""
    return {**header._asdict(), "config": parse_config(header.config, follow_imports=False)}


def free_folder(config: str, below: Path = Path("runs")) -> Path:
    """Return the first of runs/NAME-001, -002, … that does not exist."""
    name = Path(config).stem
    number = 1
    while (folder := below / f"{name}-{number:03}").exists():
        number += 1
    return folder
