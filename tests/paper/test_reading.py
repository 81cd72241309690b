import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmpdd_paper.reading import Reading, better, read_run, summarise
from fedmpdd_paper.tables import Table, load_table


def goals(target: float, harder: float, budget: int) -> Table:
    table = load_table("mnist-iid-logistic")
    return replace(table, methods=(), target=target, harder=harder, budget=budget)


def write_run(folder: Path, accuracies: dict[int, float], rounds: int = 10, **changes: Any) -> Path:
    folder.mkdir()
    rows = []
    for k in range(rounds):
        row = {"round": k, "loss": 1.0, "clients": 2, "uplink_bytes": 30, "payload_bytes": 20, "downlink_bytes": 0}
        rows.append({**row, "accuracy": accuracies.get(k), **changes})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_numbers_are_read_off_at_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", {1: 0.3, 3: 0.62, 5: 0.6, 7: 0.81, 9: 0.79})
    reading = read_run(run, 17, 0.1, goals(0.6, 0.8, 119))
    assert reading.rounds_to_target == 4
    assert reading.bytes_to_target == 80
    assert reading.frames_to_target == 120
    assert reading.rounds_to_harder == 8
    assert reading.bytes_to_harder == 160
    assert reading.frames_to_harder == 240
    assert reading.accuracy_at_budget == 0.62
    assert reading.final_accuracy == 0.79
    assert not reading.diverged


def test_a_codec_that_cannot_spend_the_budget_is_read_when_fedmpdd_has_spent_it(tmp_path: Path) -> None:
    table = load_table("mnist-iid-logistic")
    table = replace(table, budget=10 * 4 * 200 * 6 - 1)  # ten clients, m = 200: spent in round 6
    assert table.enough == 6
    run = write_run(tmp_path / "a", {3: 0.3, 5: 0.5, 7: 0.7})
    assert read_run(run, 17, 0.1, table).accuracy_at_budget == 0.5


def test_what_was_not_reached_is_none(tmp_path: Path) -> None:
    reading = read_run(write_run(tmp_path / "a", {9: 0.3}), 17, 0.1, goals(0.6, 0.8, 50))
    assert reading.bytes_to_target is None
    assert reading.accuracy_at_budget is None
    assert read_run(write_run(tmp_path / "b", {}, loss=None), 1, 1, goals(0.5, 0.8, 1)).diverged


def reading(rounds: int | None, accuracy: float, *, diverged: bool = False) -> Reading:
    return Reading(1, 0.1, 10, accuracy, None, None, None, rounds, None, None, None, diverged)


def test_the_best_step_size_is_that_with_the_fewest_rounds() -> None:
    assert better(reading(100, 0.6), reading(200, 0.9))
    assert better(reading(None, 0.5), reading(None, 0.4))
    assert better(reading(300, 0.6), reading(None, 0.59))
    assert better(reading(None, 0.1), reading(None, 0.5, diverged=True))


def test_seeds_are_summarised() -> None:
    summary = summarise([1.0, 3.0, None])
    assert (summary.mean, summary.reached, summary.runs) == (2.0, 2, 3)
    assert summary.sd == pytest.approx(2**0.5)
    assert summarise([None]).mean is None
