"""The tasks that are written for three frameworks: what can be said of them without the other two being installed."""

import importlib
import io
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict

from benchmarks.tasks import child
from benchmarks.tasks import measure as bench
from benchmarks.tasks.child import flat_parameters, stamp
from benchmarks.tasks.lines import count_lines
from fedmpdd.errors import InputError
from fedmpdd.server.replica import Replica
from tests.flower.grid import InProcessGrid

FOLDER = Path(bench.__file__).parent
TASKS = list(bench.SMALL_CODECS)


def program(task: str, name: str) -> Any:
    return importlib.import_module(f"benchmarks.tasks.{task}.{name}")


@pytest.mark.parametrize("task", TASKS)
def test_our_programs_learn(task: str) -> None:
    problem = bench.problem_of(task)
    before, _ = problem.evaluate(problem.make_model())
    for codec in ("fedsgd", bench.SMALL_CODECS[task]):
        history = program(task, "with_fedmpdd").train(rounds=5, codec=codec)
        assert len(history) == 5
        loss, _ = problem.evaluate(history.model)
        assert loss < before
        assert history.last.loss_of_test == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_a_small_update_is_a_small_part_of_a_gradient(task: str) -> None:
    def update_bytes(codec: str) -> float:
        last = program(task, "with_fedmpdd").train(rounds=1, codec=codec).last
        return float(last.uplink_bytes / last.updates)

    assert 20 * update_bytes(bench.SMALL_CODECS[task]) < update_bytes("fedsgd")


@pytest.mark.parametrize("task", TASKS)
def test_flower_makes_the_same_model(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of all clients, through Flower's messages and strategy in this process; nothing is random there."""
    problem, flower = bench.problem_of(task), program(task, "with_flower")
    monkeypatch.setattr(problem, "CLIENTS", 10)
    monkeypatch.setattr(flower, "load_clients", cache(problem.load_clients))
    first, model = flat_parameters(problem.make_model()), problem.make_model()
    grid = InProcessGrid(flower.client_app, problem.CLIENTS)
    for node, context in grid.contexts.items():
        context.node_config["partition-id"] = node
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    flower.make_server(model, 2, problem.CLIENTS)(grid, context)
    ours = flat_parameters(program(task, "with_fedmpdd").train(rounds=2, per_round=problem.CLIENTS).model)
    assert (flat_parameters(model) - ours).norm() < 1e-3 * (ours - first).norm()


@pytest.mark.parametrize("task", TASKS)
def test_problems_are_the_same_for_all_programs(task: str) -> None:
    problem = bench.problem_of(task)
    clients = problem.load_clients()
    assert [len(targets) for _, targets in clients] == [problem.EXAMPLES] * problem.CLIENTS
    assert all(torch.equal(*pair) for pair in zip(clients[7], problem.load_clients()[7], strict=True))
    assert torch.equal(flat_parameters(problem.make_model()), flat_parameters(problem.make_model()))


def test_lines_are_those_that_hold_code(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        '"""What this is.\n\nIn a docstring."""\n'
        "import os\n"
        "from json import (\n    dumps,\n    loads,\n)\n"
        "\n"
        "# a comment\n"
        "def f(value):  # 1\n"
        '    """Another docstring."""\n'
        "    return dumps(  # 2\n"
        "        value,  # 3\n"
        "\n"
        "        # a comment within\n"
        "    )  # 4\n"
        'text = """one\n\nthree"""  # 5 to 7\n',
        encoding="utf-8",
    )
    assert count_lines(path) == 7


def test_programs_of_all_tasks_are_there() -> None:
    for task in TASKS:
        for one in bench.IMPLEMENTATIONS:
            assert count_lines(FOLDER / task / f"{one.program}.py") > 10


def test_a_framework_that_is_missing_is_left_out_with_its_reason() -> None:
    missing = bench.Implementation("Elsewhere", "with_flower", ("no_such_package",))
    (row,) = bench.run(["digits"], implementations=(missing,))
    assert row.reason is not None
    assert "no_such_package not installed; `make rivals`" in row.reason
    assert row.lines > 10


def test_a_program_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.SMALL_CODECS, "regression", "mpdd:m=nothing")
    broken = bench.Implementation("Broken", "with_fedmpdd", is_small=True)
    (row,) = bench.run(["regression"], repetitions=1, rounds=5, implementations=(broken,))
    assert row.reason is not None
    assert "m = 'nothing'" in row.reason


def test_a_training_in_a_process_of_its_own() -> None:
    measured = bench.train("regression", bench.IMPLEMENTATIONS[0], 6, 5)
    assert len(measured["stamps"]) == 6
    assert set(measured) >= {"seconds", "loss", "score", "update_bytes"}


class TrainingHere:
    """What `subprocess.Popen` returns, for a training that takes place in this process: another start takes seconds."""

    def __init__(self, command: list[str], **options: Any) -> None:
        assert command[1:3] == ["-m", child.__name__]
        self.arguments = command[2:]

    def communicate(self, timeout: float) -> tuple[str, None]:
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
            patch.setattr(sys, "argv", self.arguments)
            patch.setattr(Replica, "take", Replica.take)  # is stamped, and then is as it was
            child.main()
        return out.getvalue(), None

    def kill(self) -> None:
        """It has ended."""


def test_ours_is_measured_in_turns_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", TrainingHere)
    said: list[str] = []
    ours = bench.IMPLEMENTATIONS[:2]
    rows = list(bench.run(["regression"], repetitions=1, rounds=6, say=said.append, implementations=ours))
    assert [row.implementation for row in rows] == [one.name for one in ours]
    assert [row.difference for row in rows] == [0.0, None]
    assert all(row.rounds_per_s[0] > 0 and row.core_ms[0] > 0 and row.update_bytes for row in rows)
    assert rows[0].ratios == [1.0]
    assert len(said) == 3


def test_rounds_are_timed_after_the_first_few() -> None:
    assert bench.median_round([0.0, 5.0, 10.0, 15.0, 15.5, 16.0, 16.5]) == pytest.approx(0.5)
    assert bench.median_round([0.0, 0.25]) == pytest.approx(0.25)


def test_a_stamp_is_left_by_every_call() -> None:
    class Server:
        def step(self, value: int) -> int:
            return value + 1

    stamps = stamp(Server, "step")
    assert [Server().step(1), Server().step(2)] == [2, 3]
    assert len(stamps) == 2
    assert all(first <= second for first, second in zip(*stamps, strict=True))


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(InputError, match="task 'chess' is unknown: expected some of regression, digits, text"):
        list(bench.run(["chess"]))
