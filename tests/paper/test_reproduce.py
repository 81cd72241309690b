"""A small table on the bundled digits, from end to end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import InputError
from fedmpdd.pages.words import score
from fedmpdd.privacy.config import AuditConfig
from fedmpdd.report import Goals, collect
from fedmpdd.report.numbers import rows_of, tasks_of
from fedmpdd.simulation.config import parse_config
from fedmpdd_paper.reproduce import choose_methods, reproduce
from fedmpdd_paper.table_text import markdown
from fedmpdd_paper.tables import Method, Table, load_table
from fedmpdd_paper.trainings import BEATEN, DONE, Workspace


def small_table() -> Table:
    values = {"dataset": "mnist-5k", "model": "logistic", "rounds": 24, "evaluate_every": 8, "clients": 10, "batch": 4}
    methods = (
        Method("FedSGD", "fedsgd", {"method": "FedSGD", "used_bytes": 40_192_000, "rounds_to_target": 128}),
        Method("ours", "mpdd:m=100:bits=1:family=hadamard:keys=partitioned", None),
    )
    return replace(
        load_table("mnist-iid-logistic"),
        name="small",
        config=parse_config({**values, "codec": {"name": "fedsgd"}}),
        methods=methods,
        target=0.2,
        second_target=0.995,
        lrs=(0.05, 1e37),
    )


def test_what_is_missing_is_run_and_what_is_there_is_used(tmp_path: Path) -> None:
    seen: set[str] = set()
    results = reproduce(small_table(), Workspace(tmp_path, "cpu"), seeds=2, on_round=lambda name, *_: seen.add(name))
    assert len(seen) == 2 * (2 + 1)  # two step sizes on the first seed, the better one on the second
    rows = {row["codec"]: row for row in results["rows"]}
    assert [row["lr"] for row in rows.values()] == [0.05, 0.05]
    ours = rows["mpdd:m=100:bits=1:family=hadamard:keys=partitioned"]["ours"]
    assert ours["bytes_to_target"]["runs"] == 2
    assert rows["fedsgd"]["ours"]["bytes_to_target"]["mean"] > 50 * ours["bytes_to_target"]["mean"]
    text = (tmp_path / "small" / "table.md").read_text(encoding="utf-8")
    assert text == markdown(results)
    assert "(40.2 MB)" in text  # the paper's number beside ours
    assert "(128)" in text

    seen.clear()
    again = reproduce(small_table(), Workspace(tmp_path, "cpu"), seeds=2, on_round=lambda name, *_: seen.add(name))
    assert not seen
    assert again == results


def test_a_table_keeps_its_other_rows(tmp_path: Path) -> None:
    table, workspace = small_table(), Workspace(tmp_path, "cpu")
    (first,) = reproduce(table, workspace, seeds=1, methods=table.methods[1:])["rows"]
    assert reproduce(table, workspace, seeds=1, methods=table.methods[:1])["rows"][1] == first
    # Of the other one seed is missing.
    (alone,) = reproduce(table, workspace, seeds=2, methods=table.methods[:1])[
        "rows"
    ]  # of the other one seed is missing
    assert alone["codec"] == "fedsgd"


def test_codecs_are_audited_with_the_papers_attack_and_the_adaptive_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmpdd_paper import reproduce as module

    def quick(**values: Any) -> AuditConfig:
        return AuditConfig(**{**values, "effort": 0.01, "images": 2})

    monkeypatch.setattr(module, "AuditConfig", quick)
    table = replace(small_table(), lrs=(0.05,))
    shares: list[float] = []
    results = reproduce(
        table, Workspace(tmp_path, "cpu"), seeds=1, audited=True, on_attack=lambda _, share: shares.append(share)
    )
    assert shares[-1] == 1
    for row in results["rows"]:
        assert row["audit"]["attack"] == "dlg"
        assert -1 <= row["audit"]["adaptive_ssim"] <= 1
        assert row["audit"]["verdict"] in markdown(results)
    assert "SSIM of dlg" in markdown(results)

    more = replace(table, methods=(*table.methods, Method("top-k", "topk:k=100", None)))
    later = reproduce(more, Workspace(tmp_path, "cpu"), seeds=1)
    assert [row.get("audit") for row in later["rows"]] == [row["audit"] for row in results["rows"]] + [None]
    assert markdown(later).count("not attacked") == 1


def test_a_run_goes_on_until_the_budget_is_spent(tmp_path: Path) -> None:
    """Accuracy at the budget is that of all the bytes, not of those that the target took."""
    table = replace(small_table(), second_target=0.2, lrs=(0.05,), budget=10 * 4 * 7_850 * 13)
    run = reproduce(table, Workspace(tmp_path, "cpu"), seeds=1, methods=table.methods[:1])["rows"][0]["runs"][0]
    assert run["rounds"] == 13
    assert run["rounds_to_target"] == 8


def test_what_cannot_spend_the_budget_ends_when_fedmpdd_has_spent_it(tmp_path: Path) -> None:
    fedmpdd = Method("FedMPDD(m=1000)", "mpdd:m=1000", None)
    table = replace(small_table(), second_target=0.2, lrs=(0.05,), budget=10 * 4 * 1000 * 13)
    table = replace(table, methods=(fedmpdd, table.methods[1]))
    runs = [row["runs"][0] for row in reproduce(table, Workspace(tmp_path, "cpu"), seeds=1)["rows"]]
    assert [run["rounds"] for run in runs] == [13, 13]


def test_the_page_says_the_same_accuracy_at_the_budget_as_the_table(tmp_path: Path) -> None:
    """A run that goes on for its second target has later evaluations within the budget: the table reads none of them.

    Pages once did, and were made without a budget so that nobody saw it.
    """
    fedmpdd = Method("FedMPDD(m=1000)", "mpdd:m=1000", None)
    table = replace(small_table(), lrs=(0.05,), budget=10 * 4 * 1000 * 13)
    table = replace(table, methods=(fedmpdd, table.methods[1]))
    _, ours = reproduce(table, Workspace(tmp_path, "cpu"), seeds=2)["rows"]
    assert [run["rounds"] for run in ours["runs"]] == [24, 24]
    (task,) = tasks_of(collect([tmp_path]).runs)
    rows = rows_of(task, Goals((), (table.budget,), table.round_cap))
    (row,) = (row for row in rows if row.codec == ours["codec"])
    at_budget = row.at_budget[0].accuracy_by_payload
    assert at_budget is not None
    assert row.final_accuracy is not None
    assert at_budget.mean == ours["ours"]["accuracy_at_budget"]["mean"] != row.final_accuracy.mean
    page = (tmp_path / "small" / "report.html").read_text(encoding="utf-8")
    assert "but none after round 13" in page
    assert f">{score(at_budget, 'accuracy')}<" in page


def test_a_short_search_chooses_the_step_size(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    table = replace(small_table(), lrs=(1e-6, 0.05), search=8)

    def on_round(name: str, done: int, *_: object) -> None:
        seen[name] = max(seen.get(name, 0), done)

    results = reproduce(table, Workspace(tmp_path, "cpu"), seeds=1, methods=table.methods[:1], on_round=on_round)
    assert results["rows"][0]["lr"] == 0.05
    assert seen == {
        "small, FedSGD, search, lr 1e-06, seed 17": 8,
        "small, FedSGD, search, lr 0.05, seed 17": 8,
        "small, FedSGD, lr 0.05, seed 17": 24,
    }


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    table = small_table()
    whole = reproduce(table, Workspace(tmp_path / "a", "cpu"), seeds=1, methods=table.methods[:1])

    def stop(name: str, done: int, *_: object) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(table, Workspace(tmp_path / "b", "cpu"), seeds=1, methods=table.methods[:1], on_round=stop)
    assert not list((tmp_path / "b").rglob(DONE))
    assert reproduce(table, Workspace(tmp_path / "b", "cpu"), seeds=1, methods=table.methods[:1]) == whole


def test_a_step_size_that_lost_is_not_run_to_its_end(tmp_path: Path) -> None:
    table = replace(small_table(), lrs=(0.05, 1e-6))
    reproduce(table, Workspace(tmp_path, "cpu"), seeds=1, methods=table.methods[:1])
    lost = tmp_path / "small" / "fedsgd" / "lr-1e-06-seed-17"
    assert (lost / DONE).read_text(encoding="utf-8").startswith(BEATEN)
    assert len((lost / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 8  # what the winner took


def test_rows_are_chosen_by_codec_or_name() -> None:
    table = small_table()
    assert choose_methods([table], None) == [(table, list(table.methods))]
    assert choose_methods([table], ["FedSGD"]) == choose_methods([table], ["fedsgd"]) == [(table, [table.methods[0]])]
    other = replace(table, name="other", methods=table.methods[1:])
    assert choose_methods([table, other], ["fedsgd"]) == [(table, [table.methods[0]])]
    with pytest.raises(InputError, match=r"no row 'fedavg' in small; rows are fedsgd, mpdd"):
        choose_methods([table], ["fedavg"])
