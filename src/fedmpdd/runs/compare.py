"""Codecs side by side on one task, every one with every seed: in this process, or as run folders that go on."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpdd.errors import ConfigError, RunError
from fedmpdd.runs.driver import (
    Callback,
    Interruption,
    Steps,
    StopWhen,
    Training,
    at_target,
    progress,
    steps,
    train_together,
)
from fedmpdd.runs.environment import environment
from fedmpdd.runs.folders import Run, check_same_task, starts_of, task_hash
from fedmpdd.runs.history import History, RunRecord, read_config, read_run
from fedmpdd.runs.settings import check_same_run
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.engine import federation_of
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.tasks.task import Task
from fedmpdd.uplink.codec_config import CodecConfig

Show = Callable[[int, float | None, int, int], None]  # what `progress` shows
LONGEST_NAME = 100  # characters of a codec in the name of a folder


@dataclass(frozen=True)
class Trial:
    """One training of a comparison: a codec with a seed."""

    codec: str
    config: RunConfig
    folder: Path | None = None  # None to keep nothing on the disk


@dataclass(frozen=True)
class Trained:
    """How one training did."""

    codec: str
    run: RunRecord
    seconds: float | None  # of training in this process; None where the folder had all of it
    error: str | None  # why it stopped early, if it did
    target: float | None
    budget: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document.

        None where the target was not reached, or the first evaluation was over the budget already.
        """
        history = self.run.history
        reached = None if self.target is None else history.first_at(self.target)
        tested = history.evaluations[-1] if history.evaluations else None
        return {
            "codec": self.codec,
            "bytes_to_target": reached and reached.uplink_bytes,
            "rounds_to_target": reached and reached.rounds,
            "accuracy_at_budget": None if self.budget is None else history.accuracy_at(self.budget),
            "final_accuracy": history.final_accuracy,
            "rounds": history.last.rounds,
            "uplink_bytes": history.last.uplink_bytes,
            "seconds": self.seconds,
            "history": [(entry.rounds, entry.uplink_bytes, entry.accuracy) for entry in history.evaluations],
            "error": self.error,
            "seed": self.run.seed,
            "state": self.run.state,
            "score": history.score.removeprefix("-"),  # what the accuracies above are of
            "metrics": dict(tested.metrics) if tested else {},
            "test_loss": tested and tested.loss_of_test,
            "payload_bytes": history.last.payload_bytes,
            "downlink_bytes": history.last.downlink_bytes,
        }


def trials_of(
    configs: Sequence[tuple[str, RunConfig]],
    seeds: Sequence[int],
    below: Path | None = None,
    baseline: CodecConfig | None = None,
) -> list[Trial]:
    """Return every codec with every seed.

    configs: with the names of the codecs, which are all that they differ in. below: the folder of the run folders.
    baseline: the codec that comes first, and is one of them.
    """
    if not configs:
        raise ConfigError("there is nothing to compare; name codecs, like fedsgd and mpdd:m=400")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds = {list(seeds)}: expected one at least, each once")
    by_codec: dict[str, tuple[str, RunConfig]] = {}
    for name, config in configs:
        other = by_codec.setdefault(_key(config.codec, config.links), (name, config))
        if other[1] is not config:
            raise ConfigError(f"{name} and {other[0]} are the same codec; leave one of them out")
    if baseline is not None:
        if _key(baseline) not in by_codec:
            names = ", ".join(name for name, _ in configs)
            raise ConfigError(f"baseline {baseline.words} is none of the codecs {names}; add it to them")
        by_codec = {_key(baseline): by_codec[_key(baseline)], **by_codec}
    trials = []
    for name, config in by_codec.values():
        for seed in seeds:
            folder = None if below is None else below / f"{_folder_name(config.codec_words)}-seed-{seed}"
            trials.append(Trial(name, parse_config({**config.model_dump(mode="json"), "seed": seed}), folder))
    return trials


def compare(
    trials: Sequence[Trial],
    task: Task,
    *,
    target: float | None = None,
    budget: int | None = None,
    stop_at_target: bool = False,
    together: int = 1,
    callbacks: Sequence[Callback] = (),
    display: Callable[[Trial], Show | None] = lambda trial: None,
) -> tuple[list[Trained], list[str]]:
    """Train what is missing of some trials, and return how all did, and which were left out and why.

    A folder whose run is finished is read, one that is half-way goes on, and a damaged one is left out.
    together: how many are trained side by side, their gradients in one pass where that can be.
    """
    if stop_at_target and target is None:
        raise ConfigError(
            "stop_at_target came without a target; say which score to stop at: target=0.8, or --target 0.8"
        )
    _check(trials, task)
    trained: list[Trained] = []
    left_out: list[str] = []
    for begin in range(0, len(trials), together):
        interruption = Interruption()
        started: list[_Started] = []
        for trial in trials[begin : begin + together]:
            show = display(trial)
            beside = list(callbacks) if show is None else [progress(show), *callbacks]
            if stop_at_target and target is not None:
                beside.append(StopWhen(at_target(target, budget)))
            was_there = trial.folder is not None and trial.folder.exists()
            try:
                started.append(_start(trial, task, [*beside, interruption]))
            except RunError as problem:
                if not was_there:
                    raise
                left_out.append(str(problem))
        todo = [each.steps for each in started if each.steps is not None]
        start = time.perf_counter()
        ends = iter(train_together(todo))
        seconds = (time.perf_counter() - start) / max(1, len(todo))
        if interruption.heard:
            raise KeyboardInterrupt
        for each in started:
            error = None if each.steps is None else next(ends)
            end, spent = each.end if error is None else str(error), None if each.steps is None else seconds
            try:
                trained.append(Trained(each.codec, each.record(), spent, end, target, budget))
            except RunError as problem:
                left_out.append(str(problem))
    if not trained:
        raise RunError(f"there is nothing left to compare: {'; '.join(left_out)}")
    return trained, left_out


def _check(trials: Sequence[Trial], task: Task) -> None:
    """Refuse before the first round what could not be trained, and folders of other settings or another task."""
    task_sha256 = task_hash(trials[0].config, task)
    tried: set[str] = set()
    for trial in trials:
        kind = json.dumps(trial.config.model_dump(mode="json", exclude={"seed", "lr", "local_lr"}), sort_keys=True)
        if kind not in tried:  # another seed or step size is refused for nothing that this one is not
            federation_of(trial.config, task).close()
            tried.add(kind)
        if trial.folder is None or not trial.folder.exists():
            continue
        try:
            kept, starts = read_config(trial.folder), starts_of(trial.folder)
        except (RunError, ConfigError):
            continue  # it is left out when its turn comes
        check_same_run(trial.folder, kept, trial.config)
        check_same_task(trial.folder, starts, task_sha256)


@dataclass(frozen=True)
class _Started:
    """A trial that is about to be trained, or that was already."""

    codec: str
    record: Callable[[], RunRecord]  # what there is of it, once it was trained
    steps: Steps | None = None  # None where nothing is left to train
    end: str | None = None  # what ended it early, when it was trained before


def _start(trial: Trial, task: Task, callbacks: Sequence[Callback]) -> _Started:
    return (_in_memory if trial.folder is None else _in_folder)(trial, task, callbacks)


def _in_memory(trial: Trial, task: Task, callbacks: Sequence[Callback]) -> _Started:
    federation = federation_of(trial.config, task)
    training = Training(federation)

    def record() -> RunRecord:
        history: History = training.history
        sent = {"rounds": history.last.rounds, "uplink_bytes": history.last.uplink_bytes}
        summary = {**sent, "model_sha256": model_sha256(federation.flat)}
        starts = ({"from_round": 0, **environment()},)
        return RunRecord(Path(trial.codec), federation.config, history, starts, summary)

    return _Started(trial.codec, record, steps(training, callbacks))


def _in_folder(trial: Trial, task: Task, callbacks: Sequence[Callback]) -> _Started:
    folder = trial.folder
    assert folder is not None
    if folder.exists():
        run = read_run(folder)
        if run.state == "diverged" or run.history.last.rounds == trial.config.rounds:
            return _Started(trial.codec, lambda: run, end=(run.summary or {}).get("diverged"))
    return _Started(trial.codec, lambda: read_run(folder), Run.at(folder, trial.config, task=task).steps(callbacks))


def _key(codec: CodecConfig, links: Sequence[CodecConfig] = ()) -> str:
    """A text that two codecs share when they are the same, in whatever order their parameters came."""
    return json.dumps([one.model_dump(mode="json") for one in (codec, *links)], sort_keys=True)


def _folder_name(words: str) -> str:
    """A codec as the name of a folder, on every system, and another one for every codec."""
    name = re.sub(r"[^\w.=+-]", "_", words)[:LONGEST_NAME]
    is_plain = re.fullmatch(r"[\w.=+:-]+", words, re.ASCII) and len(words) <= LONGEST_NAME
    return name if is_plain else f"{name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
