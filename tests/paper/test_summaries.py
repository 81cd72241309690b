from dataclasses import replace

import pytest

from fedmpdd.runs.history import Round
from fedmpdd_paper.summaries import RunSummary, over_seeds
from fedmpdd_paper.tables import Table, load_table
from tests.runs.test_history import history_of


def goals(target: float, second_target: float, budget: int) -> Table:
    table = load_table("mnist-iid-logistic")
    return replace(table, methods=(), target=target, second_target=second_target, budget=budget)


def test_a_summary_counts_payload_and_keeps_its_keys() -> None:
    history = history_of({2: 0.3, 4: 0.62, 6: 0.6, 8: 0.81, 10: 0.79}, uplink=30, payload=20)
    document = RunSummary.of(history, 17, 0.1, goals(0.6, 0.8, 119)).as_dict()
    assert document == {
        "seed": 17, "lr": 0.1, "rounds": 10, "final_accuracy": 0.79, "accuracy_at_budget": 0.62,
        "bytes_to_target": 80, "frames_to_target": 120, "rounds_to_target": 4,
        "bytes_to_harder": 160, "frames_to_harder": 240, "rounds_to_harder": 8, "diverged": False,
    }  # fmt: skip


def test_a_codec_that_cannot_spend_the_budget_is_read_when_fedmpdd_has_spent_it() -> None:
    table = load_table("mnist-iid-logistic")
    table = replace(table, budget=10 * 4 * 200 * 6 - 1)  # ten clients, m = 200: spent in round 6
    assert table.round_cap == 6
    history = history_of({4: 0.3, 6: 0.5, 8: 0.7}, uplink=30, payload=20)
    assert RunSummary.of(history, 17, 0.1, table).accuracy_at_budget == 0.5


def test_what_was_not_reached_is_none() -> None:
    document = RunSummary.of(history_of({10: 0.3}, payload=20), 17, 0.1, goals(0.6, 0.8, 50)).as_dict()
    assert document["bytes_to_target"] is document["accuracy_at_budget"] is document["rounds_to_harder"] is None


def summary(rounds: int | None, accuracy: float, *, diverged: bool = False) -> RunSummary:
    at_target = None if rounds is None else Round(rounds, 1.0, 0.6, 1, 1)
    return RunSummary(1, 0.1, 10, accuracy, None, at_target, None, diverged, False)


def test_the_best_step_size_is_that_with_the_fewest_rounds() -> None:
    assert summary(100, 0.6).rank < summary(200, 0.9).rank
    assert summary(None, 0.5).rank < summary(None, 0.4).rank
    assert summary(300, 0.6).rank < summary(None, 0.59).rank
    assert summary(None, 0.1).rank < summary(None, 0.5, diverged=True).rank


def test_seeds_are_summed_up_for_the_document() -> None:
    document = over_seeds([1.0, 3.0, None])
    assert document == {"mean": 2.0, "sd": pytest.approx(2**0.5), "reached": 2, "runs": 3}
    assert over_seeds([None]) == {"mean": None, "sd": None, "reached": 0, "runs": 1}
