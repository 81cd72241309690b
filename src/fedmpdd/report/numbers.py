"""Runs that differ in nothing but the seed as one group, and what the groups reached."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from fedmpdd.errors import ConfigError
from fedmpdd.report.collect import Collection, Round, RunRecord
from fedmpdd.report.configs import codec_text, differences, identity

Count = Literal["uplink_bytes", "payload_bytes"]  # whole frames, or scale and scalars alone as the paper counts
_COUNTS: tuple[Count, Count] = ("uplink_bytes", "payload_bytes")


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over the seeds that have a value; no deviation of a single one."""

    mean: float
    sd: float | None
    seeds: int  # those with a value
    of: int

    @property
    def complete(self) -> bool:
        """Whether every seed has a value."""
        return self.seeds == self.of


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Sum up one number per seed; None where a seed has none, or where no seed has one."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return Statistic(fmean(there), stdev(there) if len(there) > 1 else None, len(there), len(values))


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
    """Groups that can be compared: one model on one dataset."""

    dataset: str
    model: str
    groups: list[Group]


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
    name: str
    codec: str
    seeds: list[int]  # of the runs that are counted
    runs: int
    finished: int
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
    by_task: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for run in runs:
        groups = by_task.setdefault((run.config.dataset, run.config.model), {})
        groups.setdefault(identity(run.config, seed=None, device=None), []).append(run)
    return [
        Task(dataset, model, _named([sorted(group, key=lambda run: run.seed) for group in groups.values()]))
        for (dataset, model), groups in by_task.items()
    ]


def _named(groups: list[list[RunRecord]]) -> list[Group]:
    configs = [group[0].config.model_dump(mode="json", exclude={"seed", "codec"}) for group in groups]
    apart = differences(configs)
    named = []
    for group, values in zip(groups, apart.rows, strict=True):
        others = [f"{key}={value}" for key, value in zip(apart.keys, values, strict=True)]
        named.append(Group(" · ".join([codec_text(group[0].config), *others]), group))
    return named


def reached(run: RunRecord, target: float) -> Round | None:
    """The first evaluation at which the target was met."""
    return next((entry for entry in run.evaluations if entry.accuracy is not None and entry.accuracy >= target), None)


def accuracy_within(run: RunRecord, budget: int, count: Count) -> float | None:
    """The accuracy of the last evaluation that the budget allows."""
    allowed = [entry.accuracy for entry in run.evaluations if getattr(entry, count) <= budget]
    return allowed[-1] if allowed else None


def rows_of(task: Task, targets: Sequence[float] = (), budgets: Sequence[int] = ()) -> list[Row]:
    """One row per group, each against the first."""
    rows: list[Row] = []
    for group in task.groups:
        first = rows[0] if rows else None
        runs = group.counted
        final = statistic([run.evaluations[-1].accuracy if run.evaluations else None for run in runs])
        sent = [run.history[-1] if run.history else Round(0, None, None, 0, 0) for run in runs]
        rows.append(
            Row(
                dataset=task.dataset,
                model=task.model,
                name=group.name,
                codec=codec_text(runs[0].config),
                seeds=[run.seed for run in runs],
                runs=len(group.runs),
                finished=group.finished,
                rounds=min(entry.rounds for entry in sent),
                most_rounds=max(entry.rounds for entry in sent),
                rounds_wanted=runs[0].config.rounds,
                final_accuracy=final,
                against_first=_difference(final, first.final_accuracy if first else final),
                uplink_bytes=statistic([entry.uplink_bytes for entry in sent]),
                payload_bytes=statistic([entry.payload_bytes for entry in sent]),
                to_target=[
                    _to_target(runs, target, first.to_target[i] if first else None) for i, target in enumerate(targets)
                ],
                at_budget=[
                    _at_budget(runs, budget, first.at_budget[i] if first else None) for i, budget in enumerate(budgets)
                ],
            )
        )
    return rows


def _to_target(runs: list[RunRecord], target: float, first: ToTarget | None) -> ToTarget:
    entries = [reached(run, target) for run in runs]
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


def _at_budget(runs: list[RunRecord], budget: int, first: AtBudget | None) -> AtBudget:
    frames, payload = (statistic([accuracy_within(run, budget, count) for run in runs]) for count in _COUNTS)
    return AtBudget(
        budget=budget,
        accuracy=frames,
        against_first=_difference(frames, first.accuracy if first else frames),
        accuracy_by_payload=payload,
        payload_against_first=_difference(payload, first.accuracy_by_payload if first else payload),
    )


def _ratio(own: Statistic | None, first: Statistic | None) -> float | None:
    # The mean over the seeds that got there flatters a group in which some did not.
    if own is None or first is None or not own.complete or not first.complete or first.mean == 0:
        return None
    return own.mean / first.mean


def _difference(own: Statistic | None, first: Statistic | None) -> float | None:
    if own is None or first is None or not own.complete or not first.complete:
        return None
    return own.mean - first.mean


def check_wishes(targets: Sequence[float], budgets: Sequence[int]) -> None:
    """Raise ConfigError for a target or a budget that cannot be meant."""
    for target in targets:
        if not (math.isfinite(target) and 0 < target <= 1):
            raise ConfigError(f"--target {target:g} is no accuracy: expected a number above 0 and up to 1, like 0.6")
    for budget in budgets:
        if budget < 1:
            raise ConfigError(f"--budget {budget} is no number of bytes: expected 1 or more")


def tables(found: Collection, targets: Sequence[float] = (), budgets: Sequence[int] = ()) -> dict[str, Any]:
    """Return what `fedmpdd report --json` prints of the tables."""
    check_wishes(targets, budgets)
    return {
        "rows": [asdict(row) for task in tasks_of(found.runs) for row in rows_of(task, targets, budgets)],
        "audits": [
            {"folder": str(audit.folder), "finished": audit.results is not None, **(_verdicts(audit.results))}
            for audit in found.audits
        ],
        "left_out": found.left_out,
    }


def _verdicts(results: dict[str, Any] | None) -> dict[str, Any]:
    return {"rows": [] if results is None else results["rows"]}
