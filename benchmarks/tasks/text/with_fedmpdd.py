"""The text, written for fedmpdd."""

from torch.nn import functional

import fedmpdd as fm
from benchmarks.tasks.text import problem


def train(rounds: int = problem.ROUNDS, per_round: int = problem.PER_ROUND, codec: str = "fedsgd") -> fm.History:
    """Train a model, and return its history."""
    task = fm.Task(
        model=problem.make_model(),
        loss=functional.cross_entropy,
        clients=problem.load_clients(),
        test=problem.load_test(),
    )
    return fm.simulate(
        task,
        codec,
        rounds=rounds,
        per_round=per_round,
        batch=problem.EXAMPLES,
        lr=problem.LR,
        evaluate_every=rounds,
        progress=False,
    )
