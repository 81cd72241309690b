"""Many trainings of one task in one call, several side by side: a grid of step sizes, say, or a table of codecs."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedmpdd.display import round_display
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.front.simulate import folder_of
from fedmpdd.imports import quote
from fedmpdd.runs import compare as runs
from fedmpdd.runs.driver import Callback, check_callbacks
from fedmpdd.runs.history import History
from fedmpdd.simulation.config import RunConfig
from fedmpdd.tasks.task import Task


def train_together(
    configs: Mapping[str, RunConfig],
    task: Task,
    *,
    together: int = 8,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> dict[str, History]:
    """Train one task with many configs, several at a time, and return how each went.

    Trainings that go on at a time take turns round by round. Where adapters are trained, or linear layers alone, their
    gradients are computed in one pass, which is meant for GPUs. Other trainings only wait for each other.

    Args:
        configs: what to train, by name; of `run_config`, say.
        task: of all of them.
        together: how many go on at a time.
        out: a folder with a run folder for every name. The same call goes on with what is there.
        callbacks: see `fedmpdd.callbacks`; each hears of every training.
        progress: whether to show bars on standard error.

    Returns:
        The histories, by name. One that diverged says so. A run whose folder is damaged is an error: to leave such ones
        out is for `compare`.

    Raises:
        ConfigError: the configs are no such table, or cannot be trained.
        RunError: a folder is damaged, or of another run.

    Example:
        >>> grid = {f"lr-{lr:g}": run_config(task, MPDD(m=8), rounds=2, lr=lr) for lr in (0.01, 0.1)}
        >>> [len(history) for history in train_together(grid, task, progress=False).values()]
        [2, 2]

    """
    if not isinstance(configs, Mapping) or not all(isinstance(one, RunConfig) for one in configs.values()):
        raise ConfigError(f"configs = {quote(configs)}: expected a dict of configs by name, of fm.run_config")
    check_together(together)
    check_callbacks(callbacks)
    folder = folder_of(out)
    for name in configs:
        if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
            raise ConfigError(f"configs has the name {quote(name)}: expected one that a folder can have")
    trials = [runs.Trial(name, one, folder and folder / name) for name, one in configs.items()]
    if not trials:
        return {}
    with round_display() if progress else nullcontext() as start:

        def display(trial: runs.Trial) -> Any:
            return None if start is None else start(trial.codec, trial.config.rounds, 0, trial.config.score)

        trained, left_out = runs.compare(trials, task, together=together, callbacks=callbacks, display=display)
    if left_out:
        raise RunError("; ".join(left_out))
    for each in trained:
        each.run.history.diverged = each.run.history.diverged or each.error is not None
    return {each.codec: each.run.history for each in trained}


def check_together(together: Any) -> None:
    """Raise ConfigError unless this is a number of trainings."""
    if isinstance(together, bool) or not isinstance(together, int) or together < 1:
        raise ConfigError(f"together = {quote(together)}: expected how many trainings go on at a time, 1 or more")
