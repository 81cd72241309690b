"""Codecs with seeds, in this process and in run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.runs import compare as runs
from fedmpdd.runs.compare import Trained, compare, trials_of
from fedmpdd.runs.driver import AfterRound, Callback
from fedmpdd.runs.history import METRICS, SUMMARY, read_run
from fedmpdd.simulation import RunConfig, load_config, parse_config
from fedmpdd.simulation.config import codec_config
from fedmpdd.simulation.tasks import load_task
from fedmpdd.tasks.task import Task
from tests.simulation.test_engine import BASE

CONFIG = parse_config({**BASE, "rounds": 40, "evaluate_every": 5})
SHORT = parse_config({**BASE, "rounds": 6, "evaluate_every": 2})


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(CONFIG)


def trials(codecs: Sequence[str], config: RunConfig = CONFIG, **options: Any) -> list[runs.Trial]:
    named = [(text, codec_config(config, text)) for text in codecs]
    return trials_of(named, options.pop("seeds", [17]), options.pop("below", None), **options)


def trained(codecs: Sequence[str], task: Task, config: RunConfig = CONFIG, **options: Any) -> list[Trained]:
    rows, left_out = compare(trials(codecs, config), task, **options)
    assert left_out == []
    return rows


def test_codecs_are_described_in_a_word() -> None:
    config = codec_config(CONFIG, "mpdd:m=8:bits=1:family=hadamard:keys=partitioned")
    assert config.codec.build() == MPDD(8, bits=1, family="hadamard")
    assert config.codec.keys == "partitioned"
    assert codec_config(CONFIG, "mpdd:m=9").codec.keys == "sent"


def test_targets_and_budgets(task: Task) -> None:
    target, budget = 0.5, 30_000
    compared = trained(["mpdd:m=400", "mpdd:m=400:bits=1"], task, target=target, budget=budget)
    full, bit = (row.as_dict() for row in compared)
    assert full["rounds"] == bit["rounds"] == 40
    for row in (full, bit):
        reached = next((rounds, sent) for rounds, sent, accuracy in row["history"] if accuracy >= target)
        assert (row["rounds_to_target"], row["bytes_to_target"]) == reached
        assert row["uplink_bytes"] == row["history"][-1][1]
        assert row["final_accuracy"] == row["history"][-1][2] == row["metrics"]["accuracy"]
        assert (row["seed"], row["state"], row["score"]) == (17, "finished", "accuracy")
    assert full["accuracy_at_budget"] is None  # five rounds of float32 are over it already
    assert bit["accuracy_at_budget"] == next(a for _, sent, a in reversed(bit["history"]) if sent <= budget)


def test_it_can_stop_at_the_target_and_say_that_it_was_not_reached(task: Task) -> None:
    (row,) = trained(["mpdd:m=400"], task, target=0.3, stop_at_target=True)
    early = row.as_dict()
    assert early["rounds"] == early["rounds_to_target"] < 40
    assert row.run.state == "ended early"
    (row,) = trained(["mpdd:m=1"], task, SHORT, target=0.99)
    assert row.as_dict()["bytes_to_target"] is row.as_dict()["rounds_to_target"] is None


def test_every_codec_comes_with_every_seed_and_the_baseline_first(tmp_path: Path) -> None:
    planned = trials(
        ["fedsgd", "mpdd:m=4"], seeds=[3, 5], below=tmp_path, baseline=codec_config(CONFIG, "mpdd:m=4").codec
    )
    assert [(trial.codec, trial.config.seed) for trial in planned] == [
        ("mpdd:m=4", 3), ("mpdd:m=4", 5), ("fedsgd", 3), ("fedsgd", 5),
    ]  # fmt: skip
    assert [str(trial.folder) for trial in planned] == [
        str(tmp_path / name) for name in ("mpdd_m=4-seed-3", "mpdd_m=4-seed-5", "fedsgd-seed-3", "fedsgd-seed-5")
    ]
    with pytest.raises(ConfigError, match="baseline mpdd:m=5 is none of the codecs fedsgd, mpdd:m=4; add it to them"):
        trials(["fedsgd", "mpdd:m=4"], baseline=codec_config(CONFIG, "mpdd:m=5").codec)


@pytest.mark.parametrize("words", ["mine.py:Net(m=3, size='a/b')", "x" * 300, "a b", "ä:m=1"])
def test_names_of_folders_are_legal_and_differ(words: str) -> None:
    name = runs._folder_name(words)
    assert len(name.encode()) < 200
    assert not set(name) & set('<>:"/\\|?*() ')
    assert name != runs._folder_name(words + "x")
    assert runs._folder_name("mpdd:m=4") == "mpdd_m=4" != runs._folder_name("mpdd/m=4")


def test_everything_is_checked_before_the_first_round(task: Task) -> None:
    rounds: list[Any] = []
    heard = AfterRound(lambda *seen: rounds.append(seen))
    for codecs, message in (
        (["mpdd:m=4", "mpdd:m=0"], "m = 0"),
        (["mpdd:m=4", "mpdd:m=9000:family=hadamard"], "must not exceed d"),
        (["mpdd:m=4:bits=1", "mpdd:bits=1:m=4"], "mpdd:bits=1:m=4 and mpdd:m=4:bits=1 are the same codec"),
        (["fedsgd", "fedsgd"], "fedsgd and fedsgd are the same codec"),
        ([], "nothing to compare"),
    ):
        with pytest.raises(ConfigError, match=message):
            trained(codecs, task, callbacks=[heard])
    with pytest.raises(ConfigError, match="came without a target"):
        trained(["mpdd:m=4"], task, stop_at_target=True)
    for seeds in ([], [1, 1]):
        with pytest.raises(ConfigError, match="expected one at least, each once"):
            trials(["fedsgd"], seeds=seeds)
    assert rounds == []


def test_a_codec_that_fails_does_not_take_the_others_along(task: Task, tmp_path: Path) -> None:
    config = parse_config({**BASE, "rounds": 8, "evaluate_every": 2, "lr": 1e37})
    for below in (None, tmp_path, tmp_path):  # the last time, folders are read
        failed, sound = compare(trials(["mpdd:m=4", "laplace:noise=0.1"], config, below=below), task)[0]
        assert failed.error is not None
        assert "finite" in failed.error or "too large" in failed.error
        assert failed.run.state == "diverged"
        assert sound.codec.startswith("laplace")


class Stop(Callback):
    """Stops a comparison as Ctrl-C does, after so many rounds of all trainings."""

    def __init__(self, after: int) -> None:
        self._left = after

    def after_round(self, training: Any, metrics: Any) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def test_what_was_stopped_goes_on_and_ends_in_the_same_bits(task: Task, tmp_path: Path) -> None:
    def results(below: Path | None, *callbacks: Callback) -> list[Any]:
        planned = trials(["fedsgd", "mpdd:m=8"], SHORT, seeds=[1, 2], below=below)
        rows, left_out = compare(planned, task, callbacks=callbacks)
        assert left_out == []
        runs = [row.run for row in rows]
        return [(run.config, run.history.evaluations, (run.summary or {})["model_sha256"]) for run in runs]

    counted: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        results(tmp_path / "kept", Stop(after=9))
    done = {folder.name: len(read_run(folder).history) for folder in sorted((tmp_path / "kept").iterdir())}
    assert list(done) == ["fedsgd-seed-1", "fedsgd-seed-2"]
    assert done["fedsgd-seed-1"] == 6
    again = results(tmp_path / "kept", AfterRound(lambda _, metrics: counted.append(metrics.round)))
    assert again == results(None)
    assert len(counted) <= 18  # 6 of 24 are not trained again
    once_more = results(tmp_path / "kept", AfterRound(lambda *_: pytest.fail("it was finished")))
    assert once_more == again


def test_a_run_that_ended_at_its_target_goes_on_where_more_is_wanted(task: Task, tmp_path: Path) -> None:
    def rounds(target: float, *, stop: bool = True) -> int:
        (row,), _ = compare(trials(["fedsgd"], below=tmp_path), task, target=target, stop_at_target=stop)
        return row.run.history.last.rounds

    first = rounds(0.3)
    assert rounds(0.3) == first
    assert first < rounds(0.7) < rounds(0.7, stop=False) == 40


def test_folders_of_other_settings_are_refused_and_damaged_ones_left_out(task: Task, tmp_path: Path) -> None:
    codecs = ["fedsgd", "mpdd:m=8"]
    compare(trials(codecs, SHORT, below=tmp_path), task)
    other = parse_config({**BASE, "rounds": 6, "evaluate_every": 2, "lr": 0.3})
    with pytest.raises(
        RunError, match=r"fedsgd-seed-17 was trained with other settings: lr: 0\.2 → 0\.3; choose another folder"
    ):
        compare(trials(codecs, other, below=tmp_path), task)
    (tmp_path / "fedsgd-seed-17" / METRICS).write_text("{}\n{}\n")
    rows, (left_out,) = compare(trials(codecs, SHORT, below=tmp_path), task)
    assert [row.codec for row in rows] == ["mpdd:m=8"]
    assert rows[0].seconds is None
    assert "fedsgd-seed-17/metrics.jsonl, line 1 is damaged" in left_out
    (tmp_path / "mpdd_m=8-seed-17" / SUMMARY).write_text("[")
    with pytest.raises(RunError, match=r"nothing left to compare: .*fedsgd-seed-17.*mpdd_m=8-seed-17"):
        compare(trials(codecs, SHORT, below=tmp_path), task)


def test_order_of_overrides_does_not_matter_for_the_codec() -> None:
    config = load_config("demo", ["codec.bits=1", "codec.name=mpdd", "codec.m=40"])
    assert config.codec.build() == MPDD(40, bits=1)
