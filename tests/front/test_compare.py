"""Codecs side by side by one call, on a task of somebody's own."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedmpdd as fm
from fedmpdd.codecs import CODECS
from fedmpdd.errors import ConfigError, FedmpddError, MissingDependencyError, RunError
from fedmpdd.front.compare import Comparison, compare
from fedmpdd.report import collect
from fedmpdd.runs.driver import AfterRound
from fedmpdd.runs.history import History
from fedmpdd.tasks.task import Task
from tests.front.test_simulate import r2
from tests.tasks.own import FEATURES, class_data, network, regression, regression_data

SETTINGS: dict[str, Any] = {"rounds": 4, "per_round": 4, "batch": 5, "evaluate_every": 2, "progress": False}
CODECS_HERE: list[Any] = [fm.FedSGD(), fm.Peaks(m=2, group=32), "mpdd:m=8:keys=partitioned"]
NAMES = ["fedsgd", "peaks:m=2:group=32", "mpdd:m=8:keys=partitioned"]


def compared(**changes: Any) -> Comparison:
    codecs = changes.pop("codecs", CODECS_HERE)
    return compare(regression(metrics={"r2": r2}), codecs, **{"seeds": 2, **SETTINGS, **changes})


@dataclass(frozen=True)
class MyCodec(fm.MPDD):
    """A codec of somebody's own, which takes other directions."""

    name: ClassVar[str] = "mine"
    code: ClassVar[int] = 0
    m: int = 12


@pytest.fixture
def my_codec() -> Iterator[type[MyCodec]]:
    yield fm.register(MyCodec)
    del CODECS["mine"]


def test_the_front_door_of_the_design_runs_as_written(tmp_path: Path, my_codec: type[MyCodec]) -> None:
    torch.manual_seed(0)
    train_set, test_set = regression_data(400), regression_data(64, seed=1)
    task = fm.Task(
        model=nn.Sequential(nn.Linear(FEATURES, 512), nn.Tanh(), nn.Linear(512, 1)),
        loss=torch.nn.functional.mse_loss,
        metrics={"r2": r2},
        clients=fm.partition(train_set, 100),
        test=test_set,
    )
    codecs = [fm.FedSGD(), fm.Peaks(m=14), my_codec()]
    result = fm.compare(task, codecs, seeds=3, rounds=5, per_round=50, lr=0.1, progress=False)
    frame = result.to_frame()
    page = result.report(tmp_path / "page.html")
    assert list(frame.groupby("codec", sort=False).seed.apply(list)) == [[17, 18, 19]] * 3
    mine = f"{__name__}:MyCodec"  # an import path, so that another process can go on
    assert list(frame.codec.unique()) == ["fedsgd", "peaks:m=14", mine]
    sent = frame.groupby("codec").uplink_bytes.mean()
    assert sent["fedsgd"] > 100 * max(sent["peaks:m=14"], sent[mine])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "Test r2 against rounds" in text


def test_frames_hold_every_training_and_every_round() -> None:
    result = compared(target=0.0, budget=500)
    frame, rounds = result.to_frame(), result.to_frame(by_round=True)
    assert list(frame.codec) == [name for name in NAMES for _ in range(2)]
    assert list(frame.columns) == [
        "codec", "seed", "rounds", "test_loss", "r2", "uplink_bytes", "payload_bytes", "downlink_bytes",
        "rounds_to_target", "bytes_to_target", "r2_at_budget", "seconds", "state", "error",
    ]  # fmt: skip
    assert len(rounds) == 3 * 2 * 4
    last = rounds[rounds["rounds"] == 4]
    np.testing.assert_array_equal(last.r2.to_numpy(), frame.r2.to_numpy())
    np.testing.assert_array_equal(last.uplink_bytes.to_numpy(), frame.uplink_bytes.to_numpy())
    history = result.histories["fedsgd"][18]
    assert history.score == "r2"
    assert history.to_frame().r2.notna().tolist() == [False, True, False, True]
    assert list(history.to_frame().uplink_bytes) == [entry.uplink_bytes for entry in history.rounds]
    assert History().to_frame().empty


def test_without_pandas_a_frame_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (History().to_frame, compared(codecs=["fedsgd"], seeds=[1], rounds=1).to_frame):
        with pytest.raises(MissingDependencyError, match=r"^to_frame needs the package pandas.*; pip install pandas$"):
            ask()


def test_a_codec_is_as_good_as_when_it_is_simulated_alone() -> None:
    alone = fm.simulate(regression(metrics={"r2": r2}), fm.FedSGD(), **SETTINGS, seed=5)
    assert compared(codecs=["fedsgd"], seeds=[5]).histories["fedsgd"][5].evaluations == alone.evaluations


def test_what_is_printed_holds_whole_names_and_the_baseline_first() -> None:
    result = compared(target=-1e9, baseline="mpdd:m=8:keys=partitioned")
    title, headings, *lines = repr(result).splitlines()
    assert title == "rounds and uplink to -1e+09 test r2, and that uplink against mpdd:m=8:keys=partitioned"
    assert headings.split() == ["codec", "seeds", "trained", "r2", "rounds", "uplink", "against", "seconds"]
    names = "".join(line[: headings.index("seeds")].strip() for line in lines)
    assert names == "".join([NAMES[2], *NAMES[:2]])
    assert [line.split()[-2] for line in lines if len(line.split()) > 2] == ["1", "more", "1/2.1"]
    assert "13 times more" in lines[-2]
    assert compared(baseline=fm.Peaks(m=2, group=32)).rows[0].codec == NAMES[1]


def test_a_loss_is_a_score_that_falls() -> None:
    result = compare(regression(), ["fedsgd"], seeds=[1], **{**SETTINGS, "rounds": 20}, lr=0.3, target=0.4)
    (row,) = result.rows
    assert row.run.history.score == "-loss"
    reached = row.as_dict()["rounds_to_target"]
    assert 0 < reached < 20
    assert "0.4 test loss" in repr(result)
    assert row.as_dict()["score"] == "loss"


def test_runs_are_kept_and_gone_on_with_by_a_task_made_anew(tmp_path: Path) -> None:
    first = compared(out=tmp_path / "kept")
    trained: list[int] = []
    again = compared(out=tmp_path / "kept", callbacks=[AfterRound(lambda _, metrics: trained.append(metrics.round))])
    assert trained == []
    assert [row.run.history for row in again.rows] == [row.run.history for row in first.rows]
    assert len(collect([tmp_path / "kept"]).runs) == 6
    (tmp_path / "kept" / "fedsgd-seed-17" / "config.json").write_text("{")
    damaged = compared(out=tmp_path / "kept")
    assert [row.run.seed for row in damaged.rows if row.codec == "fedsgd"] == [18]
    assert "left out: " in repr(damaged)
    page = damaged.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Left out: " in page
    with pytest.raises(RunError, match=r"with other settings: lr: 0\.1 → 0\.2"):
        compared(out=tmp_path / "kept", lr=0.2)


@pytest.mark.parametrize("rounds", [SETTINGS["rounds"], 2 * SETTINGS["rounds"]])
def test_runs_of_other_examples_are_not_taken_for_those_of_a_task(tmp_path: Path, rounds: int) -> None:
    """A finished run is only read, and must not pass for one of examples that it has never seen."""
    inputs, targets = regression_data(64)
    compare(regression(), ["fedsgd"], seeds=1, **SETTINGS, out=tmp_path)
    other = fm.Task(
        network(), fm.partition((inputs + 1, targets), 8), (inputs, targets), loss=torch.nn.functional.mse_loss
    )
    with pytest.raises(RunError, match="fedsgd-seed-17 was trained with another model, other examples"):
        compare(other, ["fedsgd"], seeds=1, **{**SETTINGS, "rounds": rounds}, out=tmp_path)


def test_simulate_does_not_go_on_with_a_run_of_other_settings(tmp_path: Path) -> None:
    fm.simulate(regression(), fm.FedSGD(), **SETTINGS, out=tmp_path / "run")
    with pytest.raises(RunError, match="with other settings: seed: 17 → 3"):
        fm.simulate(regression(), fm.FedSGD(), **SETTINGS, out=tmp_path / "run", seed=3)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"codecs": "fedsgd"}, "expected a list of codecs"),
    "one object": ({"codecs": fm.FedSGD()}, "expected a list of codecs"),
    "nothing": ({"codecs": []}, "nothing to compare"),
    "twice": ({"codecs": [fm.MPDD(m=8), "mpdd:m=8"]}, "mpdd:m=8 and mpdd:m=8 are the same codec"),
    "an unknown one": ({"codecs": ["mpd"]}, "mpd"),
    "no seeds": ({"seeds": 0}, "seeds = 0: expected how many"),
    "a baseline of another list": ({"baseline": "qsgd:bits=4"}, "baseline qsgd:bits=4 is none of the codecs"),
    "a target that is none": ({"target": float("nan")}, "target nan is no score"),
    "no bytes": ({"budget": 0}, "budget 0 is no number of bytes"),
    "an unknown setting": ({"round": 3}, "round is no setting of a run; did you mean rounds"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=list(BAD))
def test_wrong_calls_are_refused_in_a_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compared(**changes)
    assert isinstance(caught.value, FedmpddError)
    assert "\n" not in str(caught.value)


def test_an_accuracy_is_a_share() -> None:
    task = Task(network(2), fm.partition(class_data(), 4), class_data(32))
    with pytest.raises(ConfigError, match="target 60 is no accuracy"):
        compare(task, ["fedsgd"], **SETTINGS, target=60)
    result = compare(task, ["fedsgd"], seeds=[1], **SETTINGS, target=0.01)
    assert "1 % test accuracy" in repr(result)


def test_it_is_of_the_package_and_nothing_is_shown_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert fm.compare is compare
    assert "compare" in dir(fm)
    compared(codecs=["fedsgd"], seeds=[1])
    assert capsys.readouterr() == ("", "")
    compared(codecs=["fedsgd"], seeds=[1, 2], progress=True)
    assert "fedsgd, seed 2: round 4 of 4  r2 " in capsys.readouterr().err
