"""What runs did: the only place that reads it, from a run folder or while a run goes on.

A history is the state after every round. Curves, the first round at a target, the accuracy at a budget, whether a run
diverged or fell back, and means over seeds all come from here, for `compare`, tables, studies, figures and the page.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fedmpdd.display import readable_bytes, readable_score
from fedmpdd.documents import Expected, is_count, is_number, parse_json, problem_in, read_json
from fedmpdd.errors import ConfigError, DocumentError, MissingDependencyError, RunError
from fedmpdd.imports import Trust, check_trust, find_again, import_paths, quote
from fedmpdd.runs.settings import check_unchanged, without_config_record
from fedmpdd.simulation.config import RunConfig, parse_config

__all__ = [
    "CONFIG",
    "History",
    "Round",
    "RunRecord",
    "Statistic",
    "frame_of",
    "read_config",
    "read_history",
    "read_run",
    "statistic",
]

CONFIG, ENVIRONMENT, METRICS, SUMMARY = "config.json", "environment.json", "metrics.jsonl", "summary.json"
LARGEST_CONFIG = 2**20  # bytes
LONGEST_LINE = 2**16  # of metrics, in bytes
LEAVE_OUT = "put back what it was, or leave this folder out"

Count = Literal["uplink_bytes", "payload_bytes"]  # whole frames, or scale and scalars alone as the paper counts


class Round(NamedTuple):
    """The state after a round; updates and bytes are of all rounds so far and all clients."""

    rounds: int
    loss: float | None
    accuracy: float | None  # the score, by whatever metric the history goes; None where the model was not tested
    uplink_bytes: int
    payload_bytes: int
    downlink_bytes: int = 0
    updates: int = 0
    loss_of_test: float | None = None
    metrics: Mapping[str, float | None] = MappingProxyType({})  # of the test examples


START = Round(0, None, None, 0, 0)


@dataclass(repr=False)
class History:
    """What one run did, round by round; a run that goes on adds to it."""

    rounds: list[Round] = field(default_factory=list)
    evaluations: list[Round] = field(default_factory=list)  # the rounds after which the model was tested
    diverged: bool = False
    score: str = "accuracy"  # the metric that targets go by, with a minus before it where lower is better
    model: Any = None  # the trained module, where the history was made by a training in this process

    def __post_init__(self) -> None:
        """Raise RunError where somebody passes a folder."""
        if not isinstance(self.rounds, list):
            raise RunError(f"History({quote(self.rounds)}) holds no rounds; to read a run folder: History.read(folder)")

    @classmethod
    def read(cls, folder: str | Path) -> "History":
        """Return the history of a run folder, be its run finished or not.

        Args:
            folder: that `simulate(out=…)` or `fedmpdd run` made.

        Example:
            >>> History.read("runs/first").to_frame()  # doctest: +SKIP

        """
        if not isinstance(folder, str | Path):
            raise RunError(f'History.read({quote(folder)}): expected a run folder, like "runs/first"')
        return read_run(Path(folder)).history

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], score: str = "accuracy") -> "History":
        """Return the history of lines of metrics."""
        history = cls(score=score)
        for row in rows:
            history.add(row)
        return history

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a round, as it stands in the run's file."""
        last = self.last
        accuracy = row["accuracy"]
        metrics = row.get("metrics") or ({} if accuracy is None else {"accuracy": accuracy})
        name = self.score.removeprefix("-")
        score = row.get("test_loss") if name == "loss" else metrics.get(name)
        is_tested = score is not None or row.get("test_loss") is not None
        self.rounds.append(
            Round(
                rounds=row["round"] + 1,
                loss=row.get("loss"),
                accuracy=score,
                uplink_bytes=last.uplink_bytes + row["uplink_bytes"],
                payload_bytes=last.payload_bytes + row["payload_bytes"],
                downlink_bytes=last.downlink_bytes + row["downlink_bytes"],
                updates=last.updates + row["clients"],
                loss_of_test=row.get("test_loss"),
                metrics=metrics if is_tested else {},
            )
        )
        if score is not None:
            self.evaluations.append(self.rounds[-1])
        # Clients answered and have no loss: it was not finite, and the file knows no such number.
        self.diverged = self.diverged or (row["clients"] > 0 and row.get("loss") is None)

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        """Sum up in one line, for a notebook; `to_frame` has the rounds."""
        name, last = self.score.removeprefix("-"), self.last
        score = f", {name} {readable_score(self.final_accuracy, name)}" if self.evaluations else ""
        diverged = ", diverged" if self.diverged else ""
        return f"<History: {last.rounds:,} rounds{score}, uplink {readable_bytes(last.uplink_bytes)}{diverged}>"

    @property
    def last(self) -> Round:
        """The state after the last round."""
        return self.rounds[-1] if self.rounds else START

    @property
    def final_accuracy(self) -> float | None:
        """The accuracy that was measured last."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    def to_frame(self) -> Any:
        """Return a DataFrame of pandas with a row per round: losses, metrics, and the bytes of all rounds so far.

        Example:
            >>> History().to_frame().empty
            True

        """
        return frame_of(self.as_rows())

    def as_rows(self) -> list[dict[str, Any]]:
        """Return what `to_frame` holds, a dict per round; metrics are None where the model was not tested."""
        names = dict.fromkeys(name for entry in self.evaluations for name in entry.metrics)
        return [
            {
                "rounds": entry.rounds,
                "loss": entry.loss,
                "test_loss": entry.loss_of_test,
                **{name: entry.metrics.get(name) for name in names},
                "uplink_bytes": entry.uplink_bytes,
                "payload_bytes": entry.payload_bytes,
                "downlink_bytes": entry.downlink_bytes,
                "updates": entry.updates,
            }
            for entry in self.rounds
        ]

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller score is the better one, as of a loss."""
        return self.score.startswith("-")

    def meets(self, score: float | None, target: float) -> bool:
        """Return whether a score is at least as good as a target."""
        if score is None:
            return False
        return score <= target if self.lower_is_better else score >= target

    def first_at(self, target: float) -> Round | None:
        """Return the first evaluation at which an accuracy was met."""
        return next((entry for entry in self.evaluations if self.meets(entry.accuracy, target)), None)

    def accuracy_at(self, budget: int, count: Count = "uplink_bytes", round_cap: int | None = None) -> float | None:
        """Return the accuracy of the last evaluation within a number of bytes, and of rounds where there is a cap."""
        within = [
            entry.accuracy
            for entry in self.evaluations
            if getattr(entry, count) <= budget and (round_cap is None or entry.rounds <= round_cap)
        ]
        return within[-1] if within else None

    def has_spent(self, budget: int, count: Count = "uplink_bytes", round_cap: int | None = None) -> bool:
        """Return whether no later evaluation counts for `accuracy_at`."""
        return getattr(self.last, count) >= budget or (round_cap is not None and self.last.rounds >= round_cap)

    def fell_back(self, target: float) -> bool:
        """Return whether it diverged, or ended below a target that it had reached."""
        return self.diverged or (self.first_at(target) is not None and not self.meets(self.final_accuracy, target))


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a DataFrame, or raise MissingDependencyError."""
    try:
        import pandas
    except ModuleNotFoundError:
        message = "to_frame needs the package pandas, which is missing; pip install pandas"
        raise MissingDependencyError(message) from None
    return pandas.DataFrame(list(rows))


@dataclass(frozen=True)
class RunRecord:
    """One run with its config and history."""

    folder: Path  # a mere name where none was made
    config: RunConfig
    history: History
    starts: tuple[dict[str, Any], ...] = ()  # versions and machine, one entry per start
    summary: dict[str, Any] | None = None  # written when a run ends, be it before its last round

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.config.seed

    @property
    def finished(self) -> bool:
        """Whether it ran all its rounds, or ended before: on purpose, at a target say, or because it diverged."""
        return self.state != "unfinished"

    @property
    def state(self) -> Literal["finished", "ended early", "diverged", "unfinished"]:
        """How the run stands."""
        done = self.history.last.rounds
        if self.summary is not None and self.summary["rounds"] == done and self.history.diverged:
            return "diverged"
        if done == self.config.rounds:
            return "finished"
        return "ended early" if self.summary is not None and self.summary["rounds"] == done else "unfinished"


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
    there = [float(value) for value in values if value is not None]
    if not there:
        return None
    return Statistic(mean(there), stdev(there) if len(there) > 1 else None, len(there), len(values))


def read_run(folder: str | Path) -> RunRecord:
    """Read and check everything that a run folder says of its run.

    Args:
        folder: of `fedmpdd run`, `fedmpdd compare`, or a call with `out=`.

    Returns:
        Config, history and summary. A run that is going on, or was killed, can be read too.

    Example:
        >>> read_run("runs/demo-001").history.final_accuracy  # doctest: +SKIP

    """
    folder = Path(folder)
    try:
        config = read_config(folder)
    except ConfigError as error:
        raise RunError(f"{folder / CONFIG} is not the config of a run: {error}; leave this folder out") from None
    starts = read_starts(folder, "delete it, or leave this folder out")
    history, summary = read_history(folder, config.score)
    if history.last.rounds > config.rounds:
        raise RunError(
            f"{folder / METRICS} has {history.last.rounds} rounds, but {CONFIG} says rounds = {config.rounds}: one of "
            "them was changed; leave this folder out"
        )
    return RunRecord(folder, config, history, tuple(map(without_config_record, starts)), summary)


def read_history(folder: Path, score: str = "accuracy") -> tuple[History, dict[str, Any] | None]:
    """Return the history of a run folder by that score, and its summary if there is one."""
    history = History.of(read_metrics(folder), score)
    path = folder / SUMMARY
    if not path.is_file():
        return history, None
    summary = read_json(path, f"delete it if its run is to go on, or {LEAVE_OUT}")
    is_table = isinstance(summary, dict)
    came = (summary.get("rounds"), summary.get("uplink_bytes")) if is_table else summary
    # It is written after its last line: a run that went on since has more lines, but not other ones.
    if came not in [(entry.rounds, entry.uplink_bytes) for entry in (START, *history.rounds)]:
        raise RunError(
            f"{path} does not belong to {METRICS}, which has {history.last.rounds} rounds and "
            f"{history.last.uplink_bytes} uplink bytes where the summary says {came!r:.60}: one of them was changed; "
            "put back what it was, or delete the folder to train it again"
        )
    history.diverged = history.diverged or "diverged" in summary
    return history, summary


def read_config(folder: Path, trust_imports: Trust | None = None) -> RunConfig:
    """Return the resolved config of a run folder, if it is what the run was trained with.

    trust_imports: what the config names may be imported then; None to read it alone, which imports nothing.
    """
    path = folder / CONFIG
    if not path.is_file():
        how = f"start one with fedmpdd run CONFIG --out {folder}" if not folder.exists() else "name another folder"
        raise RunError(f"{folder} is not a run: it has no {CONFIG}; {how}")
    remedy = f"put back what it was, or delete {folder} and start the run again"
    values = read_json(path, remedy, largest=LARGEST_CONFIG)
    config = parse_config(values, follow_imports=False)
    starts = read_starts(folder, remedy)
    check_unchanged(path, values, starts)
    if trust_imports is None:
        return config
    check_trust(import_paths(values), str(path), trust_imports)
    find_again(_sources_in(starts))
    return parse_config(values)


def _sources_in(starts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The files that a run was last trained with; what is damaged in it is left out."""
    sources = starts[-1].get("sources", {}) if starts else {}
    kept = sources.items() if isinstance(sources, dict) else ()
    return {
        key: source
        for key, source in kept
        if isinstance(source, dict) and all(isinstance(source.get(name), str) for name in ("path", "file"))
    }


def read_starts(folder: Path, remedy: str) -> list[dict[str, Any]]:
    """Return the environment of every start of a run, or raise RunError that ends in `remedy`."""
    path = folder / ENVIRONMENT
    starts = read_json(path, remedy) if path.is_file() else []
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise RunError(f"{path} is damaged: expected a list with one table per start; {remedy}")
    return starts


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rounds of a run; a last line that was cut off by a crash is left out."""
    path = folder / METRICS
    if not path.is_file():
        return
    cut_off = False
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b"")):
            if cut_off:  # of the line before, which then is not the last
                raise _damaged_line(path, number, "it is no line of metrics")
            row = _row_of(line)
            if row is None:
                cut_off = True
            elif problem := problem_of(row, number):
                raise _damaged_line(path, number + 1, problem)
            else:
                yield row


def problem_of(row: Any, number: int) -> str | None:
    """Say what keeps the metrics of a round from being counted, if anything does."""
    of_this_round = {"round": (lambda value: is_count(value) and value == number, f"{number}")}
    return problem_in(row, {**of_this_round, **_EXPECTED})


def _row_of(line: bytes) -> dict[str, Any] | None:
    """The metrics of a line, None if it is not whole."""
    try:
        row = parse_json(line) if line.endswith(b"\n") else None
    except DocumentError:
        return None
    return row if isinstance(row, dict) and {"round", *_EXPECTED} - _OPTIONAL <= set(row) else None


def _damaged_line(path: Path, number: int, problem: str) -> RunError:
    return RunError(
        f"{path}, line {number} is damaged: {problem}; put back what it was, leave the folder out, or delete "
        f"{path.parent} and start the run again"
    )


_EXPECTED: Expected = {
    "clients": (is_count, "a whole number"),
    **dict.fromkeys(("uplink_bytes", "payload_bytes", "downlink_bytes"), (is_count, "a number of bytes")),
    "accuracy": (
        lambda value: value is None or (is_number(value) and 0 <= value <= 1),
        "null or a number from 0 to 1",
    ),
    **dict.fromkeys(("loss", "test_loss"), (lambda value: value is None or is_number(value), "null or a number")),
    "metrics": (
        lambda value: (
            value is None or (isinstance(value, dict) and all(one is None or is_number(one) for one in value.values()))
        ),
        "null or a table of numbers",
    ),
}
_OPTIONAL = {"loss", "test_loss", "metrics"}  # which lines of some versions or tasks lack
