"""A small table on the bundled digits, from end to end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.experiments.reproduce import DONE, markdown, reproduce
from fedmpdd.experiments.tables import Method, Table, load_table
from fedmpdd.federation.config import parse_config
from fedmpdd.privacy.config import AuditConfig


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
        harder=0.995,
        lrs=(0.05, 1e37),
    )


def test_what_is_missing_is_run_and_what_is_there_is_used(tmp_path: Path) -> None:
    seen: set[str] = set()
    results = reproduce(small_table(), tmp_path, seeds=2, device="cpu", on_round=lambda name, *_: seen.add(name))
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
    again = reproduce(small_table(), tmp_path, seeds=2, device="cpu", on_round=lambda name, *_: seen.add(name))
    assert not seen
    assert again == results


def test_codecs_are_audited_with_the_papers_attack_and_the_adaptive_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmpdd.experiments import reproduce as module

    def quick(**values: Any) -> AuditConfig:
        return AuditConfig(**{**values, "effort": 0.01, "images": 2})

    monkeypatch.setattr(module, "AuditConfig", quick)
    table = replace(small_table(), lrs=(0.05,))
    shares: list[float] = []
    results = reproduce(
        table, tmp_path, seeds=1, device="cpu", audited=True, on_attack=lambda _, share: shares.append(share)
    )
    assert shares[-1] == 1
    for row in results["rows"]:
        assert row["audit"]["attack"] == "dlg"
        assert -1 <= row["audit"]["adaptive_ssim"] <= 1
        assert row["audit"]["verdict"] in markdown(results)
    assert "SSIM of dlg" in markdown(results)


def test_a_run_goes_on_until_the_budget_is_spent(tmp_path: Path) -> None:
    """Accuracy at the budget is that of all the bytes, not of those that the target took."""
    table = replace(small_table(), harder=0.2, lrs=(0.05,), budget=10 * 4 * 7_850 * 13)
    run = reproduce(table, tmp_path, seeds=1, methods=["fedsgd"], device="cpu")["rows"][0]["runs"][0]
    assert run["rounds"] == 13
    assert run["rounds_to_target"] == 8


def test_a_short_search_chooses_the_step_size(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    table = replace(small_table(), lrs=(1e-6, 0.05), search=8)

    def on_round(name: str, done: int, *_: object) -> None:
        seen[name] = max(seen.get(name, 0), done)

    results = reproduce(table, tmp_path, seeds=1, methods=["fedsgd"], device="cpu", on_round=on_round)
    assert results["rows"][0]["lr"] == 0.05
    assert seen == {
        "small, FedSGD, search, lr 1e-06, seed 17": 8,
        "small, FedSGD, search, lr 0.05, seed 17": 8,
        "small, FedSGD, lr 0.05, seed 17": 24,
    }


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    table = small_table()
    whole = reproduce(table, tmp_path / "a", seeds=1, methods=["fedsgd"], device="cpu")

    def stop(name: str, done: int, *_: object) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(table, tmp_path / "b", seeds=1, methods=["fedsgd"], device="cpu", on_round=stop)
    assert not list((tmp_path / "b").rglob(DONE))
    assert reproduce(table, tmp_path / "b", seeds=1, methods=["fedsgd"], device="cpu") == whole
