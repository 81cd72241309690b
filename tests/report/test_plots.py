from math import sqrt
from pathlib import Path

import pytest

from fedmpdd.report.collect import collect
from fedmpdd.report.numbers import tasks_of
from fedmpdd.report.plots import LOSS_POINTS, accuracy_curve, curves_of, loss_curve, widest_window
from tests.report.fixtures import make_run, make_runs


def test_a_group_is_a_mean_with_its_spread_and_single_runs(tmp_path: Path) -> None:
    (task,) = tasks_of(collect([make_runs(tmp_path)]).runs)
    group = curves_of(task)[1]
    curve = group["mean"]["accuracy"]
    assert (curve["rounds"], curve["uplink"], curve["payload"]) == ([2, 4, 6], [20, 40, 60], [16, 32, 48])
    assert curve["mean"] == pytest.approx([0.25, 0.65, 0.70])
    assert curve["sd"] == pytest.approx([0.1 / sqrt(2)] * 3, rel=1e-5)
    assert [run["seed"] for run in group["runs"]] == [1, 2]
    assert group["runs"][0]["accuracy"]["mean"] == [0.3, 0.6, 0.75]
    assert group["runs"][0]["accuracy"]["sd"] == [None] * 3
    assert group["mean"]["loss"]["mean"] == pytest.approx([2.0, 1.9, 1.8, 1.7, 1.6, 1.5])


def test_only_evaluations_that_all_runs_have_are_averaged(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {2: 0.4, 4: 0.6}, done=4)
    make_run(tmp_path / "b", {2: 0.2}, done=3, seed=2)
    runs = collect([tmp_path]).runs
    assert accuracy_curve(runs)["rounds"] == [2]
    assert accuracy_curve(runs)["mean"] == pytest.approx([0.3])
    assert loss_curve(runs)["rounds"] == [1, 2, 3]


def test_rounds_in_which_no_client_answered_leave_no_point(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {}, rounds=3, losses=[3.0, None, 1.0])
    curve = loss_curve(collect([tmp_path]).runs)
    assert (curve["rounds"], curve["mean"]) == ([1, 3], [3.0, 1.0])


def test_a_long_loss_curve_is_averaged_to_few_points(tmp_path: Path) -> None:
    rounds = 2 * LOSS_POINTS - 1
    make_run(tmp_path / "a", {}, rounds=rounds, losses=[float(i) for i in range(rounds)])
    (task,) = tasks_of(collect([tmp_path]).runs)
    curve = loss_curve(task.groups[0].runs)
    assert widest_window(task.groups) == 2
    assert len(curve["mean"]) == LOSS_POINTS
    assert (curve["rounds"][0], curve["mean"][0]) == (2, 0.5)
    assert (curve["rounds"][-1], curve["mean"][-1]) == (rounds, rounds - 1)  # the last window is cut short


def test_a_run_without_a_round_has_empty_curves(tmp_path: Path) -> None:
    make_run(tmp_path / "new", {}, done=0)
    runs = collect([tmp_path]).runs
    assert accuracy_curve(runs)["mean"] == loss_curve(runs)["mean"] == []
