"""What a table says of a run, and of the seeds of a method: from histories alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmpdd.runs.history import History, Round, statistic
from fedmpdd_paper.tables import Table


@dataclass(frozen=True)
class RunSummary:
    """One run. None: not reached in the rounds there were, or, at the budget, spent before the first evaluation."""

    seed: int
    lr: float
    rounds: int
    final_accuracy: float | None
    accuracy_at_budget: float | None
    at_target: Round | None
    at_second_target: Round | None
    diverged: bool
    fell_back: bool  # it diverged, or was below the target again when it ended

    @classmethod
    def of(cls, history: History, seed: int, lr: float, table: Table) -> "RunSummary":
        """Return the summary of a run by the targets and the budget of a table, which counts payload as the paper."""
        return cls(
            seed=seed,
            lr=lr,
            rounds=history.last.rounds,
            final_accuracy=history.final_accuracy,
            accuracy_at_budget=history.accuracy_at(table.budget, "payload_bytes", table.round_cap),
            at_target=history.first_at(table.target),
            at_second_target=history.first_at(table.second_target),
            diverged=history.diverged,
            fell_back=history.fell_back(table.target),
        )

    @property
    def rank(self) -> tuple[float, ...]:
        """The paper's rule, the best step size per algorithm: least is best."""
        return rank((self.at_target,), self.final_accuracy, self.diverged)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as it stands in the JSON document."""
        reached = {"target": self.at_target, "harder": self.at_second_target}
        return {
            "seed": self.seed,
            "lr": self.lr,
            "rounds": self.rounds,
            "final_accuracy": self.final_accuracy,
            "accuracy_at_budget": self.accuracy_at_budget,
            **{f"bytes_to_{key}": entry and entry.payload_bytes for key, entry in reached.items()},
            **{f"frames_to_{key}": entry and entry.uplink_bytes for key, entry in reached.items()},
            **{f"rounds_to_{key}": entry and entry.rounds for key, entry in reached.items()},
            "diverged": self.diverged,
        }


def rank(reached: Sequence[Round | None], final_accuracy: float | None, diverged: bool) -> tuple[float, ...]:
    """Return the place of a step size, least is best: fewer rounds to the hardest target, else the higher accuracy."""
    rounds = [math.inf if entry is None else entry.rounds for entry in reversed(reached)]
    return (*rounds, math.inf if diverged else -(final_accuracy or 0.0))


def over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean and deviation of the seeds that got there, and how many did, as they stand in the JSON document."""
    summed = statistic(values)
    return {
        "mean": summed and summed.mean,
        "sd": summed and summed.sd,
        "reached": summed.seeds if summed else 0,
        "runs": len(values),
    }
