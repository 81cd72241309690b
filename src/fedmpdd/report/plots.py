"""The curves of groups and of single runs, as numbers that the page draws."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedmpdd.report.numbers import Group, Task
from fedmpdd.runs.history import Round, RunRecord, statistic

__all__ = ["accuracy_curve", "loss_curve"]

LOSS_POINTS = 400  # a loss is noted every round; more points than pixels would only make the page heavy


def curves_of(task: Task) -> list[dict[str, Any]]:
    """One entry per group, with its mean and its single runs."""
    return [
        {
            "name": group.name,
            "finished": group.finished > 0,  # the mean is then of finished runs
            "mean": _both(group.counted),
            "runs": [{"seed": run.seed, "finished": run.finished, **_both([run])} for run in group.runs],
        }
        for group in task.groups
    ]


def _both(runs: list[RunRecord]) -> dict[str, Any]:
    return {"accuracy": accuracy_curve(runs), "loss": loss_curve(runs)}


def accuracy_curve(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Test accuracy at the evaluations that all runs have."""
    by_round = [{entry.rounds: entry for entry in run.history.evaluations} for run in runs]
    shared = [rounds for rounds in by_round[0] if all(rounds in entries for entries in by_round)]
    return _curve(
        [
            ([entries[rounds] for entries in by_round], [entries[rounds].accuracy for entries in by_round])
            for rounds in shared
        ]
    )


def loss_curve(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Training loss over the rounds that all runs have; many rounds are averaged to one point."""
    length = min(len(run.history.rounds) for run in runs)
    width = loss_window(length)
    points = []
    for start in range(0, length, width):
        parts = [run.history.rounds[start : min(start + width, length)] for run in runs]
        losses = [[entry.loss for entry in part if entry.loss is not None] for part in parts]
        points.append(([part[-1] for part in parts], [fmean(seen) if seen else None for seen in losses]))
    return _curve(points)


def loss_window(rounds: int) -> int:
    """How many rounds one point of a loss curve stands for."""
    return max(1, -(-rounds // LOSS_POINTS))


def widest_window(groups: Sequence[Group]) -> int:
    """The most rounds that one point stands for among these groups."""
    return max(loss_window(len(run.history.rounds)) for group in groups for run in group.runs)


def _curve(points: Sequence[tuple[list[Round], list[float | None]]]) -> dict[str, list[Any]]:
    """Columns of a curve. Bytes are means too: with dropout, seeds differ in them."""
    result: dict[str, list[Any]] = {"rounds": [], "uplink": [], "payload": [], "mean": [], "sd": []}
    for entries, values in points:
        summed = statistic(values)
        if summed is None:  # no client answered
            continue
        result["rounds"].append(entries[0].rounds)
        result["uplink"].append(round(fmean(entry.uplink_bytes for entry in entries)))
        result["payload"].append(round(fmean(entry.payload_bytes for entry in entries)))
        result["mean"].append(_short(summed.mean))
        result["sd"].append(None if summed.sd is None else _short(summed.sd))
    return result


def _short(value: float) -> float:
    return float(f"{value:.6g}")
