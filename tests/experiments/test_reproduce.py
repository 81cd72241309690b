"""A small table on the bundled digits, from end to end."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedmpdd.experiments.reproduce import DONE, markdown, reproduce
from fedmpdd.experiments.tables import Method, Table, load_table
from fedmpdd.federation.config import parse_config


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


def test_a_short_search_chooses_the_step_size(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    table = replace(small_table(), lrs=(1e-6, 0.05), search=8)

    def on_round(name: str, done: int, *_: object) -> None:
        seen[name] = max(seen.get(name, 0), done)

    results = reproduce(table, tmp_path, seeds=1, methods=["fedsgd"], device="cpu", on_round=on_round)
    assert results["rows"][0]["lr"] == 0.05
    assert seen == {"small, FedSGD, lr 1e-06, seed 17": 8, "small, FedSGD, lr 0.05, seed 17": 24}


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
