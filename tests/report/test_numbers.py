"""Numbers of folders whose answers can be worked out by hand."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.report.collect import collect
from fedmpdd.report.numbers import Goals, Row, rows_of, tables, tasks_of
from fedmpdd.runs.history import Statistic, statistic
from tests.report.fixtures import ONE_BIT, make_audit, make_run, make_runs


def rows(folder: Path, *, targets: tuple[float, ...] = (), budgets: tuple[int, ...] = ()) -> list[Row]:
    (task,) = tasks_of(collect([folder]).runs)
    return rows_of(task, Goals(targets, budgets))


def close(value: Statistic | None, mean: float, sd: float) -> bool:
    assert value is not None
    return value.mean == pytest.approx(mean) and value.sd == pytest.approx(sd)


def test_mean_and_sample_deviation_over_seeds() -> None:
    assert statistic([1.0, 2.0, 3.0]) == Statistic(2.0, 1.0, 3, 3)
    assert statistic([5.0]) == Statistic(5.0, None, 1, 1)
    assert statistic([None, 5.0]) == Statistic(5.0, None, 1, 2)
    assert statistic([None]) is None


def test_final_accuracy_bytes_and_rounds(tmp_path: Path) -> None:
    fedsgd, onebit = rows(make_runs(tmp_path))
    assert (fedsgd.name, onebit.name) == ("fedsgd", "mpdd:m=4:bits=1:family=hadamard:keys=partitioned")
    assert (fedsgd.seeds, fedsgd.runs, fedsgd.finished, fedsgd.rounds) == ([1, 2], 2, 2, 6)
    assert close(fedsgd.final_accuracy, 0.75, 0.1 / sqrt(2))
    assert close(onebit.final_accuracy, 0.70, 0.1 / sqrt(2))
    assert fedsgd.against_first == 0
    assert onebit.against_first == pytest.approx(-0.05)
    assert onebit.uplink_bytes == Statistic(60, 0, 2, 2)
    assert onebit.payload_bytes == Statistic(48, 0, 2, 2)


def test_bytes_and_rounds_to_a_target(tmp_path: Path) -> None:
    fedsgd, onebit = (row.to_target[0] for row in rows(make_runs(tmp_path), targets=(0.7,)))
    assert close(fedsgd.rounds, 5, sqrt(2))  # 6 and 4
    assert close(fedsgd.uplink_bytes, 500, 100 * sqrt(2))
    assert close(fedsgd.payload_bytes, 400, 80 * sqrt(2))
    assert (fedsgd.uplink_against_first, fedsgd.payload_against_first) == (1, 1)
    assert close(onebit.uplink_bytes, 50, 10 * sqrt(2))
    assert onebit.uplink_against_first == pytest.approx(0.1)
    assert onebit.payload_against_first == pytest.approx(0.1)


def test_a_target_that_some_seeds_miss_has_no_ratio(tmp_path: Path) -> None:
    fedsgd, onebit = rows(make_runs(tmp_path), targets=(0.72, 0.99))
    assert fedsgd.to_target[0].uplink_bytes == Statistic(600, None, 1, 2)
    assert onebit.to_target[0].rounds == Statistic(6, None, 1, 2)
    assert onebit.to_target[0].uplink_against_first is None
    assert fedsgd.to_target[1].rounds is None


def test_accuracy_at_a_budget_by_frames_and_by_payload(tmp_path: Path) -> None:
    fedsgd, onebit = (row.at_budget for row in rows(make_runs(tmp_path), budgets=(50, 450)))
    assert fedsgd[0].accuracy is None  # the first evaluation comes after 200 bytes
    assert onebit[0].against_first is None
    assert close(onebit[0].accuracy, 0.65, 0.1 / sqrt(2))  # 40 bytes, round 4
    assert close(onebit[0].accuracy_by_payload, 0.70, 0.1 / sqrt(2))  # 48 bytes, round 6
    assert close(fedsgd[1].accuracy, 0.65, 0.1 / sqrt(2))
    assert onebit[1].against_first == pytest.approx(0.05)  # it ended below the budget
    assert onebit[1].payload_against_first == pytest.approx(0.0 + 0.70 - 0.65)


def test_unfinished_runs_do_not_count_beside_finished_ones(tmp_path: Path) -> None:
    make_runs(tmp_path)
    make_run(tmp_path / "a-3", {2: 0.1}, seed=3, done=3)
    make_run(tmp_path / "c-1", {2: 0.4}, codec={"name": "mpdd", "m": 9}, seed=1, done=3)
    fedsgd, _, alone = rows(tmp_path)
    assert (fedsgd.seeds, fedsgd.runs, fedsgd.finished) == ([1, 2], 3, 2)
    assert close(fedsgd.final_accuracy, 0.75, 0.1 / sqrt(2))
    assert (alone.finished, alone.rounds, alone.rounds_wanted) == (0, 3, 6)
    assert alone.final_accuracy == Statistic(0.4, None, 1, 1)


def test_runs_that_ended_at_a_target_differ_in_length(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {2: 0.4, 4: 0.8}, seed=1, done=4, ended=True)
    make_run(tmp_path / "b", {2: 0.8}, seed=2, done=2, ended=True)
    (row,) = rows(tmp_path, targets=(0.8,))
    assert (row.finished, row.rounds, row.most_rounds, row.rounds_wanted) == (2, 2, 4, 6)
    assert close(row.to_target[0].rounds, 3, sqrt(2))


def test_a_run_without_a_round_has_no_accuracy(tmp_path: Path) -> None:
    make_run(tmp_path / "new", {}, done=0)
    (row,) = rows(tmp_path, targets=(0.5,), budgets=(10,))
    assert (row.rounds, row.final_accuracy, row.to_target[0].rounds) == (0, None, None)
    assert row.uplink_bytes == Statistic(0, None, 1, 1)


def test_groups_are_named_by_what_sets_them_apart_and_compared_within_a_task(tmp_path: Path) -> None:
    for name, settings in (("a", {"lr": 0.1}), ("b", {"lr": 0.2}), ("c", {"model": "lenet"})):
        make_run(tmp_path / name, {6: 0.5}, codec=ONE_BIT, **settings)
    tasks = tasks_of(collect([tmp_path]).runs)
    codec = "mpdd:m=4:bits=1:family=hadamard:keys=partitioned"
    assert [(task.model, [group.name for group in task.groups]) for task in tasks] == [
        ("logistic", [f"{codec} · lr=0.1", f"{codec} · lr=0.2"]),
        ("lenet", [codec]),
    ]


@pytest.mark.parametrize(
    ("targets", "budgets", "message"),
    [((1.5,), (), "target 1.5 is no accuracy"), ((float("nan"),), (), "target nan"), ((), (0,), "budget 0")],
)
def test_wishes_that_cannot_be_meant(
    tmp_path: Path, targets: tuple[float, ...], budgets: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tables(collect([make_runs(tmp_path)]), Goals(targets, budgets))


def test_the_document_holds_rows_audits_and_what_was_left_out(tmp_path: Path) -> None:
    make_runs(tmp_path)
    make_audit(tmp_path / "z")
    document = tables(collect([tmp_path]), Goals((0.7,), (50,)))
    assert document["rows"][0]["codec"] == "fedsgd"
    assert document["rows"][0]["to_target"][0]["uplink_bytes"]["mean"] == 500
    assert document["audits"][0]["finished"]
    assert document["audits"][0]["rows"][0]["verdict"] == "reconstructed"
    assert document["left_out"] == []


def test_a_score_that_falls_is_read_as_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"metric": "loss", "loss": "torch.nn.functional:mse_loss"}
    make_run(tmp_path / "a", {2: 3.0, 4: 0.4, 6: 0.2}, **settings)
    make_run(tmp_path / "b", {2: 2.0, 4: 0.9, 6: 0.6}, codec=ONE_BIT, uplink=10, **settings)
    (task,) = tasks_of(collect([tmp_path]).runs)
    assert (task.score, task.lower_is_better) == ("loss", True)
    first, second = rows_of(task, Goals((0.5, 2.5), (45,)))
    assert first.score == "loss"
    assert close_to(first.final_accuracy, 0.2)
    assert second.against_first == pytest.approx(0.4)
    assert [close_to(goal.rounds, rounds) for goal, rounds in zip(first.to_target, (4, 4), strict=True)] == [True, True]
    assert second.to_target[0].rounds is None  # 0.6 is above 0.5
    assert close_to(second.to_target[1].rounds, 2)
    assert close_to(second.at_budget[0].accuracy, 0.9)


def test_scores_of_different_metrics_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {6: 0.5})
    make_run(tmp_path / "b", {6: 0.5}, metric="f1", metrics=["f1=mymetrics:f1"])
    assert [task.score for task in tasks_of(collect([tmp_path]).runs)] == ["accuracy", "f1"]


def close_to(value: Statistic | None, mean: float) -> bool:
    return value is not None and value.mean == pytest.approx(mean)
