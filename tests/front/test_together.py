"""Trainings side by side: their gradients in one pass, each with its own codec, seed and folder."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedmpdd as fm
from fedmpdd.errors import ConfigError
from fedmpdd.runs import driver
from fedmpdd.simulation.clients import ClientStep
from tests.simulation.test_linear_layers import task

CODECS: list[fm.Codec | str] = [fm.FedSGD(), fm.MPDD(m=8, bits=1, family="hadamard"), "topk:k=5:error_feedback=true"]


def compared(problem: fm.Task, **settings: Any) -> Any:
    return fm.compare(problem, CODECS, seeds=2, rounds=4, batch=3, lr=0.5, progress=False, **settings)


def losses(result: Any) -> torch.Tensor:
    return torch.tensor([[one["loss"] for one in row.run.history.as_rows()] for row in result.rows])


def test_every_training_is_what_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    whole = ClientStep.gradients_of_all

    def counted(step: ClientStep, requests: Any) -> Any:
        sizes.append(len(requests))
        return whole(step, requests)

    monkeypatch.setattr(ClientStep, "gradients_of_all", counted)
    problem = task()
    alone, together = compared(problem), compared(problem, together=4)
    assert sizes == [1] * 24 + [4] * 4 + [2] * 4
    torch.testing.assert_close(losses(alone), losses(together), rtol=1e-4, atol=1e-5)
    assert [row.run.seed for row in together.rows] == [17, 18] * 3


def test_local_steps_go_together_too() -> None:
    problem = task(clients=3)  # 14, 13 and 13 examples: clients are done after different numbers of steps
    settings = {"local_epochs": 1, "local_lr": 0.1}
    torch.testing.assert_close(
        losses(compared(problem, **settings)),
        losses(compared(problem, together=6, **settings)),
        rtol=1e-4,
        atol=1e-5,
    )


def test_models_with_other_frozen_numbers_are_computed_apart() -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 4).requires_grad_(False), nn.Flatten(), nn.Linear(24, 3))

    problem = task(made)  # type: ignore[arg-type]
    torch.testing.assert_close(losses(compared(problem)), losses(compared(problem, together=2)), rtol=1e-4, atol=1e-5)


def test_folders_are_gone_on_with(tmp_path: Path) -> None:
    problem = task()
    fm.compare(problem, CODECS[:2], seeds=1, rounds=2, batch=3, lr=0.5, progress=False, out=tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    result = fm.compare(
        problem, CODECS[:2], seeds=2, rounds=2, batch=3, lr=0.5, progress=False, out=tmp_path, together=3
    )
    assert len(result.rows) == 4
    assert {path.name for path in tmp_path.iterdir()} > before
    assert all(row.run.history.last.rounds == 2 for row in result.rows)


def test_one_that_diverges_ends_alone() -> None:
    result = fm.compare(
        task(), [fm.FedSGD(), fm.MPDD(m=8)], seeds=1, rounds=60, batch=3, lr=1e30, together=2, progress=False
    )
    by_lr = fm.compare(task(), [fm.FedSGD()], seeds=1, rounds=3, batch=3, lr=0.1, together=2, progress=False)
    assert all(row.error is not None for row in result.rows)
    assert by_lr.rows[0].error is None


def test_an_interruption_pauses_all_of_them(tmp_path: Path) -> None:
    class Interrupting(driver.Callback):
        def after_round(self, training: driver.Training, metrics: Any) -> None:
            if metrics.round == 1:
                signal.raise_signal(signal.SIGINT)

    problem, settings = task(), {"seeds": 2, "rounds": 6, "batch": 3, "lr": 0.5, "progress": False, "together": 2}
    with pytest.raises(KeyboardInterrupt):
        fm.compare(problem, [fm.FedSGD()], out=tmp_path, callbacks=[_Once(Interrupting())], **settings)  # type: ignore[arg-type]
    rounds = [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in sorted(tmp_path.iterdir())]
    assert rounds == [2, 2]
    result = fm.compare(problem, [fm.FedSGD()], out=tmp_path, **settings)  # type: ignore[arg-type]
    assert [row.run.history.last.rounds for row in result.rows] == [6, 6]


class _Once(driver.Callback):
    """Passes on the rounds of the first training that it hears of."""

    def __init__(self, callback: driver.Callback) -> None:
        self._callback = callback
        self._first: driver.Training | None = None

    def after_round(self, training: driver.Training, metrics: Any) -> None:
        self._first = training if self._first is None else self._first
        if training is self._first:
            self._callback.after_round(training, metrics)


@pytest.mark.parametrize("together", [0, -1, True, 2.0, "all"])
def test_how_many_is_a_number(together: Any) -> None:
    with pytest.raises(ConfigError, match=r"together = .*expected how many"):
        fm.compare(task(), [fm.FedSGD()], together=together)


def test_a_grid_of_step_sizes_is_one_call(tmp_path: Path) -> None:
    problem = task()
    grid = {f"lr-{lr:g}": fm.run_config(problem, fm.FedSGD(), rounds=3, batch=3, lr=lr) for lr in (0.1, 0.5)}
    histories = fm.train_together(grid, problem, out=tmp_path, progress=False)
    again = fm.train_together(grid, problem, out=tmp_path, progress=False)
    assert list(histories) == list(again) == ["lr-0.1", "lr-0.5"]
    for name, config in grid.items():
        alone = fm.train(config, task=problem, progress=False)
        first = [entry["loss"] for entry in histories[name].as_rows()]
        assert first == pytest.approx([entry["loss"] for entry in alone.as_rows()], rel=1e-4)
        assert first == [entry["loss"] for entry in again[name].as_rows()]
    assert fm.train_together({}, problem) == {}


def test_a_training_that_diverges_says_so() -> None:
    problem = task()
    grid = {f"{lr:g}": fm.run_config(problem, fm.FedSGD(), rounds=60, batch=3, lr=lr) for lr in (0.1, 1e30)}
    histories = fm.train_together(grid, problem, progress=False)
    assert [history.diverged for history in histories.values()] == [False, True]


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "expected a dict of configs"),
        ({"a": {"lr": 0.1}}, "expected a dict of configs"),
        ({"../a": None}, "a folder can have"),
    ],
)
def test_configs_have_names(configs: Any, message: str) -> None:
    problem = task()
    if configs == {"../a": None}:
        configs = {"../a": fm.run_config(problem, fm.FedSGD())}
    with pytest.raises(ConfigError, match=message):
        fm.train_together(configs, problem)
