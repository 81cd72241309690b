"""Callbacks for `simulate` and `compare`: what happens beside the rounds of a training.

`Callback` is the base of one's own: override `begin`, `after_round`, `end` or `close`. `AfterRound` makes one of a
function. `TensorBoard` writes events. `StopWhen` ends a training for a reason, `EarlyStopping` when nothing gets
better, `PauseWhen` when it is to go on later. `progress` shows rounds to a function.
"""

import math

from fedmpdd.documents import check_number
from fedmpdd.errors import ConfigError
from fedmpdd.imports import quote
from fedmpdd.runs.driver import (
    AfterRound,
    Callback,
    PauseWhen,
    ReasonOf,
    StopWhen,
    TensorBoard,
    Training,
    at_target,
    progress,
)
from fedmpdd.runs.history import History

__all__ = [
    "AfterRound",
    "Callback",
    "EarlyStopping",
    "PauseWhen",
    "ReasonOf",
    "StopWhen",
    "TensorBoard",
    "Training",
    "at_target",
    "progress",
]


class EarlyStopping(StopWhen):
    """Ends a training when the score has not become better in so many evaluations.

    Args:
        patience: of evaluations, which come every `evaluate_every` rounds.
        least: how much better counts as better.

    Example:
        >>> history = simulate(task, MPDD(m=8), rounds=500, callbacks=[EarlyStopping(patience=5)])

    """

    def __init__(self, patience: int = 5, least: float = 0.0) -> None:
        check_number("least", least, 0, math.inf, "by how much a score must be better, 0 or more")
        if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
            raise ConfigError(f"patience = {quote(patience)}: expected a number of evaluations, one at least")
        self._patience, self._least = patience, least
        super().__init__(self._reason_to_stop)

    def _reason_to_stop(self, history: History) -> str | None:
        sign = -1.0 if history.lower_is_better else 1.0
        scores = [sign * entry.accuracy for entry in history.evaluations if entry.accuracy is not None]
        if len(scores) <= self._patience:
            return None
        before = max(scores[: -self._patience])
        better = max(scores[-self._patience :]) > before + self._least
        return None if better else f"nothing better in {self._patience} evaluations"
