"""One training of a table: run, resumed or read, in its own folder.

A training ends once it has reached the second target and spent the budget of bytes (or, where it sends less, come to
the round in which FedMPDD has), or diverged, or used up its rounds.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fedmpdd as fm
from fedmpdd.documents import write_text
from fedmpdd.errors import CodecError, GradientError
from fedmpdd.front.callbacks import Callback, PauseWhen, ReasonOf, progress
from fedmpdd.runs.history import CONFIG, History, read_config, read_history
from fedmpdd.runs.settings import check_same_run
from fedmpdd.simulation import RunConfig
from fedmpdd_paper.summaries import RunSummary
from fedmpdd_paper.tables import SEEDS, Method, Table

DONE = "done"  # a file that says why a run ended early, if it did
BEATEN = "beaten"  # how that begins if another step size was faster
OnRound = Callable[[str, int, int, float | None], None]  # which run, its round, of how many, accuracy


class StoppedError(Exception):
    """A training was asked to stop. It has a checkpoint, and goes on from there the next time."""


@dataclass(frozen=True)
class Workspace:
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

    def read(self, out: Path) -> RunSummary:
        """Read what there is of it."""
        return RunSummary.of(read_training(self.folder(out)), self.seed, self.lr, self.table)


def train(
    training: Training,
    workspace: Workspace,
    *,
    to_beat: int | None = None,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunSummary:
    """Run what is missing of one training, and read it.

    to_beat: stop once the target was not reached within so many rounds; another step size did, and has won.
    """
    table = training.table

    def reason_of(history: History) -> str | None:
        is_spent = history.has_spent(table.budget, "payload_bytes", table.round_cap)
        if history.diverged or (is_spent and history.first_at(table.second_target) is not None):
            return ""
        if to_beat is not None and history.last.rounds >= to_beat and history.first_at(table.target) is None:
            return f"{BEATEN}: another step size took {to_beat} rounds to the target"
        return None

    folder = training.folder(workspace.out)
    complete(folder, training.config, training.name, workspace, reason_of, on_round, stopped)
    return training.read(workspace.out)


def complete(
    folder: Path,
    config: RunConfig,
    name: str,
    workspace: Workspace,
    reason_of: ReasonOf,
    on_round: OnRound | None,
    stopped: Callable[[], bool],
) -> None:
    """Run what is missing of a training until there is a reason to end it or no round is left, and mark it as done."""
    if (folder / DONE).is_file():
        check_same_run(folder, read_config(folder), config, free=("device",))
        return
    stop = fm.callbacks.StopWhen(reason_of)
    try:
        history = train_in(
            folder, config, workspace, [show_rounds(name, config.rounds, on_round), stop, PauseWhen(stopped)]
        )
    except (GradientError, CodecError) as error:  # the step size was too large, and nothing is left to encode
        stop.reason = str(error)
    if stop.reason is None and history.last.rounds < config.rounds:
        raise StoppedError(name)
    write_text(folder / DONE, stop.reason or "")


def show_rounds(name: str, rounds: int, on_round: OnRound | None) -> Callback:
    """Return what shows the rounds of a training, if anybody looks."""
    return progress(lambda done, accuracy, *_: on_round(name, done, rounds, accuracy) if on_round else None)


def read_training(folder: Path) -> History:
    """Read what there is of a training; what ended with an error has diverged."""
    history, _ = read_history(folder)
    why = (folder / DONE).read_text(encoding="utf-8") if (folder / DONE).is_file() else ""
    history.diverged = history.diverged or (why != "" and not why.startswith(BEATEN))
    return history


def train_in(folder: Path, config: RunConfig, workspace: Workspace, callbacks: Sequence[Callback]) -> History:
    """Go on with a run folder, or make it."""
    if not (folder / CONFIG).is_file():  # one that is there goes on with the device that it began with
        config = config.model_copy(update={"device": workspace.device})
    return fm.train(config, out=folder, data_dir=workspace.data_dir, callbacks=callbacks, progress=False)


def choose_lr(
    table: Table,
    method: Method,
    workspace: Workspace,
    *,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunSummary:
    """Choose the step size of a method as the paper does, and return the first seed's training with it.

    On the first seed, the one with the fewest rounds to the target wins, or, where a table says so to save time, the
    highest accuracy after a few of them.
    """
    search = table.search is not None
    best: RunSummary | None = None
    for candidate in candidates(table, method):
        to_beat = best.at_target.rounds if best is not None and best.at_target is not None and not search else None
        tried = train(candidate, workspace, to_beat=to_beat, on_round=on_round, stopped=stopped)
        best = tried if best is None or tried.rank < best.rank else best
    assert best is not None
    if not search:
        return best
    return train(Training(table, method, SEEDS[0], best.lr), workspace, on_round=on_round, stopped=stopped)


def lr_that_won(table: Table, method: Method, out: Path) -> float | None:
    """Return the step size that `choose_lr` chose, None if it has not tried all of them yet."""
    tried = candidates(table, method)
    if not all(candidate.is_done(out) for candidate in tried):
        return None
    return min((candidate.read(out) for candidate in tried), key=lambda run: run.rank).lr


def candidates(table: Table, method: Method) -> list[Training]:
    """Return the trainings among which the step size is chosen."""
    return [Training(table, method, SEEDS[0], lr, table.search is not None) for lr in table.lrs]
