"""Studies of fine-tuning: step sizes by dev, test once at the end, rows that go on and rows that stay."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedmpdd as fm
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.tasks.data import banking77, sst2
from fedmpdd.tasks.pretrained import Pretrained
from fedmpdd_paper import finetuning
from fedmpdd_paper.finetuning import FineTuning, Row, finetuning_names, finetuning_text, load_finetuning
from fedmpdd_paper.trainings import Workspace
from tests.tasks.text_fixtures import REVIEWS, Tokenizer, tiny

pytest.importorskip("peft", reason="the extra `llm` is not installed")

SMALL = FineTuning(
    name="small",
    title="A small study",
    dataset="sst2",
    model="tiny",
    rank=2,
    clients=4,
    settings={"rounds": 4, "per_round": 2, "batch": 2, "server": "adam", "evaluate_every": 2},
    template="{sentence} It was",
    words=(" terrible", " great"),
    rows=(
        Row("FedSGD", "fedsgd", (0.001, 0.1), 2, {}),
        Row("peaks", "peaks:m=2:group=8:keys=derived", (0.01,), 1, {}),
        Row("two steps", "fedsgd", (0.5,), 1, {"local_steps": 2, "tuned": "local_lr", "server": "sgd", "lr": 1.0}),
    ),
)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Reviews of a few words, and a tiny model instead of a pretrained one."""
    sizes = {"train": 48, "dev": 16, "test": 16}
    monkeypatch.setattr(sst2, "SIZES", sizes)
    for part, size in sizes.items():
        lines = [f'{1 - n % 2},"{REVIEWS[n % len(REVIEWS)]} {n % 5}"' for n in range(size)]
        path = tmp_path / "data" / "sst2" / f"{part}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["label,sentence", *lines, ""]), encoding="utf-8")
    assert banking77.SIZES  # the other dataset is left alone

    def loaded(name: str, *, layers: int | None, dtype: Any, classes: int | None) -> Pretrained:
        assert (name, dtype) == ("tiny", torch.float32)
        return Pretrained(tiny(layers=2), Tokenizer())

    monkeypatch.setattr(fm, "load_pretrained", loaded, raising=False)
    return Workspace(tmp_path / "out", "cpu", tmp_path / "data")


def test_a_study_from_start_to_table(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    results = finetuning.reproduce_finetuning(SMALL, workspace, together=3)
    folder = workspace.out / "small"
    assert [row["name"] for row in results["rows"]] == ["FedSGD", "peaks", "two steps"]
    first, peaks, steps = results["rows"]
    assert first["lr"] in (0.001, 0.1)
    assert first["test"]["runs"] == 2
    assert first["up_per_client"]["mean"] == 4 * results["d"] * 4 * 2 / 4  # d floats, rounds, clients of each
    assert peaks["update_bytes"]["mean"] == 2  # eight bits of two peaks, and the byte of scale
    assert (steps["forwards"], steps["backwards"]) == (2, 2)
    assert json.loads((folder / "results.json").read_text()) == results
    assert finetuning_text(results) == (folder / "table.md").read_text()
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "peaks" in (folder / "report.html").read_text()

    tested: list[str] = []
    monkeypatch.setattr(finetuning, "accuracy", lambda *_: tested.append("again"))
    again = finetuning.reproduce_finetuning(SMALL, workspace)
    assert again == results
    assert tested == []  # the test sentences were looked at, and are not again


def test_rows_that_were_measured_stay(workspace: Workspace) -> None:
    finetuning.reproduce_finetuning(SMALL, workspace, seeds=1, rows=["peaks"])
    results = finetuning.reproduce_finetuning(SMALL, workspace, seeds=1, rows=["fedsgd"])
    assert [row["name"] for row in results["rows"]] == ["FedSGD", "peaks", "two steps"]
    with pytest.raises(ConfigError, match="no row"):
        finetuning.reproduce_finetuning(SMALL, workspace, rows=["signsgd"])


def test_a_test_that_was_not_written_is_made_up_for(workspace: Workspace) -> None:
    results = finetuning.reproduce_finetuning(SMALL, workspace, seeds=1, rows=["peaks"])
    path = workspace.out / "small" / "runs" / "peaks-seed-17.test.json"
    path.unlink()
    assert finetuning.reproduce_finetuning(SMALL, workspace, seeds=1, rows=["peaks"]) == results
    path.write_text("{}")
    with pytest.raises(RunError, match="is damaged"):
        finetuning.reproduce_finetuning(SMALL, workspace, seeds=1, rows=["peaks"])


def test_what_diverges_is_never_chosen(workspace: Workspace) -> None:
    loaded = finetuning.load(SMALL, workspace)
    row = Row("FedSGD", "fedsgd", (1e30, 0.01), 1, {"rounds": 40, "server": "sgd"})
    tries = {f"fedsgd-lr-{lr:g}": SMALL.config(loaded.task, row, finetuning.FIRST_TRY, lr, "cpu") for lr in row.lrs}
    histories = fm.train_together(tries, loaded.task, progress=False)
    assert histories["fedsgd-lr-1e+30"].diverged
    assert finetuning._best(row, histories) == 0.01


@pytest.mark.parametrize("name", finetuning_names())
def test_every_shipped_study_can_be_read(name: str, workspace: Workspace) -> None:
    study = load_finetuning(name)
    names = [row.name for row in study.rows]
    assert len(set(map(finetuning.slug, names))) == len(names)
    task = finetuning.load(SMALL, workspace).task
    four = {"clients": 4, "per_round": 2}
    for row in study.rows:
        assert len(row.lrs) == 4  # the same number of tries for all
        settings = {**study.settings, **row.settings, "per_round": four["per_round"]}
        settings[settings.pop("tuned", "lr")] = row.lrs[0]
        fm.run_config(task, row.codec, **settings)
