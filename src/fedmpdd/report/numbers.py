"""Runs that differ in nothing but the seed as one group, and what the groups reached."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedmpdd.errors import ConfigError
from fedmpdd.report.collect import Collection
from fedmpdd.report.configs import differences, identity
from fedmpdd.runs.history import RunRecord, Statistic, statistic


@dataclass(frozen=True)
class Goals:
    """What the tables of a report say besides the final accuracy; None asks for nothing more."""

    targets: Sequence[float] = ()  # scores to reach, as accuracies
    budgets: Sequence[int] = ()  # bytes to stay within
    round_cap: int | None = None  # the score within a budget is read no later

    def __post_init__(self) -> None:
        for target in self.targets:
            if not math.isfinite(target):
                raise ConfigError(f"target {target:g} is no score: expected a number, like 0.6")
        for budget in self.budgets:
            if budget < 1:
                raise ConfigError(f"budget {budget} is no number of bytes: expected 1 or more")

    def check(self, score: str) -> None:
        """Raise ConfigError where a target cannot be met by a score: accuracies go from 0 to 1."""
        for target in self.targets:
            if score == "accuracy" and not 0 < target <= 1:
                raise ConfigError(f"target {target:g} is no accuracy: expected a number above 0 and up to 1, like 0.6")


@dataclass(frozen=True)
class Group:
    """Runs with one config and different seeds."""

    name: str  # the codec, and what else sets it apart from the other groups of its task
    runs: list[RunRecord]

    @property
    def counted(self) -> list[RunRecord]:
        """The runs that numbers and means are made of: the finished ones, or all where none is finished."""
        return [run for run in self.runs if run.finished] or self.runs

    @property
    def finished(self) -> int:
        """How many of the runs are finished."""
        return sum(run.finished for run in self.runs)


@dataclass(frozen=True)
class Task:
    """Groups that can be compared: one model on one dataset, by one score."""

    dataset: str
    model: str
    groups: list[Group]

    @property
    def score(self) -> str:
        """The metric that it goes by, without the minus of those where lower is better."""
        return self.groups[0].runs[0].config.score.removeprefix("-")

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller score is the better one, as of a loss."""
        return self.groups[0].runs[0].history.lower_is_better


@dataclass(frozen=True)
class ToTarget:
    """What it took until an accuracy was first measured; ratios are to the first group, where all seeds got there."""

    target: float
    rounds: Statistic | None
    uplink_bytes: Statistic | None
    uplink_against_first: float | None
    payload_bytes: Statistic | None
    payload_against_first: float | None


@dataclass(frozen=True)
class AtBudget:
    """The last accuracy measured within a number of bytes; differences are to the first group."""

    budget: int
    accuracy: Statistic | None
    against_first: float | None
    accuracy_by_payload: Statistic | None
    payload_against_first: float | None


@dataclass(frozen=True)
class Row:
    """One group of runs in numbers."""

    dataset: str
    model: str
    score: str  # what the accuracies below are of, where it is another metric
    name: str
    codec: str
    seeds: list[int]  # of the runs that are counted
    runs: int
    finished: int
    diverged: int  # of those that are counted
    rounds: int  # that every counted run has
    most_rounds: int  # that any of them has: runs may end at a target
    rounds_wanted: int
    final_accuracy: Statistic | None
    against_first: float | None  # difference of the final accuracies
    uplink_bytes: Statistic | None  # of the whole run
    payload_bytes: Statistic | None
    to_target: list[ToTarget]
    at_budget: list[AtBudget]


def tasks_of(runs: Sequence[RunRecord]) -> list[Task]:
    """Sort runs into tasks and groups, in the order in which they came."""
    by_task: dict[tuple[str, str, str], dict[str, list[RunRecord]]] = {}
    for run in runs:
        groups = by_task.setdefault((run.config.dataset, run.config.model, run.config.score), {})
        groups.setdefault(identity(run.config, seed=None, device=None), []).append(run)
    return [
        Task(dataset, model, _named([sorted(group, key=lambda run: run.seed) for group in groups.values()]))
        for (dataset, model, _), groups in by_task.items()
    ]


def _named(groups: list[list[RunRecord]]) -> list[Group]:
    configs = [group[0].config.model_dump(mode="json", exclude={"seed", "codec", "links"}) for group in groups]
    apart = differences(configs)
    named = []
    for group, values in zip(groups, apart.rows, strict=True):
        others = [f"{key}={value}" for key, value in zip(apart.keys, values, strict=True)]
        named.append(Group(" · ".join([group[0].config.codec_words, *others]), group))
    return named


def rows_of(task: Task, goals: Goals) -> list[Row]:
    """One row per group, each against the first."""
    goals.check(task.score)
    rows: list[Row] = []
    for group in task.groups:
        rows.append(_row(task, group, goals, rows[0] if rows else None))
    return rows


def _row(task: Task, group: Group, goals: Goals, first: Row | None) -> Row:
    runs = group.counted
    final = statistic([run.history.final_accuracy for run in runs])
    ends = [run.history.last for run in runs]
    return Row(
        dataset=task.dataset,
        model=task.model,
        score=task.score,
        name=group.name,
        codec=runs[0].config.codec_words,
        seeds=[run.seed for run in runs],
        runs=len(group.runs),
        finished=group.finished,
        diverged=sum(run.history.diverged for run in runs),
        rounds=min(entry.rounds for entry in ends),
        most_rounds=max(entry.rounds for entry in ends),
        rounds_wanted=runs[0].config.rounds,
        final_accuracy=final,
        against_first=_difference(final, first.final_accuracy if first else final),
        uplink_bytes=statistic([entry.uplink_bytes for entry in ends]),
        payload_bytes=statistic([entry.payload_bytes for entry in ends]),
        to_target=[
            _to_target(runs, target, first.to_target[i] if first else None) for i, target in enumerate(goals.targets)
        ],
        at_budget=[
            _at_budget(runs, budget, goals.round_cap, first.at_budget[i] if first else None)
            for i, budget in enumerate(goals.budgets)
        ],
    )


def _to_target(runs: list[RunRecord], target: float, first: ToTarget | None) -> ToTarget:
    entries = [run.history.first_at(target) for run in runs]
    rounds, uplink, payload = (
        statistic([None if entry is None else getattr(entry, key) for entry in entries])
        for key in ("rounds", "uplink_bytes", "payload_bytes")
    )
    return ToTarget(
        target=target,
        rounds=rounds,
        uplink_bytes=uplink,
        uplink_against_first=_ratio(uplink, first.uplink_bytes if first else uplink),
        payload_bytes=payload,
        payload_against_first=_ratio(payload, first.payload_bytes if first else payload),
    )


def _at_budget(runs: list[RunRecord], budget: int, round_cap: int | None, first: AtBudget | None) -> AtBudget:
    frames = statistic([run.history.accuracy_at(budget, "uplink_bytes", round_cap) for run in runs])
    payload = statistic([run.history.accuracy_at(budget, "payload_bytes", round_cap) for run in runs])
    return AtBudget(
        budget=budget,
        accuracy=frames,
        against_first=_difference(frames, first.accuracy if first else frames),
        accuracy_by_payload=payload,
        payload_against_first=_difference(payload, first.accuracy_by_payload if first else payload),
    )


def _ratio(value: Statistic | None, first: Statistic | None) -> float | None:
    # The mean over the seeds that got there flatters a group in which some did not.
    if value is None or first is None or not value.complete or not first.complete or first.mean == 0:
        return None
    return value.mean / first.mean


def _difference(value: Statistic | None, first: Statistic | None) -> float | None:
    if value is None or first is None or not value.complete or not first.complete:
        return None
    return value.mean - first.mean


def tables(collection: Collection, goals: Goals) -> dict[str, Any]:
    """Return what `fedmpdd report --json` prints of the tables."""
    return {
        "rows": [asdict(row) for task in tasks_of(collection.runs) for row in rows_of(task, goals)],
        "audits": [
            {
                "folder": str(audit.folder),
                "finished": audit.results is not None,
                "rows": [] if audit.results is None else audit.results["rows"],
            }
            for audit in collection.audits
        ],
        "left_out": collection.left_out,
    }
