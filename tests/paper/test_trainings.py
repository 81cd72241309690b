"""One training of a table: killed at every awkward moment, damaged, or of other settings."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from fedmpdd.errors import CodecError, RunError
from fedmpdd.runs.folders import Run
from fedmpdd.runs.history import METRICS, SUMMARY
from fedmpdd.simulation.engine import Federation
from fedmpdd_paper.tables import Table
from fedmpdd_paper.trainings import BEATEN, DONE, Training, Workspace, choose_lr, train
from tests.paper.test_reproduce import small_table


def over_soon() -> Table:
    """A table whose trainings end when the budget is spent, long before their last round."""
    table = small_table()
    config = table.config.model_copy(update={"rounds": 500})
    return replace(table, config=config, target=0.1, second_target=0.2, budget=20 * 10 * 31_400, lrs=(0.05,))


def one(table: Table) -> Training:
    return Training(table, table.methods[0], 17, 0.05)


def test_a_folder_without_a_round_is_gone_on_with(tmp_path: Path) -> None:
    """What a kill after the folder was made, and before its first round, leaves."""
    training = one(small_table())
    folder = training.folder(tmp_path)
    folder.parent.mkdir(parents=True)
    Run.create(folder, training.config.model_copy(update={"device": "cpu"}))
    assert not (folder / METRICS).exists()
    assert train(training, Workspace(tmp_path, "cpu")).rounds == 24


def test_what_was_over_when_it_was_killed_gets_no_further_round(tmp_path: Path) -> None:
    training = one(over_soon())
    whole = train(training, Workspace(tmp_path, "cpu"))
    assert 8 <= whole.rounds < 100
    (training.folder(tmp_path) / DONE).unlink()
    assert train(training, Workspace(tmp_path, "cpu")) == whole
    shutil.rmtree(training.folder(tmp_path))

    def interrupt(_: str, done: int, *__: object) -> None:
        if done == whole.rounds:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(training, Workspace(tmp_path, "cpu"), on_round=interrupt)
    assert train(training, Workspace(tmp_path, "cpu")) == whole


def test_the_budget_is_one_of_scalars_not_of_frames(tmp_path: Path) -> None:
    table = over_soon()
    table = replace(table, budget=10 * 31_400 * 40, methods=table.methods[:1])
    reading = train(one(table), Workspace(tmp_path, "cpu"))
    assert reading.rounds == 40  # of 31,400 bytes a client; frames are eight bytes longer, and would make it 39


def test_a_run_of_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    table = small_table()
    train(one(table), Workspace(tmp_path, "cpu"))
    other = replace(table, config=table.config.model_copy(update={"batch": 8}))
    with pytest.raises(RunError, match=r"was trained with other settings: batch: 4 → 8; choose another folder"):
        train(one(other), Workspace(tmp_path, "cpu"))
    (one(table).folder(tmp_path) / DONE).unlink()
    with pytest.raises(RunError, match="batch: 4 → 8"):
        train(one(other), Workspace(tmp_path, "cpu"))


def test_a_run_that_lost_rounds_is_refused(tmp_path: Path) -> None:
    training = one(small_table())
    train(training, Workspace(tmp_path, "cpu"))
    path = training.folder(tmp_path) / METRICS
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:5]), encoding="utf-8")
    with pytest.raises(RunError, match=r"has 5 rounds and .* where the summary says \(24, "):
        train(training, Workspace(tmp_path, "cpu"))


@pytest.mark.parametrize("stop", [True, False])
def test_a_summary_means_that_a_run_is_over(tmp_path: Path, stop: bool) -> None:
    training = one(over_soon())
    if stop:
        with pytest.raises(Exception, match="seed 17"):
            train(training, Workspace(tmp_path, "cpu"), stopped=lambda: True)
    else:
        train(training, Workspace(tmp_path, "cpu"))
    assert (training.folder(tmp_path) / SUMMARY).exists() is not stop


def test_what_cannot_be_encoded_has_diverged_and_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Federation.round

    def fails_later(self: Federation) -> object:
        if self.next_round == 10:
            raise CodecError("the gradient is too large")
        return rounds(self)

    monkeypatch.setattr(Federation, "round", fails_later)
    training = one(small_table())
    reading = train(training, Workspace(tmp_path, "cpu"))
    assert (reading.rounds, reading.diverged) == (10, True)
    assert '"diverged": "the gradient is too large"' in (training.folder(tmp_path) / SUMMARY).read_text(
        encoding="utf-8"
    )


def test_a_later_step_size_wins_if_it_is_faster_and_is_stopped_if_it_is_not(tmp_path: Path) -> None:
    table = replace(small_table(), target=0.6, lrs=(0.002, 0.1, 0.0001))
    table = replace(table, config=table.config.model_copy(update={"rounds": 200}))
    best = choose_lr(table, table.methods[0], Workspace(tmp_path, "cpu"))
    assert best.lr == 0.1
    slow, fast, slowest = (Training(table, table.methods[0], 17, lr).folder(tmp_path) for lr in table.lrs)
    assert [(folder / DONE).read_text(encoding="utf-8").startswith(BEATEN) for folder in (slow, fast, slowest)] == [
        False,
        False,
        True,
    ]
    reading = Training(table, table.methods[0], 17, 0.0001).read(tmp_path)
    assert reading.rounds == (best.at_target and best.at_target.rounds)
    assert not reading.diverged  # it was only slower
