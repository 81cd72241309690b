"""What a table reads off a run: from its metrics alone, so that it can be done at any time."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedmpdd.runs.folders import read_metrics
from fedmpdd_paper.tables import Table


@dataclass(frozen=True)
class Reading:
    """One run. Bytes as the paper counts them: scale and scalars, all clients together; `frames` with everything.

    None: not reached in the rounds there were, or, at the budget, spent before the first evaluation.
    """

    seed: int
    lr: float
    rounds: int
    final_accuracy: float | None
    accuracy_at_budget: float | None
    bytes_to_target: int | None
    frames_to_target: int | None
    rounds_to_target: int | None
    bytes_to_harder: int | None
    frames_to_harder: int | None
    rounds_to_harder: int | None
    diverged: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the reading as it stands in the JSON document."""
        return asdict(self)


def read_run(folder: Path, seed: int, lr: float, table: Table) -> Reading:
    """Read one run folder, by the targets and the budget of a table."""
    payload = frames = rounds = 0
    final: float | None = None
    at_budget: float | None = None
    reached: dict[float, tuple[int, int, int]] = {}
    diverged = False
    for row in read_metrics(folder):
        payload += row["payload_bytes"]
        frames += row["uplink_bytes"]
        rounds = row["round"] + 1
        diverged = diverged or (row["clients"] > 0 and row["loss"] is None)
        accuracy = row["accuracy"]
        if accuracy is None:
            continue
        final = accuracy
        if payload <= table.budget and rounds <= table.enough:
            at_budget = accuracy
        for goal in (table.target, table.harder):
            if accuracy >= goal and goal not in reached:
                reached[goal] = (payload, frames, rounds)
    first, second = reached.get(table.target), reached.get(table.harder)
    return Reading(
        seed=seed,
        lr=lr,
        rounds=rounds,
        final_accuracy=final,
        accuracy_at_budget=at_budget,
        bytes_to_target=first[0] if first else None,
        frames_to_target=first[1] if first else None,
        rounds_to_target=first[2] if first else None,
        bytes_to_harder=second[0] if second else None,
        frames_to_harder=second[1] if second else None,
        rounds_to_harder=second[2] if second else None,
        diverged=diverged,
    )


def better(one: Reading, other: Reading) -> bool:
    """The paper's rule, the best step size per algorithm: fewer rounds to the target, else the higher accuracy."""
    rank_one, rank_other = (
        (-(r.rounds_to_target or math.inf), -math.inf if r.diverged else r.final_accuracy or 0.0) for r in (one, other)
    )
    return rank_one > rank_other


@dataclass(frozen=True)
class Summary:
    """Several seeds of one method: mean and standard deviation of those that got there, and how many did."""

    mean: float | None
    sd: float | None
    reached: int
    runs: int


def summarise(values: Sequence[float | None]) -> Summary:
    """Mean and standard deviation over seeds; None counts as not reached."""
    there = [float(value) for value in values if value is not None]
    return Summary(mean(there) if there else None, stdev(there) if len(there) > 1 else None, len(there), len(values))
