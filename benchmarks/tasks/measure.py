"""The same tasks written for three frameworks, timed in turns: `python -m benchmarks tasks`.

Each training runs in a process of its own. Frameworks take turns within every repetition, so that what else the
machine does meets them alike.
"""

import importlib
import importlib.util
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.tasks.child import MARK, flat_parameters
from benchmarks.tasks.lines import count_lines
from fedmpdd.errors import InputError

SMALL_CODECS = {  # of each task, for the row that shows what an update could cost
    "regression": "mpdd:m=64:bits=1:family=hadamard",
    "digits": "mpdd:m=400:bits=1:family=hadamard",
    "text": "mpdd:m=1600:bits=1:family=hadamard",
}
WARM_UP = 3  # rounds of each training that are not timed: frameworks start threads and processes in them
CHECK_ROUNDS = 10
MISSING = "not installed; `make rivals` makes an environment in build/rivals that has it"
_FOLDER = Path(__file__).parent
_SECONDS = 900  # of one training at most
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Implementation:
    """A program, and how it is started."""

    name: str
    program: str  # the module in a task's folder
    needs: tuple[str, ...] = ()
    is_small: bool = False  # whether its updates are made by the task's small codec, ours alone
    threads: int = 0  # of PyTorch; 0 is its default, one for each core
    processes: int = 1
    poll_s: float = 0.0  # seconds between two questions of Flower's server for replies; 0 is its default, 0.1

    @property
    def is_one_process(self) -> bool:
        """Whether the process that trains does all the work."""
        return self.processes == 1 and "ray" not in self.needs

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that it lacks here."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


IMPLEMENTATIONS = (
    Implementation("fedmpdd, FedSGD", "with_fedmpdd"),
    Implementation("fedmpdd, FedMPDD", "with_fedmpdd", is_small=True),
    Implementation("Flower", "with_flower", ("flwr", "ray")),
    Implementation("Flower, polls of 5 ms", "with_flower", ("flwr", "ray"), poll_s=0.005),
    Implementation("pfl-research", "with_pfl", ("pfl",), threads=1),
    Implementation("pfl-research, 2 processes", "with_pfl", ("pfl",), threads=1, processes=2),
)
OURS = IMPLEMENTATIONS[0].name


@dataclass
class Row:
    """What was measured of one task and implementation."""

    task: str
    implementation: str
    lines: int
    problem_lines: int  # of model and data, which all programs of a task share
    reason: str | None = None  # why nothing was measured
    rounds_per_s: list[float] = field(default_factory=list)  # of each repetition
    ratios: list[float] = field(default_factory=list)  # to ours in the same repetition
    core_ms: list[float] = field(default_factory=list)  # of a round on all cores, where one process does all the work
    seconds: list[float] = field(default_factory=list)  # of the whole call, with what starts and stops
    loss: float | None = None
    score: float | None = None
    update_bytes: float | None = None
    difference: float | None = None  # of the model to ours in the check: see `_check_mathematics`

    def as_dict(self) -> dict[str, object]:
        """Return the row as it stands in the JSON document."""
        medians = {
            name: median(values) if values else None
            for name, values in (
                ("median_rounds_per_s", self.rounds_per_s),
                ("median_ratio", self.ratios),
                ("median_core_ms", self.core_ms),
                ("median_seconds", self.seconds),
            )
        }
        return asdict(self) | medians


def run(
    tasks: list[str],
    *,
    repetitions: int = 3,
    rounds: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    implementations: tuple[Implementation, ...] = IMPLEMENTATIONS,
) -> Iterator[Row]:
    """Measure tasks, and yield a row for each implementation of each.

    Args:
        tasks: of SMALL_CODECS.
        repetitions: trainings of each implementation; they take turns.
        rounds: of each training, instead of the task's own number.
        say: told what was measured, line by line.
        implementations: to measure, ours first.

    """
    for task in tasks:
        if task not in SMALL_CODECS:
            raise InputError(f"task {task!r} is unknown: expected some of {', '.join(SMALL_CODECS)}")
    for task in tasks:
        rows = {one.name: _row(task, one) for one in implementations}
        measured = [one for one in implementations if rows[one.name].reason is None]
        _check_mathematics(task, measured, rows, say)
        for _ in range(repetitions):
            for one in measured:
                _measure(task, one, rows, rounds, say)
        yield from rows.values()


def problem_of(task: str) -> Any:
    """Return the module with model, data and settings of a task."""
    return importlib.import_module(f"benchmarks.tasks.{task}.problem")


def train(task: str, one: Implementation, rounds: int, per_round: int, *, keep_model: bool = False) -> dict[str, Any]:
    """Train in a process of its own, and return what it measured, or raise RuntimeError with the end of its words."""
    asked = {
        "task": task,
        "program": one.program,
        "rounds": rounds,
        "per_round": per_round,
        "options": {"codec": SMALL_CODECS[task]} if one.is_small else {},
        "threads": one.threads,
        "poll_s": one.poll_s,
        "keep_model": keep_model,
    }
    command = [sys.executable, "-m", "benchmarks.tasks.child", json.dumps(asked)]
    environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join([str(_FOLDER.parents[1]), *sys.path])}
    if one.threads:
        environment["OMP_NUM_THREADS"] = str(one.threads)
    if one.processes > 1:
        environment["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{_free_port()}" for _ in range(one.processes))
    processes = [
        subprocess.Popen(
            command,
            env=environment | ({"PFL_WORKER_RANK": str(rank)} if one.processes > 1 else {}),
            cwd=_FOLDER.parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(one.processes)
    ]
    try:
        output, *_ = [
            process.communicate(timeout=_SECONDS)[0] for process in processes
        ]  # of the first, or the only one
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"took over {_SECONDS} s") from None
    finally:
        for process in processes:
            process.kill()
    marked = [line for line in output.splitlines() if line.startswith(MARK)]
    if not marked:
        raise RuntimeError(" / ".join(output.splitlines()[-5:]))
    result: dict[str, Any] = json.loads(marked[-1].removeprefix(MARK))
    return result


def median_round(stamps: Sequence[float]) -> float:
    """Return the seconds of the median round after the first few."""
    kept = stamps[min(WARM_UP, len(stamps) - 2) :]
    return median(later - earlier for earlier, later in pairwise(kept))


def _row(task: str, one: Implementation) -> Row:
    reason = f"{' and '.join(one.missing)} {MISSING}" if one.missing else None
    folder = _FOLDER / task
    return Row(task, one.name, count_lines(folder / f"{one.program}.py"), count_lines(folder / "problem.py"), reason)


def _check_mathematics(
    task: str, measured: list[Implementation], rows: dict[str, Row], say: Callable[[str], None]
) -> None:
    """Compare the models after a few rounds in which nothing is random: all clients, with all their examples.

    The difference is the distance to our model, as a share of the way that our model has gone.
    """
    problem = problem_of(task)
    first = flat_parameters(problem.make_model())
    ours: Tensor | None = None
    for one in measured:
        if one.is_small:  # other updates, by design
            continue
        try:
            trained = train(task, one, CHECK_ROUNDS, problem.CLIENTS, keep_model=True)
        except RuntimeError as error:
            rows[one.name].reason = f"failed: {error}"
            continue
        model = torch.tensor(trained["model"], dtype=torch.float64)
        ours = model if ours is None else ours
        rows[one.name].difference = float((model - ours).norm() / (ours - first).norm())
        say(f"{task}, {one.name}: {rows[one.name].difference:.0e} away after {CHECK_ROUNDS} rounds of all clients")


def _measure(
    task: str, one: Implementation, rows: dict[str, Row], rounds: int | None, say: Callable[[str], None]
) -> None:
    row, problem = rows[one.name], problem_of(task)
    if row.reason is not None:
        return
    try:
        result = train(task, one, rounds or problem.ROUNDS, problem.PER_ROUND)
    except RuntimeError as error:
        row.reason = f"failed: {error}"
        return
    clock, cores = zip(*result["stamps"], strict=True)
    row.rounds_per_s.append(1 / median_round(clock))
    if one.is_one_process:
        row.core_ms.append(1e3 * median_round(cores))
    row.seconds.append(result["seconds"])
    row.loss, row.score, row.update_bytes = result["loss"], result["score"], result.get("update_bytes")
    ours = rows[OURS].rounds_per_s if OURS in rows else []
    if ours:
        row.ratios.append(row.rounds_per_s[-1] / ours[-1])
    say(f"{task}, {one.name}: {row.rounds_per_s[-1]:.1f} rounds/s, score {row.score:.3f}")


def versions() -> dict[str, str]:
    """Return the versions of what was measured."""
    found = {"python": platform.python_version()}
    for name in ("fedmpdd", "torch", "flwr", "ray", "pfl"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
