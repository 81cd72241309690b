"""How long a table or a study will take: a few rounds of every row that is not done, before any is run in earnest."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from fedmpdd.runs.folders import METRICS, read_metrics
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.engine import federation_of
from fedmpdd.tasks.data import Dataset, load
from fedmpdd_paper.studies import Study, Variant, folder_of, variant_lr_that_won
from fedmpdd_paper.tables import SEEDS, Method, Table
from fedmpdd_paper.trainings import DONE, Place, Training, candidates, lr_that_won

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
    place: Place,
    on_method: Callable[[str], None] | None = None,
) -> Estimate:
    """Time rounds of every method that is not done, and multiply by what is left of it.

    Several jobs share the machine that one has alone here, so that their number does not enter.
    """

    def rows() -> Iterable[tuple[list[int], RunConfig]]:
        for method in methods:
            left = _rounds_left(table, method, seeds, place)
            if on_method is not None and any(left):
                on_method(method.name)
            yield left, table.run_config(method, SEEDS[0], table.lrs[0], place.device)

    return _added_up(rows(), place)


def estimate_study(study: Study, seeds: int, place: Place) -> Estimate:
    """Do the same for the variants of a study."""

    def rows() -> Iterable[tuple[list[int], RunConfig]]:
        for variant in study.variants:
            config = study.config(variant, SEEDS[0], variant.lrs[0])
            yield _of_variant(study, variant, seeds, place), config.model_copy(update={"device": place.device})

    return _added_up(rows(), place)


def _added_up(rows: Iterable[tuple[list[int], RunConfig]], place: Place) -> Estimate:
    """The estimate from rounds that are left of the trainings of every row, and the config to time them with."""
    trainings = done = rounds = 0
    seconds = 0.0
    dataset: Dataset | None = None
    for left, config in rows:
        trainings, done, rounds = trainings + len(left), done + left.count(0), rounds + sum(left)
        if any(left):
            dataset = dataset or load(config.dataset, place.data_dir)
            seconds += sum(left) * _seconds_per_round(config, dataset)
    return Estimate(trainings, done, rounds, seconds)


def done_methods(table: Table, methods: Sequence[Method], seeds: int, place: Place) -> list[Method]:
    """Return the methods of which nothing is left to run."""
    return [method for method in methods if not any(_rounds_left(table, method, seeds, place))]


def done_study(study: Study, seeds: int, place: Place) -> Study:
    """Return the study with those of its variants of which nothing is left to run."""
    return replace(
        study, variants=tuple(own for own in study.variants if not any(_of_variant(study, own, seeds, place)))
    )


def _rounds_left(table: Table, method: Method, seeds: int, place: Place) -> list[int]:
    """Rounds that are left of each training of a method: those that choose its step size, and its seeds."""
    left = [_left(training, place) for training in candidates(table, method)]
    lrs = _possible(lr_that_won(table, method, place.out), table.lrs)
    for seed in SEEDS[:seeds] if table.search is not None else SEEDS[1:seeds]:
        left.append(min(_left(Training(table, method, seed, lr), place) for lr in lrs))
    return left


def _of_variant(study: Study, variant: Variant, seeds: int, place: Place) -> list[int]:
    """`_rounds_left` of a study's variant."""
    rounds = study.config(variant, SEEDS[0], variant.lrs[0]).rounds

    def left(seed: int, lr: float) -> int:
        return _left_in(folder_of(study, variant, seed, lr, place.out), rounds)

    # As above: the first seed tries all step sizes, the others take the one that won.
    lrs = _possible(variant_lr_that_won(study, variant, place.out), variant.lrs)
    return [left(SEEDS[0], lr) for lr in variant.lrs] + [min(left(seed, lr) for lr in lrs) for seed in SEEDS[1:seeds]]


def _possible(won: float | None, lrs: Sequence[float]) -> Sequence[float]:
    """The step sizes that other seeds may have: the one that won, or, as long as that is not known, any of them."""
    return lrs if won is None else (won,)


def _left(training: Training, place: Place) -> int:
    return _left_in(training.folder(place.out), training.config.rounds)


def _left_in(folder: Path, rounds: int) -> int:
    if (folder / DONE).is_file():
        return 0
    done = sum(1 for _ in read_metrics(folder)) if (folder / METRICS).is_file() else 0
    return max(1, rounds - done)


def _seconds_per_round(config: RunConfig, dataset: Dataset) -> float:
    federation = federation_of(config, dataset)
    times, evaluations = [], []
    for number in range(1 + ROUNDS):
        start = time.perf_counter()
        metrics = federation.run_round()
        if metrics.accuracy is None:
            federation.evaluate(federation.flat)
        times.append(metrics.gradient_s + metrics.encode_s + metrics.decode_s)
        evaluations.append(time.perf_counter() - start - times[-1])
        if number == 0:
            times.clear()
            evaluations.clear()
    return median(times) + median(evaluations) / config.evaluate_every


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"about {max(1, round(seconds))} s"
    return f"about {minutes} min" if minutes < 120 else f"about {minutes // 60} h {minutes % 60} min"
