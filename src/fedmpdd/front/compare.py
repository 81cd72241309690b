"""One call from a task and codecs to curves, tables and a page of them side by side."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmpdd.codecs import Codec
from fedmpdd.display import Sheet, as_text, round_display, table
from fedmpdd.errors import ConfigError
from fedmpdd.front.simulate import folder_of, plain, run_config
from fedmpdd.front.together import check_together
from fedmpdd.imports import quote
from fedmpdd.pages import words
from fedmpdd.pages.builder import check_page
from fedmpdd.report import Collection, Goals, write_report
from fedmpdd.report.numbers import Group, Row, rows_of, tasks_of
from fedmpdd.runs import compare as runs
from fedmpdd.runs.driver import Callback, check_callbacks
from fedmpdd.runs.history import History, frame_of
from fedmpdd.simulation.config import RunConfig
from fedmpdd.tasks.task import Task
from fedmpdd.uplink.codec_config import CodecConfig


@dataclass(frozen=True)
class Comparison:
    """Codecs side by side on one task: every one with every seed.

    Attributes:
        rows: how each training did, by codec and then by seed; the baseline comes first.
        left_out: folders that are damaged, and how.
        goals: the target and the budget that were asked for.

    """

    rows: list[runs.Trained]
    left_out: list[str] = field(default_factory=list)
    goals: Goals = field(default_factory=Goals)

    @property
    def histories(self) -> dict[str, dict[int, History]]:
        """The history of every training, by codec and seed."""
        result: dict[str, dict[int, History]] = {}
        for row in self.rows:
            result.setdefault(row.codec, {})[row.run.seed] = row.run.history
        return result

    def to_frame(self, by_round: bool = False) -> Any:
        """Return a DataFrame of pandas with a row per codec and seed.

        Args:
            by_round: a row per codec, seed and round instead: the histories, one below the other.

        Example:
            >>> result.to_frame().groupby("codec").uplink_bytes.mean()  # doctest: +SKIP

        """
        if by_round:
            return frame_of(
                [
                    {"codec": row.codec, "seed": row.run.seed, **entry}
                    for row in self.rows
                    for entry in row.run.history.as_rows()
                ]
            )
        return frame_of([_columns_of(row) for row in self.rows])

    def report(self, path: str | Path) -> Path:
        """Write the page: curves with their spread over seeds, tables, and what was run. It loads nothing.

        Args:
            path: of the page; one that is there is replaced.

        Returns:
            The path.

        Example:
            >>> result.report("page.html")  # doctest: +SKIP

        """
        check_page(Path(path), "report")
        write_report(Path(path), Collection([row.run for row in self.rows], [], list(self.left_out)), self.goals)
        return Path(path)

    def as_dict(self) -> dict[str, Any]:
        """Return what `fedmpdd compare --json` prints: every training, and every codec with its mean over seeds."""
        groups = [asdict(row) for _, row in self._groups()]
        return {"rows": [row.as_dict() for row in self.rows], "groups": groups, "left_out": self.left_out}

    def table(self) -> Sheet:
        """Return codecs side by side: what they reached, in how many rounds, with how many bytes."""
        groups = self._groups()
        score, first = groups[0][1].score, groups[0][1].name
        columns = {"codec": "left", "seeds": "right", "trained": "right", score: "right"}
        title = ""
        for target in self.goals.targets:
            goal = f"{words.goal(target, score)} test {score}"
            title = f"rounds and uplink to {goal}, and that uplink against {first}"
            columns |= {"rounds": "right", "uplink": "right", "against": "right"}
        if not self.goals.targets:
            columns |= {"uplink": "right"}
        columns |= {f"at {words.plain_bytes(budget)}": "right" for budget in self.goals.budgets}
        return table(title, {**columns, "seconds": "right"}, [self._cells(group, row) for group, row in groups])

    def _groups(self) -> list[tuple[Group, Row]]:
        """Runs that differ in their seed alone, with their means."""
        (task,) = tasks_of([row.run for row in self.rows])
        return list(zip(task.groups, rows_of(task, self.goals), strict=True))

    def _cells(self, group: Group, row: Row) -> list[str]:
        rounds = f"{row.rounds:,}" if row.rounds == row.most_rounds else f"{row.rounds:,} to {row.most_rounds:,}"
        cells = [row.name, str(len(row.seeds)), rounds, words.score(row.final_accuracy, row.score)]
        for goal in row.to_target:
            cells += [words.count(goal.rounds), words.size(goal.uplink_bytes), words.ratio(goal.uplink_against_first)]
        if not row.to_target:
            cells.append(words.size(row.uplink_bytes))
        cells += [words.score(at.accuracy, row.score) for at in row.at_budget]
        trained = [each for each in self.rows if any(each.run is run for run in group.runs)]
        seconds = [each.seconds for each in trained if each.seconds is not None]
        return [*cells, f"{sum(seconds):,.1f}" if seconds else words.NOTHING]

    def notes(self) -> list[str]:
        """Return what the table does not say: trainings that stopped, and folders that were left out."""
        stopped = [f"{row.codec}, seed {row.run.seed} stopped: {row.error}" for row in self.rows if row.error]
        return [*stopped, *(f"left out: {text}" for text in self.left_out)]

    def __repr__(self) -> str:
        return as_text(self.table(), self.notes())


def compare(
    task: Task,
    codecs: Sequence[Codec | str | Sequence[Codec | str]],
    seeds: int | Sequence[int] = 3,
    *,
    out: str | Path | None = None,
    target: float | None = None,
    budget: int | None = None,
    baseline: Codec | str | None = None,
    stop_at_target: bool = False,
    together: int = 1,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    seed: int = 17,
    **settings: Any,
) -> Comparison:
    """Train a task with several codecs and several seeds, one after the other.

    Args:
        task: model, loss, metrics and the clients' data.
        codecs: objects such as `MPDD(m=400)`, or words such as "mpdd:m=400". One of them may be a list, of the codecs
            of clients with different links; see `simulate`.
        seeds: how many, from `seed` on, or which.
        out: a folder with a run folder for every codec and seed. The same call goes on with what is there: a run that
            is finished is read, one that is half-way goes on, a damaged one is left out.
        target: a score to reach, such as an accuracy of 0.8; of a loss, one to fall to.
        budget: uplink bytes of all clients, within which scores are told too.
        baseline: the codec that others are held against; the first one by default.
        stop_at_target: whether a training ends at its target.
        together: how many trainings go on side by side. Where adapters are trained, or linear layers alone, their
            gradients are computed in one pass, which is meant for GPUs; last bits may then differ from those alone.
        callbacks: see `fedmpdd.callbacks`; each hears of every training.
        progress: whether to show bars on standard error.
        seed: the first one, where `seeds` is a number.
        settings: as of `simulate`: rounds=200, per_round=50, lr=0.1, server="adam", …

    Returns:
        The comparison, with `to_frame`, `report`, `histories`, and a table where it is printed.

    Example:
        >>> result = compare(task, [FedSGD(), MPDD(m=8)], seeds=2, rounds=3, batch=4, progress=False)
        >>> [(row.codec, row.run.seed) for row in result.rows]
        [('fedsgd', 17), ('fedsgd', 18), ('mpdd:m=8', 17), ('mpdd:m=8', 18)]

    """
    if isinstance(codecs, str | Codec) or not isinstance(codecs, Iterable):
        raise ConfigError(f"codecs = {quote(codecs)}: expected a list of codecs, like [FedSGD(), MPDD(m=400)]")
    if "links" in settings:
        raise ConfigError(
            "links would be the same in every training; give them as one of the codecs: [[…, …], FedSGD()]"
        )
    codecs, chosen, folder, goals = list(codecs), _seeds(seeds, seed), folder_of(out), goals_of(target, budget)
    check_callbacks(callbacks)
    settings["seed"] = seed
    configs = [run_config(task, codec, **settings) for codec in codecs]
    words_given = [codec if isinstance(codec, str) else None for codec in codecs]
    return compare_configs(
        [(text or config.codec_words, config) for text, config in zip(words_given, configs, strict=True)],
        task,
        chosen,
        out=folder,
        goals=goals,
        baseline=None if baseline is None else run_config(task, baseline, **settings).codec,
        stop_at_target=stop_at_target,
        together=together,
        callbacks=callbacks,
        progress=progress,
    )


def compare_configs(
    configs: Sequence[tuple[str, RunConfig]],
    task: Task,
    seeds: Sequence[int],
    *,
    out: Path | None,
    goals: Goals,
    baseline: CodecConfig | None = None,
    stop_at_target: bool = False,
    together: int = 1,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Comparison:
    """Return a comparison of configs that differ in their codecs alone, with the names of these."""
    check_together(together)
    trials = runs.trials_of(configs, seeds, out, baseline)
    score = trials[0].config.score.removeprefix("-")
    goals.check(score)
    with round_display() if progress else nullcontext() as start:

        def display(trial: runs.Trial) -> Any:
            name = trial.codec if len(seeds) == 1 else f"{trial.codec}, seed {trial.config.seed}"
            return None if start is None else start(name, trial.config.rounds, 0, score)

        rows, left_out = runs.compare(
            trials,
            task,
            target=next(iter(goals.targets), None),
            budget=next(iter(goals.budgets), None),
            stop_at_target=stop_at_target,
            together=together,
            callbacks=callbacks,
            display=display,
        )
    return Comparison(rows, left_out, goals)


def _columns_of(row: runs.Trained) -> dict[str, Any]:
    """A row of `to_frame`: metrics by their names, and goals where there are any."""
    values = row.as_dict()
    names = ["uplink_bytes", "payload_bytes", "downlink_bytes"]
    names += [] if row.target is None else ["rounds_to_target", "bytes_to_target"]
    at_budget = {} if row.budget is None else {f"{values['score']}_at_budget": values["accuracy_at_budget"]}
    return {
        **{name: values[name] for name in ("codec", "seed", "rounds", "test_loss")},
        **values["metrics"],
        **{name: values[name] for name in names},
        **at_budget,
        **{name: values[name] for name in ("seconds", "state", "error")},
    }


def goals_of(target: float | None = None, budget: int | None = None) -> Goals:
    """Return the goals of a comparison."""
    target, budget = plain(target), plain(budget)
    for name, value, example in (("target", target, "0.8"), ("budget", budget, "1_000_000 bytes")):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{name} = {quote(value)}: expected one number, like {example}")
    return Goals([] if target is None else [target], [] if budget is None else [budget])


def _seeds(seeds: Any, first: Any) -> list[int]:
    """Which seeds to train with: so many from the first one on, or those that were given."""
    seeds, first = seeds.tolist() if isinstance(seeds, np.ndarray | np.generic) else seeds, plain(first)
    is_count = isinstance(seeds, int) and not isinstance(seeds, bool)
    chosen = list(range(seeds)) if is_count else list(map(plain, seeds)) if isinstance(seeds, Sequence) else []
    if not chosen or len(set(chosen)) < len(chosen) or not all(isinstance(one, int) for one in [first, *chosen]):
        raise ConfigError(f"seeds = {quote(seeds)}: expected how many, 1 or more, or a list of different whole numbers")
    return [first + number for number in chosen] if is_count else chosen
