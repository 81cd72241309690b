"""Run folders: whole or not at all, and the same bits after any interruption."""

import gc
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedmpdd import documents
from fedmpdd.cli import main
from fedmpdd.errors import ConfigError, GradientError, InputError, RunError
from fedmpdd.runs import folders
from fedmpdd.runs.folders import Run, free_folder
from fedmpdd.runs.history import read_config, read_metrics, read_run
from fedmpdd.server import checkpoints
from fedmpdd.simulation import parse_config
from fedmpdd.simulation.replay import replay
from tests.simulation.test_engine import BASE

CONFIG = parse_config(
    {**BASE, "rounds": 12, "evaluate_every": 4, "checkpoint_every": 5, "server": {"optimiser": "adam"}}
)


def run_folder(path: Path) -> dict[str, Any]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


def test_a_run_leaves_what_it_promises(tmp_path: Path) -> None:
    summary = Run.create(tmp_path / "run", CONFIG).train()
    files = run_folder(tmp_path / "run")
    assert set(files) == {"config.json", "environment.json", "metrics.jsonl", "checkpoint.safetensors", "summary.json"}
    assert json.loads(files["summary.json"]) == summary
    rows = list(read_metrics(tmp_path / "run"))
    assert [row["round"] for row in rows] == list(range(12))
    assert summary["uplink_bytes"] == sum(row["uplink_bytes"] for row in rows)
    assert summary["accuracy"] == rows[-1]["accuracy"]
    keys = {"loss", "accuracy", "uplink_bytes", "downlink_bytes", "gradient_s", "encode_s", "decode_s"}
    assert all(keys <= set(row) for row in rows)
    (environment,) = json.loads(files["environment.json"])
    assert {"python", "torch", "numpy", "kernels", "threads"} <= set(environment)


@pytest.mark.parametrize("stop", [1, 5, 7, 11])
def test_resumed_run_ends_in_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole = Run.create(tmp_path / "whole", CONFIG).train()

    def interrupt(metrics: Any, run: Any) -> None:
        if metrics.round + 1 == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "cut", CONFIG).train(interrupt)
    resumed = Run.resume(tmp_path / "cut")
    assert resumed.federation.next_round == stop // 5 * 5
    summary = resumed.train()
    assert {**summary, "run": ""} == {**whole, "run": ""}
    assert len(list(read_metrics(tmp_path / "cut"))) == 12
    assert len(json.loads((tmp_path / "cut" / "environment.json").read_text(encoding="utf-8"))) == 2


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    summary = Run.create(tmp_path / "run", CONFIG).train()
    assert Run.resume(tmp_path / "run").train() == summary


def test_a_torn_last_line_is_dropped_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = Run.create(folder, CONFIG).train()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    (folder / "metrics.jsonl").write_text(lines + '{"round": 12, "lo', encoding="utf-8")
    assert Run.resume(folder).train()["model_sha256"] == whole["model_sha256"]
    (folder / "metrics.jsonl").write_text(lines.replace('{"round": 3', '{"rou', 1), encoding="utf-8")
    with pytest.raises(RunError, match="line 4 is damaged"):
        Run.resume(folder)
    (folder / "metrics.jsonl").write_text("".join(lines.splitlines(keepends=True)[:4]), encoding="utf-8")
    with pytest.raises(RunError, match="does not hold rounds 0 to 11"):
        Run.resume(folder)


def test_damaged_or_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        Run.resume(tmp_path)
    folder = tmp_path / "run"
    Run.create(folder, CONFIG).train()
    before = run_folder(folder)
    with pytest.raises(RunError, match="exists already"):
        Run.create(folder, CONFIG)
    assert run_folder(folder) == before  # nothing was written over
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged"):
        Run.resume(folder)
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        Run.resume(folder)


def edit(folder: Path, *, forget: bool = False, **changed: Any) -> None:
    """Write other settings into config.json; and forget what starts noted of it, as those of earlier versions do."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changed}), encoding="utf-8")
    if forget:
        (folder / "environment.json").unlink()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", CONFIG).train()
    edit(tmp_path / "run", model="lenet", forget=True)
    with pytest.raises(RunError, match="of another model"):
        Run.resume(tmp_path / "run")


def test_flipped_bits_of_a_checkpoint_are_errors_and_never_another_model(tmp_path: Path) -> None:
    """A sample; tests/server/test_checkpoints.py flips every bit of a small one."""
    folder = tmp_path / "run"
    Run.create(folder, CONFIG).train()
    path = folder / "checkpoint.safetensors"
    whole = path.read_bytes()
    config = read_config(folder)
    for bit in random.Random(3).sample(range(8 * len(whole)), 300):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(RunError, match="delete it to start the run again"):
            folders.read_checkpoint(path, config, 7850)
    with pytest.raises(RunError, match=r"checkpoint\.safetensors (is damaged|is of another)"):
        Run.resume(folder)


def test_a_checkpoint_of_another_run_is_refused_by_its_config(tmp_path: Path) -> None:
    for name, lr in (("one", 0.2), ("other", 0.3)):
        Run.create(tmp_path / name, CONFIG.model_copy(update={"lr": lr})).train()
    (tmp_path / "other" / "checkpoint.safetensors").replace(tmp_path / "one" / "checkpoint.safetensors")
    with pytest.raises(RunError, match=r"of another run: .*lr: 0\.3 → 0\.2 in config\.json"):
        Run.resume(tmp_path / "one")


@pytest.mark.parametrize("journal", [False, True])
def test_rounds_may_be_raised_and_give_the_model_of_a_longer_run(tmp_path: Path, journal: bool) -> None:
    folder = tmp_path / "run"
    config = CONFIG.model_copy(update={"journal": journal})
    Run.create(folder, config).train()
    whole = Run.create(tmp_path / "whole", config.model_copy(update={"rounds": 14})).train()
    assert Run.resume(folder, rounds=14, evaluate_every=2).train()["model_sha256"] == whole["model_sha256"]
    assert (read_config(folder).rounds, read_config(folder).evaluate_every) == (14, 2)
    assert Run.resume(folder).train()["rounds"] == 14
    if journal:
        assert replay(folder).matches
    with pytest.raises(RunError, match=r"rounds = 13, and .* has 14 already; give at least as many"):
        Run.resume(folder, rounds=13)
    with pytest.raises(RunError, match=r"lr = 0\.5 cannot be given to .*: a run keeps its settings"):
        Run.resume(folder, lr=0.5)


@pytest.mark.parametrize("kept", ["checkpoint.safetensors", "journal.fmpj", "metrics.jsonl"])
def test_a_config_that_was_changed_is_refused_by_what_changed(tmp_path: Path, kept: str) -> None:
    """Whatever else is in the folder: a checkpoint, a journal, or neither."""
    folder = tmp_path / "run"
    Run.create(folder, CONFIG.model_copy(update={"journal": kept == "journal.fmpj"})).train()
    for name in {"checkpoint.safetensors", "summary.json"} - {kept}:
        (folder / name).unlink()
    edit(folder, codec={"name": "mpdd", "m": 32}, rounds=14)
    with pytest.raises(RunError, match=r"config\.json was changed .*rounds: 12 → 14, codec\.m: 64 → 32; put back"):
        Run.resume(folder)
    with pytest.raises(RunError, match=r"config\.json was changed"):
        read_run(folder)  # a page would label it with what it was not trained with


@pytest.mark.parametrize("journal", [False, True])
def test_folders_of_earlier_versions_are_checked_by_what_they_hold(tmp_path: Path, journal: bool) -> None:
    folder = tmp_path / "run"
    whole = Run.create(folder, CONFIG.model_copy(update={"journal": journal})).train()
    edit(folder, forget=True, codec={"name": "mpdd", "m": 32})
    with pytest.raises(RunError, match=r"codec\.m: 64 → 32"):
        Run.resume(folder)
    edit(folder, codec={"name": "mpdd", "m": 64})
    assert Run.resume(folder).train() == whole


def test_a_kill_while_rounds_are_raised_leaves_a_run_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    Run.create(folder, CONFIG).train()
    written = documents.write_json

    def killed(path: Path, document: Any) -> None:
        if path.name == "config.json":
            raise KeyboardInterrupt
        written(path, document)

    monkeypatch.setattr(folders, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        Run.resume(folder, rounds=14).train()
    monkeypatch.undo()
    assert Run.resume(folder).train()["rounds"] == 12
    assert Run.resume(folder, rounds=14).train()["rounds"] == 14


def test_a_resume_says_when_code_of_ones_own_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "changing_net.py").write_text("from tests.tasks.test_models import Tiny", encoding="utf-8")
    Run.create(tmp_path / "run", CONFIG.model_copy(update={"model": "changing_net.py:Tiny"})).train()
    (start,) = json.loads((tmp_path / "run" / "environment.json").read_text(encoding="utf-8"))
    assert start["sources"]["model"]["path"] == "changing_net.py:Tiny"
    Run.resume(tmp_path / "run", trust_imports=True).train()
    assert "has other code" not in caplog.text
    with (tmp_path / "changing_net.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    Run.resume(tmp_path / "run", trust_imports=True).train()
    assert "changing_net.py, which holds model, has other code" in caplog.text


def unsealed(folder: Path, next_round: str) -> None:
    """The checkpoint as versions before the hash wrote it."""
    path = folder / "checkpoint.safetensors"
    save_file(load_file(path), path, metadata={"next_round": next_round})


def test_an_old_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    summary = Run.create(tmp_path / "run", CONFIG).train()
    unsealed(tmp_path / "run", "12")
    assert Run.resume(tmp_path / "run").train() == summary


@pytest.mark.parametrize("text", ["-1", "1" * 4_001, "1" * 5_000, "1000000000", "13", "x"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_checkpoint_of_a_round_that_cannot_be_is_refused(tmp_path: Path, text: str, sealed: bool) -> None:
    folder = tmp_path / "run"
    Run.create(folder, CONFIG).train()
    if sealed:
        path = folder / "checkpoint.safetensors"
        found = folders.read_checkpoint(path, CONFIG, 7850)
        checkpoints.write_checkpoint(path, found.vectors, {**found.notes, "next_round": text})
    else:
        unsealed(folder, text)
    with pytest.raises(RunError, match=r"next_round = .*expected a whole number from 0 to 12; delete it"):
        Run.resume(folder)


def test_an_old_checkpoint_with_nan_or_strange_clients_is_refused(tmp_path: Path) -> None:
    changes = {"codec": {"name": "topk", "k": 5, "error_feedback": True}, "rounds": 2, "clients": 4}
    folder = tmp_path / "run"
    Run.create(folder, parse_config({**BASE, **changes})).train()
    path = folder / "checkpoint.safetensors"
    state = load_file(path)
    memory = next(name for name in state if name.startswith("feedback."))
    for name in ("feedback.4", "feedback.-1", "feedback.x", "feedback.01", "feedback." + "1" * 5_000):
        wrong = {name if key == memory else key: value for key, value in state.items()}
        save_file(wrong, path, metadata={"next_round": "2"})
        with pytest.raises(RunError, match="of another model, server or codec"):
            Run.resume(folder)
    state["model"][7] = torch.nan
    save_file(state, path, metadata={"next_round": "2"})
    with pytest.raises(RunError, match="model holds NaN"):
        Run.resume(folder)


def test_a_model_that_is_not_finite_does_not_replace_a_checkpoint(tmp_path: Path) -> None:
    """A run that diverges does so again after a resume, in the same round and with the same error."""
    config = parse_config({**BASE, "lr": 3e38, "codec": {"name": "fedsgd"}, "checkpoint_every": 1, "rounds": 5})

    def end_of(make: Callable[[], Run]) -> str:
        with pytest.raises(GradientError) as caught:
            make().train()
        return str(caught.value)

    folder = tmp_path / "run"
    first = end_of(lambda: Run.create(folder, config))
    gc.collect()  # what was raised holds the run, and with it the lock
    assert len(list(read_metrics(folder))) > 0
    assert end_of(lambda: Run.resume(folder)) == first


MANY = "[" * 100_000
BAD_FILES = {
    "config brackets": ("config.json", MANY),
    "config null": ("config.json", "null"),
    "config digits": ("config.json", '{"rounds": ' + "9" * 5_000 + "}"),
    "environment null": ("environment.json", "null"),
    "environment number": ("environment.json", "3"),
    "environment of numbers": ("environment.json", "[3]"),
    "environment object": ("environment.json", "{}"),
    "environment brackets": ("environment.json", MANY),
    "metrics brackets": ("metrics.jsonl", MANY + "\n{}\n"),
    "metrics one long line": ("metrics.jsonl", "x" * 200_000),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    Run.create(folder, CONFIG).train()
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(("name", "text"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_is_no_document_is_an_error_of_ours(copied: Path, name: str, text: str) -> None:
    (copied / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"is damaged|a config is a table"):
        Run.resume(copied).train()


@pytest.mark.parametrize(
    ("key", "value"),
    [("round", "3"), ("round", -1), ("clients", None), ("uplink_bytes", 1e300), ("accuracy", "high"), ("accuracy", 7)],
)
def test_a_line_of_metrics_with_what_cannot_be_is_named(copied: Path, key: str, value: Any) -> None:
    lines = (copied / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    lines[3] = json.dumps({**json.loads(lines[3]), key: value}) + "\n"
    (copied / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    with pytest.raises(RunError, match=f"line 4 is damaged: {key} = "):
        Run.resume(copied)


def test_a_resume_says_what_may_change_bits_and_has_changed(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = copied / "environment.json"
    (start,) = json.loads(path.read_text(encoding="utf-8"))
    assert {"cpu_capability", "mkl", "onednn", "blas", "variables", "torch_threads"} <= set(start)
    with caplog.at_level(logging.WARNING, "fedmpdd"):
        Run.resume(copied).train()
    assert not caplog.records
    start |= {"cpu_capability": "SSE9", "torch": "1.0", "python": "2.7", "threads": 99}
    path.write_text(json.dumps([start]), encoding="utf-8")
    with caplog.at_level(logging.WARNING, "fedmpdd"):
        Run.resume(copied).train()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "cpu_capability was 'SSE9', is " in line
    assert "torch was '1.0', is " in line
    assert "python" not in line  # which changes no bits
    old = {key: start[key] for key in ("python", "numpy", "kernels")}  # of a version that noted less
    path.write_text(json.dumps([old]), encoding="utf-8")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedmpdd"):
        Run.resume(copied).train()
    assert not caplog.records


def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    with pytest.raises(RunError, match="in use by another process"):
        Run.resume(tmp_path / "run")
    summary = run.train()
    del run
    assert Run.resume(tmp_path / "run").train() == summary


def test_a_kill_while_the_folder_is_made_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "run", CONFIG)
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    assert Run.create(tmp_path / "run", CONFIG).train()["rounds"] == 12


def test_metrics_that_were_changed_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run.create(folder, CONFIG).train()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for changed in (lines[:3] + lines[2:3] + lines[4:], ["{}\n", *lines[1:]], ["5\n", *lines[1:]]):
        (folder / "metrics.jsonl").write_text("".join(changed), encoding="utf-8")
        with pytest.raises(RunError, match=r"does not hold|is damaged"):
            Run.resume(folder)
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "environment.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"environment\.json is damaged"):
        Run.resume(folder).train()


def test_a_round_without_answers_is_json(tmp_path: Path) -> None:
    config = parse_config({**BASE, "clients": 2, "dropout": 0.9, "rounds": 8})
    Run.create(tmp_path / "run", config).train()
    rows = list(read_metrics(tmp_path / "run"))
    assert any(row["clients"] == 0 and row["loss"] is None for row in rows)


def test_free_folders_are_numbered(tmp_path: Path) -> None:
    assert free_folder("some/where/mine.toml", tmp_path).name == "mine-001"
    (tmp_path / "mine-001").mkdir()
    assert free_folder("mine", tmp_path).name == "mine-002"


@pytest.mark.slow
def test_kill_nine_at_random_moments_and_resume(tmp_path: Path) -> None:
    """A real process, killed again and again; the model it ends with is that of a run left alone."""
    changes = ["rounds=300", "evaluate_every=50", "checkpoint_every=3", "codec.m=64", "clients=20", "batch=2"]
    command = [sys.executable, "-m", "fedmpdd", "run"]
    alone = subprocess.run(
        [*command, "demo", *changes, "--out", str(tmp_path / "alone"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(alone.stdout)["model_sha256"]
    rng = random.Random(5)
    folder = tmp_path / "killed"
    kills = 0
    while not (folder / "summary.json").exists() and kills < 40:
        resumable = (folder / "config.json").exists()
        arguments = ["--resume", str(folder)] if resumable else ["demo", *changes, "--out", str(folder)]
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kills < 2:  # test_replay.py has fifty
            # Wait until it is training, then a random moment more.
            deadline = time.monotonic() + 60
            marker = folder / "environment.json"
            seen = marker.stat().st_mtime_ns if marker.exists() else 0
            while process.poll() is None and time.monotonic() < deadline:
                if marker.exists() and marker.stat().st_mtime_ns > seen:
                    break
                time.sleep(0.005)
            time.sleep(rng.uniform(0.02, 0.4))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.wait()
    assert kills >= 2
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["model_sha256"] == expected


def test_tensorboard_events_are_written_beside_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    settings = ["rounds=3", "clients=20", "codec.m=8", "evaluate_every=2"]
    words = ["fedmpdd", "run", "demo", *settings, "--out", str(tmp_path / "run"), "--tensorboard"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    written = events.read_bytes()
    assert all(name in written for name in (b"uplink_bytes", b"accuracy", b"loss"))


def test_a_file_of_somebodys_own_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, other = tmp_path / "begun", tmp_path / "other"
    begun.mkdir()
    other.mkdir()
    text = "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    (begun / "net_found_again.py").write_text(text)
    monkeypatch.chdir(begun)
    settings = {"model": "net_found_again.py:make", "rounds": 2, "clients": 4, "participation": 1.0}
    Run.create(tmp_path / "run", parse_config({**settings, "codec": {"name": "mpdd", "m": 8}})).train()
    monkeypatch.chdir(other)
    assert Run.resume(tmp_path / "run", trust_imports=True, rounds=3).train()["rounds"] == 3
    (begun / "net_found_again.py").unlink()
    with pytest.raises(ConfigError, match=r"there is no file net_found_again\.py"):
        Run.resume(tmp_path / "run", trust_imports=True, rounds=4)
