"""How long a table or a study will take: a few rounds of every row that is not done, before any is run in earnest."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import fedmpdd as fm
from fedmpdd.runs.history import read_history
from fedmpdd.simulation import RoundMetrics, RunConfig
from fedmpdd.tasks.data import Dataset, load
from fedmpdd_paper.studies import Study, Variant, folder_of, variant_lr_that_won
from fedmpdd_paper.tables import SEEDS, Method, Table
from fedmpdd_paper.trainings import DONE, Training, Workspace, candidates, lr_that_won

ROUNDS = 3  # that are timed, after one that is not


@dataclass(frozen=True)
class Estimate:
    """What is left of a table or a study. Rounds and seconds are the most there can be: trainings may end early."""

    trainings: int
    done: int
    rounds: int
    seconds: float

    def __str__(self) -> str:
        if self.trainings == self.done:
            return f"all {self.trainings} trainings are there"
        left = self.trainings - self.done
        return f"{left} of {self.trainings} trainings to do, at most {self.rounds:,} rounds: {_duration(self.seconds)}"


def estimate(
    table: Table,
    methods: Sequence[Method],
    seeds: int,
    workspace: Workspace,
    on_method: Callable[[str], None] | None = None,
) -> Estimate:
    """Time rounds of every method that is not done, and multiply by what is left of it.

    Several jobs share the machine that one has alone here, so that their number does not enter.
    """

    def rows() -> Iterable[tuple[list[int], RunConfig]]:
        for method in methods:
            left = _rounds_left(table, method, seeds, workspace)
            if on_method is not None and any(left):
                on_method(method.name)
            yield left, table.run_config(method, SEEDS[0], table.lrs[0], workspace.device)

    return _added_up(rows(), workspace)


def estimate_study(study: Study, seeds: int, workspace: Workspace) -> Estimate:
    """Do the same for the variants of a study."""

    def rows() -> Iterable[tuple[list[int], RunConfig]]:
        for variant in study.variants:
            config = study.config(variant, SEEDS[0], variant.lrs[0])
            yield _of_variant(study, variant, seeds, workspace), config.model_copy(update={"device": workspace.device})

    return _added_up(rows(), workspace)


def _added_up(rows: Iterable[tuple[list[int], RunConfig]], workspace: Workspace) -> Estimate:
    """The estimate from rounds that are left of the trainings of every row, and the config to time them with."""
    trainings = done = rounds = 0
    seconds = 0.0
    dataset: Dataset | None = None
    for left, config in rows:
        trainings, done, rounds = trainings + len(left), done + left.count(0), rounds + sum(left)
        if any(left):
            dataset = dataset or load(config.dataset, workspace.data_dir)
            seconds += sum(left) * _seconds_per_round(config, dataset)
    return Estimate(trainings, done, rounds, seconds)


def done_methods(table: Table, methods: Sequence[Method], seeds: int, workspace: Workspace) -> list[Method]:
    """Return the methods of which nothing is left to run."""
    return [method for method in methods if not any(_rounds_left(table, method, seeds, workspace))]


def done_study(study: Study, seeds: int, workspace: Workspace) -> Study:
    """Return the study with those of its variants of which nothing is left to run."""
    return replace(
        study, variants=tuple(each for each in study.variants if not any(_of_variant(study, each, seeds, workspace)))
    )


def _rounds_left(table: Table, method: Method, seeds: int, workspace: Workspace) -> list[int]:
    """Rounds that are left of each training of a method: those that choose its step size, and its seeds."""
    left = [_left(training, workspace) for training in candidates(table, method)]
    lrs = _possible(lr_that_won(table, method, workspace.out), table.lrs)
    for seed in SEEDS[:seeds] if table.search is not None else SEEDS[1:seeds]:
        left.append(min(_left(Training(table, method, seed, lr), workspace) for lr in lrs))
    return left


def _of_variant(study: Study, variant: Variant, seeds: int, workspace: Workspace) -> list[int]:
    """`_rounds_left` of a study's variant."""
    rounds = study.config(variant, SEEDS[0], variant.lrs[0]).rounds

    def left(seed: int, lr: float) -> int:
        return _left_in(folder_of(study, variant, seed, lr, workspace.out), rounds)

    # As above: the first seed tries all step sizes, the others take the one that won.
    lrs = _possible(variant_lr_that_won(study, variant, workspace.out), variant.lrs)
    return [left(SEEDS[0], lr) for lr in variant.lrs] + [min(left(seed, lr) for lr in lrs) for seed in SEEDS[1:seeds]]


def _possible(won: float | None, lrs: Sequence[float]) -> Sequence[float]:
    """The step sizes that other seeds may have: the one that won, or, as long as that is not known, any of them."""
    return lrs if won is None else (won,)


def _left(training: Training, workspace: Workspace) -> int:
    return _left_in(training.folder(workspace.out), training.config.rounds)


def _left_in(folder: Path, rounds: int) -> int:
    if (folder / DONE).is_file():
        return 0
    return max(1, rounds - read_history(folder)[0].last.rounds)


def _seconds_per_round(config: RunConfig, dataset: Dataset) -> float:
    times, evaluations = [], []
    start = 0.0

    def note(state: fm.callbacks.Training, metrics: RoundMetrics) -> None:
        nonlocal start
        if metrics.accuracy is None:
            state.federation.evaluate(state.federation.flat)
        if metrics.round > 0:
            times.append(metrics.gradient_s + metrics.encode_s + metrics.decode_s)
            evaluations.append(time.perf_counter() - start - times[-1])
        start = time.perf_counter()

    few = config.model_copy(update={"rounds": 1 + ROUNDS})
    fm.train(few, task=dataset, callbacks=[fm.callbacks.AfterRound(note)], progress=False)
    return median(times) + median(evaluations) / config.evaluate_every


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"about {max(1, round(seconds))} s"
    return f"about {minutes} min" if minutes < 120 else f"about {minutes // 60} h {minutes % 60} min"
