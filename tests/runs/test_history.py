"""Histories whose answers can be worked out by hand."""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import RunError
from fedmpdd.runs.history import (
    START,
    History,
    Round,
    Statistic,
    read_history,
    read_metrics,
    read_run,
    statistic,
)
from tests.report.fixtures import make_run


def rows(accuracies: Mapping[int, float], rounds: int, **changes: Any) -> list[dict[str, Any]]:
    counts = {"clients": 2, "uplink_bytes": 100, "payload_bytes": 80, "downlink_bytes": 1000, "loss": 1.0}
    return [{"round": k, **counts, "accuracy": accuracies.get(k + 1), **changes} for k in range(rounds)]


def history_of(accuracies: Mapping[int, float], *, rounds: int = 10, uplink: int = 100, payload: int = 80) -> History:
    """A history with these accuracies after so many rounds, and the same bytes in every round."""
    return History.of(rows(accuracies, rounds, uplink_bytes=uplink, payload_bytes=payload))


def test_bytes_add_up() -> None:
    history = history_of({2: 0.5}, rounds=3)
    assert history.last == Round(3, 1.0, None, 300, 240, 3000, 6)
    assert history.evaluations == [history.rounds[1]]
    assert (history.final_accuracy, history.diverged) == (0.5, False)
    assert (History().last, History().final_accuracy) == (START, None)


def test_a_target_is_reached_at_the_first_evaluation_that_meets_it() -> None:
    history = history_of({2: 0.3, 4: 0.62, 6: 0.6, 8: 0.81})
    first, second, never = (history.first_at(target) for target in (0.6, 0.8, 0.9))
    assert first is not None
    assert second is not None
    assert (first.rounds, first.uplink_bytes, first.payload_bytes, second.rounds, never) == (4, 400, 320, 8, None)


def test_accuracy_at_a_budget_is_that_of_the_last_evaluation_it_allows() -> None:
    history = history_of({2: 0.3, 4: 0.62, 6: 0.6})
    assert [history.accuracy_at(budget) for budget in (199, 200, 599, 600, 10**9)] == [None, 0.3, 0.62, 0.6, 0.6]
    assert history.accuracy_at(320, "payload_bytes") == 0.62
    assert history.accuracy_at(10**9, round_cap=5) == 0.62


def test_a_budget_is_spent_once_no_later_evaluation_can_count() -> None:
    history = history_of({2: 0.3, 4: 0.62}, rounds=4)
    assert [history.has_spent(budget) for budget in (399, 400, 401)] == [True, True, False]
    assert history.has_spent(321, "payload_bytes", round_cap=4)
    assert not history.has_spent(321, "payload_bytes", round_cap=5)


def test_it_fell_back_if_it_ended_below_a_target_that_it_had_reached_or_diverged() -> None:
    history = history_of({2: 0.7, 4: 0.55})
    assert history.fell_back(0.6)
    assert not history.fell_back(0.5)
    assert not history.fell_back(0.8)  # which it never reached
    assert History(diverged=True).fell_back(0.8)


def test_clients_without_a_loss_have_diverged_and_a_round_without_clients_has_not() -> None:
    assert History.of(rows({}, 1, loss=None)).diverged
    assert not History.of(rows({}, 1, loss=None, clients=0)).diverged


def test_mean_and_sample_deviation_over_seeds() -> None:
    assert statistic([1.0, 2.0, 3.0]) == Statistic(2.0, 1.0, 3, 3)
    assert statistic([5.0]) == Statistic(5.0, None, 1, 1)
    assert statistic([None, 5.0]) == Statistic(5.0, None, 1, 2)
    assert statistic([None]) is None


def test_a_mean_is_the_nearest_number_to_the_exact_one() -> None:
    """Reports rounded twice and tables once, so that they differed in the last digit for one set of seeds in four."""
    values = [0.1344, 0.8474, 0.7638, 0.2551, 0.4954]
    summed = statistic(values)
    assert summed is not None
    assert summed.mean == float(sum(map(Fraction, values)) / len(values))


def state(folder: Path, **changes: Any) -> str:
    return read_run(make_run(folder, {2: 0.5}, **changes)).state


def test_a_run_knows_how_it_stands(tmp_path: Path) -> None:
    assert state(tmp_path / "a") == "finished"
    assert state(tmp_path / "b", done=3) == "unfinished"
    assert state(tmp_path / "c", done=3, ended=True) == "ended early"
    assert state(tmp_path / "d", done=3, ended=True, losses=[1.0, 2.0, None]) == "diverged"


def test_a_run_that_diverged_in_its_first_round_can_be_read(tmp_path: Path) -> None:
    """Tables read such a folder, and reports refused it: its summary has no line of metrics to belong to."""
    folder = make_run(tmp_path / "run", {}, done=0)
    summary = {"rounds": 0, "uplink_bytes": 0, "diverged": "the gradient holds values that are not finite"}
    (folder / "summary.json").write_text(json.dumps(summary))
    run = read_run(folder)
    assert (run.state, run.finished, run.history.rounds) == ("diverged", True, [])


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "{}", '{"rounds": "x"}', "{", '{"rounds": 7}'])
def test_a_damaged_summary_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run", {2: 0.5})
    (folder / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"summary\.json"):
        read_history(folder)


def test_a_round_that_is_there_twice_is_noticed_by_every_reader(tmp_path: Path) -> None:
    """Tables counted its bytes twice, where reports refused it."""
    folder = make_run(tmp_path / "run", {2: 0.5})
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[2], *lines[4:]]))
    with pytest.raises(RunError, match="line 4 is damaged: round = 2, expected 3"):
        list(read_metrics(folder))


def test_a_history_is_one_line_where_it_is_printed() -> None:
    assert repr(history_of({2: 0.5}, rounds=3)) == "<History: 3 rounds, accuracy 50.0%, uplink 300 B>"
    assert repr(History()) == "<History: 0 rounds, uplink 0 B>"
    measured = History.of(rows({}, 2, metrics={"mae": 0.25}, test_loss=0.5), score="-mae")
    assert repr(measured) == "<History: 2 rounds, mae 0.25, uplink 200 B>"
    assert History.of(rows({}, 1, test_loss=0.5), score="-loss").evaluations[0].metrics == {}
    lost = History.of(rows({}, 1, loss=None))
    assert repr(lost) == "<History: 1 rounds, uplink 100 B, diverged>"
