"""Studies: variants of one federation, the price of a target in both directions."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import ConfigError, InputError
from fedmpdd.guarantees.guarantees import guarantees
from fedmpdd.runs.history import History, Round
from fedmpdd_paper import studies
from fedmpdd_paper.estimate import done_study
from fedmpdd_paper.studies import (
    Study,
    Variant,
    VariantRun,
    load_study,
    reproduce_study,
    study_names,
    study_text,
)
from fedmpdd_paper.trainings import Workspace
from tests.simulation.test_engine import BASE

VALUES: dict[str, Any] = {**{key: BASE[key] for key in BASE if key != "lr"}, "rounds": 40, "evaluate_every": 2}
STUDY = Study(
    "tiny",
    "A tiny study",
    VALUES,
    (0.5, 0.7),
    (
        Variant("FedSGD", ("codec.name=fedsgd",), (0.2,)),
        Variant("replayed", ("codec.bits=1", "codec.keys=shared", "downlink=replay", "downlink_bits=4"), (0.2, 0.001)),
        Variant("hopeless", ("codec.m=1",), (1e-6,)),
    ),
)


def test_every_shipped_study_can_be_read() -> None:
    for name in study_names():
        study = load_study(name)
        assert len({variant.name for variant in study.variants}) == len(study.variants)
        folders = {studies.folder_of(study, variant, 1, 0.1, Path()) for variant in study.variants}
        assert len(folders) == len(study.variants)
    with pytest.raises(InputError, match="unknown"):
        load_study("nothing")


def test_a_study_from_start_to_table(tmp_path: Path) -> None:
    results = reproduce_study(STUDY, Workspace(tmp_path, "cpu"), seeds=2)
    full, replayed, hopeless = results["rows"]
    assert full["to"][0]["rounds"]["reached"] == 2
    assert full["to"][0]["up"]["mean"] > 100 * replayed["to"][0]["up"]["mean"]
    assert full["to"][0]["down"]["mean"] == pytest.approx(
        full["to"][0]["up"]["mean"], rel=0.01
    )  # frames are a bit more
    assert replayed["lr"] == 0.2
    assert replayed["to"][0]["both"]["mean"] < full["to"][0]["both"]["mean"] / 10
    assert hopeless["to"][0]["rounds"] == {"mean": None, "sd": None, "reached": 0, "runs": 2}
    text = study_text(results)
    assert "| hopeless | 1e-06 | 0 of 2 | ended at" in text
    assert "## To 70%" in text
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert reproduce_study(STUDY, Workspace(tmp_path, "cpu"), seeds=2)["rows"] == results["rows"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")} == before  # only read

    assert done_study(STUDY, 2, Workspace(tmp_path, "cpu")) == STUDY
    assert done_study(STUDY, 3, Workspace(tmp_path, "cpu")).variants == ()
    (studies.folder_of(STUDY, STUDY.variants[1], 17, 0.001, tmp_path) / "done").unlink()
    (studies.folder_of(STUDY, STUDY.variants[2], 123, 1e-6, tmp_path) / "done").unlink()
    assert done_study(STUDY, 2, Workspace(tmp_path, "cpu")).variants == STUDY.variants[:1]
    assert done_study(STUDY, 1, Workspace(tmp_path, "cpu")).variants == (STUDY.variants[0], STUDY.variants[2])


def summary(mean: float, reached: int = 3) -> dict[str, Any]:
    return {"mean": mean, "sd": 0.0, "reached": reached, "runs": 3}


@pytest.mark.parametrize(("reached_by_first", "ratio"), [(3, "25"), (2, "–")])
def test_ratios_are_of_both_directions_and_need_every_seed_of_both_rows(reached_by_first: int, ratio: str) -> None:
    def row(name: str, rounds: int, up: float, down: float, reached: int, diverged: int) -> dict[str, Any]:
        to = {"rounds": summary(rounds, reached), "up": summary(up, reached), "down": summary(down, reached)}
        to["both"] = summary(up + down, reached)
        return {"variant": name, "lr": 0.1, "final_accuracy": summary(0.7), "to": [to], "diverged": diverged}

    rows = [row("base", 50, 4e6, 6e6, reached_by_first, 0), row("ours", 70, 1e5, 3e5, 3, 1)]
    text = study_text({"title": "Made up", "targets": [0.6], "rows": rows}).splitlines()
    assert text[-1] == f"| ours | 0.1 | 3 of 3, 1 diverged | 70 ± 0 | 100 kB | 300 kB | 400 kB | {ratio} |"


def test_the_hardest_target_decides_and_what_diverged_loses() -> None:
    def run(lr: float, first: int, hardest: int | None, accuracy: float, diverged: bool = False) -> VariantRun:
        end = Round(100, 1.0, accuracy, 1, 1)
        history = History([end], [end], diverged)
        reached = (Round(first, 1.0, 0.5, 1, 1), None if hardest is None else Round(hardest, 1.0, 0.7, 1, 1))
        return VariantRun(17, lr, history, reached)

    early, late = run(0.1, 5, 90, 0.9), run(0.2, 50, 60, 0.8)
    assert min(early, late, key=lambda run: run.rank) is late
    blown, calm = run(0.1, 5, None, 0.9, diverged=True), run(0.2, 5, None, 0.3)
    assert min(blown, calm, key=lambda run: run.rank) is calm


def test_a_step_size_that_has_lost_ends_early(tmp_path: Path) -> None:
    study = Study("tiny", "", VALUES, (0.5,), (Variant("two", ("codec.name=fedsgd",), (0.2, 1e-6)),))
    results = reproduce_study(study, Workspace(tmp_path, "cpu"), seeds=1)
    assert results["rows"][0]["lr"] == 0.2
    rounds = results["rows"][0]["to"][0]["rounds"]["mean"]
    lost = studies.read_variant(study, study.variants[0], 17, 1e-6, tmp_path)
    assert lost.history.last.rounds == rounds < 40


def test_without_targets_all_rounds_are_run_and_accuracies_compared(tmp_path: Path) -> None:
    study = Study("tiny", "", {**VALUES, "rounds": 6}, (), (Variant("two", ("codec.name=fedsgd",), (1e-6, 0.2)),))
    results = reproduce_study(study, Workspace(tmp_path, "cpu"), seeds=2)
    (row,) = results["rows"]
    assert (row["lr"], row["rounds"]["mean"]) == (0.2, 6)
    assert f"| two | 0.2 | 2 | 6 | {row['final_accuracy']['mean']:.1%} ± " in study_text(results)


def test_a_variant_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tomllib.loads

    def broken(text: str) -> dict[str, Any]:
        values = real(text)
        if "study" in values:  # not what an override is read with
            values["study"]["variants"][1]["set"] = ["downlink_bits=3"]
        return values

    monkeypatch.setattr(tomllib, "loads", broken)
    with pytest.raises(ConfigError, match="study both-ways, FedMPDD"):
        load_study("both-ways")


def test_the_noise_of_the_private_study_gives_the_epsilon_that_it_says() -> None:
    study = load_study("secure-dp")
    seen = 0
    for variant in study.variants:
        if match := re.search(r"ε = (\d+)", variant.name):
            rows = guarantees(study.config(variant, 17, 1.0), 1e-5)
            (central,) = [row for row in rows if row.model == "central"]
            assert 0.97 * int(match[1]) < central.epsilon <= int(match[1])
            seen += 1
    assert seen == 9
