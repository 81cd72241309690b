"""One training of a table: run, resumed or read, in its own folder.

A training ends once it has reached the harder target and spent the budget of bytes (or, where it sends less, come to
the round in which FedMPDD has), or diverged, or used up its rounds.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from fedmpdd.documents import read_json
from fedmpdd.errors import CodecError, GradientError, RunError
from fedmpdd.runs.folders import CONFIG, METRICS, SUMMARY, Run, read_config, write_text
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.engine import RoundMetrics
from fedmpdd_paper.reading import Reading, better, read_run
from fedmpdd_paper.tables import SEEDS, Method, Table

DONE = "done"  # a file that says why a run ended early, if it did
BEATEN = "beaten"  # how that begins if another step size was faster
OnRound = Callable[[str, int, int, float | None], None]  # which run, its round, of how many, accuracy


class StoppedError(Exception):
    """A training was asked to stop. It has a checkpoint, and goes on from there the next time."""


@dataclass(frozen=True)
class Place:
    """Where trainings compute and where they leave what they did."""

    out: Path
    device: str = "auto"
    data_dir: Path | None = None


@dataclass(frozen=True)
class Training:
    """A method of a table at one seed and step size; `search` if it only helps to choose the step size."""

    table: Table
    method: Method
    seed: int
    lr: float
    search: bool = False

    @property
    def config(self) -> RunConfig:
        """What is run, but for the device."""
        config = self.table.run_config(self.method, self.seed, self.lr, "auto")
        rounds = self.table.search if self.search else None
        return config.model_copy(update={"rounds": rounds or config.rounds})

    @property
    def name(self) -> str:
        """What progress is shown under."""
        kind = "search, " if self.search else ""
        return f"{self.table.name}, {self.method.name}, {kind}lr {self.lr:g}, seed {self.seed}"

    def folder(self, out: Path) -> Path:
        """The run's folder."""
        codec = re.sub(r"[^a-z0-9]+", "-", self.method.codec.lower())
        return out / self.table.name / codec / f"{'search-' if self.search else ''}lr-{self.lr:g}-seed-{self.seed}"

    def is_done(self, out: Path) -> bool:
        """Return whether there is nothing left to run."""
        return (self.folder(out) / DONE).is_file()

    def read(self, out: Path) -> Reading:
        """Read what there is of it."""
        folder = self.folder(out)
        table = self.table
        reading = read_run(folder, self.seed, self.lr, table)
        check_rounds(folder, reading.rounds)
        why = (folder / DONE).read_text(encoding="utf-8") if self.is_done(out) else ""
        return replace(reading, diverged=reading.diverged or (why != "" and not why.startswith(BEATEN)))


def train(
    training: Training,
    place: Place,
    *,
    to_beat: int | None = None,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Reading:
    """Run what is missing of one training, and read it.

    to_beat: stop once the target was not reached within so many rounds; another step size did, and has won.
    """
    folder, table = training.folder(place.out), training.table
    if training.is_done(place.out):
        check_config(folder, training.config)
        return training.read(place.out)
    on_target = on_harder = False
    run = open_run(folder, training.config, place)
    if run.federation.next_round > 0:
        so_far = training.read(place.out)
        on_target, on_harder = so_far.rounds_to_target is not None, so_far.rounds_to_harder is not None

    why: str | None = None  # it ended, if it did

    def ends(metrics: RoundMetrics) -> bool:
        nonlocal on_target, on_harder, why
        on_target = on_target or (metrics.accuracy is not None and metrics.accuracy >= table.target)
        on_harder = on_harder or (metrics.accuracy is not None and metrics.accuracy >= table.harder)
        lost = metrics.clients and (metrics.loss is None or not math.isfinite(metrics.loss))
        if lost or (on_harder and (run.payload_bytes >= table.budget or metrics.round + 1 >= table.enough)):
            why = ""
        elif to_beat is not None and not on_target and metrics.round + 1 >= to_beat:
            why = f"{BEATEN}: another step size took {to_beat} rounds to the target"
        return why is not None

    def show(metrics: RoundMetrics, _: Run) -> None:
        if on_round is not None:
            on_round(training.name, metrics.round + 1, run.config.rounds, metrics.accuracy)

    try:
        if run.last is None or not ends(run.last):  # else it was killed when it was over
            run.train(show, until=ends, stopped=stopped)
    except (GradientError, CodecError) as error:  # the step size was too large, and there is nothing left to encode
        why = str(error)
    if why is None and run.federation.next_round < run.config.rounds:
        raise StoppedError(training.name)
    write_text(folder / DONE, why or "")
    return training.read(place.out)


def open_run(folder: Path, config: RunConfig, place: Place) -> Run:
    """Go on with a run folder, or make it."""
    if (folder / CONFIG).is_file():
        check_config(folder, config)
        return Run.resume(folder, place.data_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return Run.create(folder, config.model_copy(update={"device": place.device}), place.data_dir)


def check_config(folder: Path, wanted: RunConfig) -> None:
    """Raise RunError if a folder was trained with other settings than are wanted now; any device will do."""
    old, new = (config.model_dump(mode="json", exclude={"device"}) for config in (read_config(folder), wanted))
    for key in new:
        if old[key] != new[key]:
            raise RunError(
                f"{folder} was trained with {key} = {old[key]}, and now it is {new[key]}; use another --out, or delete "
                "the folder to train it again"
            )


def check_rounds(folder: Path, rounds: int) -> None:
    """Raise RunError if a run has fewer rounds than its summary says."""
    path = folder / SUMMARY
    if not path.is_file():
        return
    summary = read_json(path, "delete it, and the training is looked at again")
    said = summary.get("rounds") if isinstance(summary, dict) else None
    if not isinstance(said, int):
        raise RunError(f"{path} is damaged: it does not say how many rounds there were; delete it")
    if said > rounds:
        raise RunError(
            f"{folder / METRICS} has {rounds} rounds, and {SUMMARY} says {said}: it was changed; put back what it was, "
            "or delete the folder to train it again"
        )


def choose_lr(
    table: Table,
    method: Method,
    place: Place,
    *,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Reading:
    """Choose the step size of a method as the paper does, and return the first seed's training with it.

    On the first seed, the one with the fewest rounds to the target wins, or, where a table says so to save time, the
    highest accuracy after a few of them.
    """
    search = table.search is not None
    best: Reading | None = None
    for candidate in candidates(table, method):
        to_beat = best.rounds_to_target if best is not None and not search else None
        reading = train(candidate, place, to_beat=to_beat, on_round=on_round, stopped=stopped)
        best = reading if best is None or better(reading, best) else best
    assert best is not None
    if not search:
        return best
    return train(Training(table, method, SEEDS[0], best.lr), place, on_round=on_round, stopped=stopped)


def lr_that_won(table: Table, method: Method, out: Path) -> float | None:
    """Return the step size that `choose_lr` chose, None if it has not tried all of them yet."""
    tried = candidates(table, method)
    if not all(candidate.is_done(out) for candidate in tried):
        return None
    return reduce(lambda best, own: own if better(own, best) else best, (own.read(out) for own in tried)).lr


def candidates(table: Table, method: Method) -> list[Training]:
    """Return the trainings among which the step size is chosen."""
    return [Training(table, method, SEEDS[0], lr, table.search is not None) for lr in table.lrs]
