"""The command line, as a user's shell sees it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from safetensors import safe_open

import fedmpdd
from fedmpdd.cli import main
from fedmpdd.runs.folders import CHECKPOINT
from fedmpdd.runs.history import METRICS
from fedmpdd.server.journal import JournalReader
from tests.report.fixtures import make_run, make_runs

Refused = Callable[..., str]
Done = Callable[..., tuple[str, str]]


def fedmpdd_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: another start takes seconds, and two tests below have one of their own."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()):
        patch.setattr(sys, "argv", ["fedmpdd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return subprocess.CompletedProcess(arguments, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Run a command that cannot be meant, in an empty folder and in this process: another start takes seconds."""

    def run(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedmpdd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2, arguments
        return capsys.readouterr().err

    return run


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Done:
    """Run a command in an empty folder and in this process, and return what it printed on output and error."""

    def run(*arguments: str) -> tuple[str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedmpdd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out, printed.err

    return run


def test_version_and_help() -> None:
    assert fedmpdd_command("--version").stdout.strip() == fedmpdd.__version__
    for arguments in ([], ["--help"], ["demo", "--help"]):
        result = fedmpdd_command(*arguments)
        assert "Usage" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", "A TOML file, or a shipped name"),
        ("replay", "A run folder with a journal"),
        ("compare", "Changes, like codec.m=400"),
        ("audit", "Changes, like codec.m=400"),
        ("report", "Run folders, audit folders"),
        ("epsilon", "A TOML file, or a shipped name"),
        ("verify", "estimator, norms, averaging, convergence, inversion"),
        ("reproduce", "Tables and figures by name, or all"),
        ("data fetch", "A dataset, or all"),
    ],
)
def test_help_has_an_example_and_says_what_arguments_are(command: str, words: str) -> None:
    text = " ".join(fedmpdd_command(*command.split(), "--help").stdout.replace("│", " ").split())
    assert f"Example: fedmpdd {command}" in text
    arguments = text.partition("Arguments")[2].partition("Options")[0]
    assert words in arguments


@pytest.mark.parametrize("command", ["demo", "plan", "meter", "data list"])
def test_help_of_what_takes_no_arguments_has_an_example(command: str) -> None:
    assert f"Example: fedmpdd {command}" in " ".join(fedmpdd_command(*command.split(), "--help").stdout.split())


def test_what_is_told_to_end_ends_with_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ("rounds=100000", "checkpoint_every=100000", "clients=10")
    command = [sys.executable, "-m", "fedmpdd", "run", "demo", *settings, "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as training:
        while not (folder / METRICS).exists() or (folder / METRICS).read_bytes().count(b"\n") < 10:
            assert training.poll() is None
            time.sleep(0.05)
        training.terminate()
        _, told = training.communicate(timeout=60)
    assert training.returncode == 130
    assert f"fedmpdd run --resume {folder}" in "".join(told.splitlines())
    done = (folder / METRICS).read_bytes().count(b"\n")
    with safe_open(folder / CHECKPOINT, framework="numpy") as kept:
        assert int(kept.metadata()["next_round"]) == done > 9


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["demo", "--out"],
        ["audit", "no-such-config"],
        ["audit", "demo", "audit.attacks=['magic']"],
        ["report"],
        ["report", "no-such-folder"],
        ["report", ".", "--target", "many"],
    ],
)
def test_bad_input_is_exit_status_2(refused: Refused, arguments: list[str]) -> None:
    assert "Traceback" not in refused(*arguments)


def test_bad_input_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "fedmpdd", "audit", "no-such-config"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("place", ["missing/page.html", ".", ""])
def test_a_page_that_cannot_be_written_is_bad_input(refused: Refused, tmp_path: Path, place: str) -> None:
    assert "--out" in refused("demo", "--out", place)
    assert list(tmp_path.iterdir()) == []


def test_demo_writes_a_page_and_one_json_document(tmp_path: Path) -> None:
    result = fedmpdd_command("demo", "--out", "page.html", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    for words in ("fedmpdd report", "To 80 % test accuracy", "Where they differ", "Versions and machine", "1/1,033"):
        assert words in page, words
    fedsgd, paper, *ours = document["rows"]
    assert all(row["final_accuracy"] > 0.8 for row in document["rows"])
    assert fedsgd["bytes_to_target"] > 15 * paper["bytes_to_target"]
    assert all(paper["bytes_to_target"] > 15 * row["bytes_to_target"] for row in ours)


def test_run_resume_and_bad_folders(refused: Refused, tmp_path: Path) -> None:
    changes = ["rounds=6", "clients=20", "codec.m=16", "evaluate_every=3"]
    first = fedmpdd_command("run", "demo", *changes, "--out", "mine", "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert set(document) >= {"run", "rounds", "accuracy", "uplink_bytes", "downlink_bytes", "model_sha256"}
    again = fedmpdd_command("run", "--resume", "mine", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == document
    for arguments in (
        ["run", "demo", "--out", "mine"],
        ["run", "demo", "--resume", "mine"],
        ["run", "--resume", "nowhere"],
        ["run"],
        ["run", "demo", "codec.m=none"],
        ["compare", "demo"],
        ["compare", "demo", "--codecs", "fedsgd", "--target", "0", "--out", "page.html"],
        ["plan", "--d", "100"],
        ["verify", "everything"],
        ["verify", "--plot", "missing/page.html"],
        ["verify", "norms", "--plot", "page.html"],
        ["data", "check", "imagenet"],
        ["reproduce", "mnist-iid-logistic", "--methods", ","],
        ["reproduce", "encode-latency", "--methods", "fedsgd"],
        ["reproduce", "encode-latency", "--device", "tpu"],
        ["reproduce", "mnist-iid-logistic", "--out", "mine/config.json"],
        ["epsilon", "demo"],
        ["epsilon", "demo", "codec.clip=1", "--delta", "2"],
    ):
        assert refused(*arguments).startswith("error: ")
    for arguments, remedy in (
        (["run", "demo", "--rounds", "5"], "write rounds=5"),
        (["run", "demo", "--codec", "fedsgd"], "write codec=fedsgd"),
        (["audit", "demo", "--effort", "3"], "write audit.effort=3"),
        (["run", "demo", "partition=iid"], "expected a table of keys; write each like partition.KEY=…"),
        (["compare", "demo", "--codecs", "fedsgd,mpdd:400"], "'400' is no parameter; write key=value, like mpdd:m=…"),
        (["compare", "demo", "--codecs", "fedsgd mpdd:m=4"], "did you mean fedsgd? use one of"),
    ):
        assert remedy in " ".join(refused(*arguments).split()), arguments
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_run_shows_the_score_that_it_has(done: Done, tmp_path: Path) -> None:
    examples = "def examples():\n    x = torch.arange(60.0)[:, None] / 60\n    return (x, 2 * x), (x, 2 * x)\n"
    line = "def line():\n    return torch.nn.Linear(1, 1)\n"
    (tmp_path / "mine.py").write_text(f"import torch\n{examples}{line}", encoding="utf-8")
    own = ["dataset=mine.py:examples", "model=mine.py:line", "loss=torch.nn.functional:mse_loss", "codec.name=fedsgd"]
    _, shown = done("run", "demo", *own, "clients=4", "clients_per_round=4", "rounds=2", "evaluate_every=1")
    assert re.search(r"round 2 of 2  loss \d", shown)
    assert "accuracy" not in shown


def test_a_model_may_lie_in_a_folder_beside_this_one(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    text = "from torch import nn\ndef line():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    (tmp_path / "there" / "mine.py").write_text(text, encoding="utf-8")
    named = "model=../there/mine.py:line"
    with chdir(tmp_path / "here"):
        result = fedmpdd_command("run", "demo", named, "clients=4", "clients_per_round=4", "rounds=2", "--out", "run")
        assert result.stdout.startswith("2 rounds"), result.stderr
        result = fedmpdd_command("run", "--resume", "run", "rounds=3", named)
        assert result.stdout.startswith("3 rounds"), result.stderr


def test_compare_and_plan_print_one_document(tmp_path: Path) -> None:
    codecs = "fedsgd,mpdd:m=16"
    result = fedmpdd_command(
        "compare", "demo", "rounds=4", "--codecs", codecs, "--target", "0.2", "--json", cwd=tmp_path
    )
    keys = {"codec", "bytes_to_target", "rounds_to_target", "accuracy_at_budget", "final_accuracy", "seconds"}
    assert all(keys <= set(row) for row in json.loads(result.stdout)["rows"])
    wishes = ("--target", "0.2", "--budget", "5000000", "--out", "page.html")
    plain = fedmpdd_command("compare", "demo", "rounds=4", "--codecs", codecs, *wishes, cwd=tmp_path)
    assert "fedsgd" in plain.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "To 20 % test accuracy" in page
    assert "Accuracy with 5 MB of uplink" in page
    refused = fedmpdd_command("compare", "demo", "--codecs", codecs, "--out", "missing/page.html", cwd=tmp_path)
    assert (refused.returncode, "--out missing/page.html" in refused.stderr) == (2, True)
    planned = fedmpdd_command("plan", "--model", "lenet", "--budget", "64", "--json")
    assert json.loads(planned.stdout)["d"] == 13_426


LONG = "mpdd:m=400:bits=1:family=hadamard:keys=partitioned"
COMPARE = ("compare", "demo", "rounds=4", "evaluate_every=2", "--codecs", f"fedsgd,{LONG}", "--seeds", "2")


def test_compare_keeps_runs_that_go_on_and_their_page(done: Done, refused: Refused, tmp_path: Path) -> None:
    document = json.loads(done(*COMPARE, "--target", "0.2", "--out", "kept", "--json")[0])
    assert [(row["codec"], row["seed"]) for row in document["rows"]] == [
        ("fedsgd", 17), ("fedsgd", 18), (LONG, 17), (LONG, 18),
    ]  # fmt: skip
    assert [(group["name"], group["seeds"]) for group in document["groups"]] == [("fedsgd", [17, 18]), (LONG, [17, 18])]
    assert document["left_out"] == []
    folders = sorted(path.name for path in (tmp_path / "kept").iterdir())
    slug = LONG.replace(":", "_")
    names = ["fedsgd-seed-17", "fedsgd-seed-18", f"{slug}-seed-17", f"{slug}-seed-18", "report.html"]
    assert folders == names
    metrics = tmp_path / "kept" / "fedsgd-seed-17" / METRICS
    before = metrics.stat().st_mtime_ns
    out, err = done(*COMPARE, "--target", "0.2", "--out", "kept", "--baseline", LONG)
    assert metrics.stat().st_mtime_ns == before
    assert "round" not in err
    assert f"uplink against {LONG}" in " ".join(out.split())
    assert out.index(LONG, out.index(LONG) + 1) < out.index("fedsgd")
    assert "times more" in out
    metrics.write_text("{}\n{}\n")
    out, err = done(*COMPARE, "--out", "kept")
    assert "left out: kept/fedsgd-seed-17/metrics.jsonl, line 1 is damaged" in err
    page = (tmp_path / "kept" / "report.html").read_text(encoding="utf-8")
    assert "Left out: kept/fedsgd-seed-17" in page
    out, err = done("report", "kept", "-o", "page.html")
    assert "left out: kept/fedsgd-seed-17" in err
    for arguments, word in (
        (
            [*COMPARE, "lr=0.3", "--out", "kept"],
            "was trained with other settings: lr: 0.5 → 0.3; choose another folder",
        ),
        ([*COMPARE, "--out", "kept/fedsgd-seed-18/config.json"], "is a file; name a folder"),
        ([*COMPARE, "--baseline", "mpdd:m=3"], "baseline mpdd:m=3 is none of the codecs"),
        (["compare", "demo", "--codecs", "mpdd,m=400"], "a colon, not a comma: mpdd:m=400"),
        (["compare", "demo", "--codecs", "fedsgd", "--target", "60"], "target 60 is no accuracy"),
        (["report", "kept/fedsgd-seed-17", "-o", "page.html"], "nothing left to report on"),
    ):
        assert word in refused(*arguments)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_names_and_numbers_of_a_comparison_are_never_cut(
    done: Done, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out, _ = done(*COMPARE, "--target", "0.2", "--budget", "5000000")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= columns
    assert LONG in "".join(out.split())
    assert out.count("%") >= 5


def test_a_comparison_that_is_stopped_says_how_it_goes_on(tmp_path: Path) -> None:
    words = ("compare", "demo", "rounds=100000", "clients=10", "--codecs", "fedsgd", "--out", str(tmp_path / "kept"))
    metrics = tmp_path / "kept" / "fedsgd-seed-17" / METRICS
    over = threading.Event()

    def terminate() -> None:
        while not metrics.exists():
            if over.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    terminator = threading.Thread(target=terminate)
    terminator.start()
    try:
        stopped = fedmpdd_command(*words)
    finally:
        over.set()
        terminator.join()
    assert stopped.returncode == 130
    assert f"stopped; the same command with --out {tmp_path / 'kept'} goes on from there" in stopped.stderr
    assert metrics.with_name(CHECKPOINT).is_file()


def test_reproduce_lists_what_there_is(tmp_path: Path) -> None:
    names = json.loads(fedmpdd_command("reproduce", "--json").stdout)["names"]
    assert {"mnist-iid-logistic", "encode-latency", "both-ways"} < set(names)
    plain = fedmpdd_command("reproduce").stdout
    assert all(name in plain for name in names)
    nothing = fedmpdd_command("reproduce", "encode-latency", "recoveries-mnist-logistic", "--done", cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing of it is done in results yet" in nothing.stderr
    assert not list(tmp_path.iterdir())


def test_verify_prints_verdicts_and_the_agreed_keys() -> None:
    result = fedmpdd_command("verify", "norms", "--json")
    assert result.returncode == 0, result.stderr  # whatever the verdicts
    assert "Lemma 2" in result.stderr
    rows = json.loads(result.stdout)["rows"]
    keys = {"claim", "verdict", "measured", "expected", "interval", "corrected", "how"}
    assert all(keys <= set(row) for row in rows)
    assert {row["verdict"] for row in rows} == {"holds", "fails"}
    plain = fedmpdd_command("verify", "averaging")
    assert "holds" in plain.stdout
    assert plain.stdout.count("our formula") == 4


def test_data_commands(tmp_path: Path) -> None:
    listed = json.loads(fedmpdd_command("data", "list", "--data-dir", str(tmp_path), "--json").stdout)
    assert {row["dataset"]: row["state"] for row in listed["rows"]}["mnist"] == "not here"
    checked = fedmpdd_command("data", "check", "mnist-5k")
    assert checked.returncode == 0
    assert "ok" in checked.stdout


def test_epsilon_states_it_with_its_assumptions_or_not_at_all() -> None:
    changes = ["codec.clip=1", "codec.noise_multiplier=0.5", "codec.keys=shared"]
    result = fedmpdd_command("epsilon", "demo", *changes, "--target", "4", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    *rows, run_folder = document["rows"]
    assert [row["model"] for row in rows] == ["local", "aggregate", "central", "clients"]
    assert all(row["epsilon"] > 0 and row["assumptions"] and row["unit"] == "client" for row in rows)
    assert (run_folder["model"], run_folder["epsilon"]) == ("run folder", None)
    assert set(document["noise_multiplier_for_target"]) == {"local", "aggregate", "central", "clients"}
    words = fedmpdd_command("epsilon", "demo", "codec.clip=1").stdout
    assert words.count("no ε at all: there is no noise") == 4
    assert "no ε at all: the mean loss of a round's clients is written down without noise" in words
    replayed = fedmpdd_command("epsilon", "demo", *changes, "downlink=replay", "--colluding", "3", "--json")
    by_model = {row["model"]: row for row in json.loads(replayed.stdout)["rows"]}
    assert by_model["clients"]["epsilon"] == by_model["journal"]["epsilon"] == by_model["local"]["epsilon"]
    assert by_model["clients"]["against"].startswith("any 3 other clients")
    refused = fedmpdd_command("epsilon", "demo")
    assert refused.returncode == 2
    assert "nothing is clipped" in refused.stderr


def test_report_writes_a_page_and_one_document(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs")
    make_run(tmp_path / "runs" / "copy", {6: 0.7}, seed=1)
    wishes = ["--target", "0.6", "--target", "0.7", "--budget", "50"]
    result = fedmpdd_command("report", "runs", "-o", "page.html", *wishes, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["page"] == "page.html"
    assert [target["target"] for target in document["rows"][0]["to_target"]] == [0.6, 0.7]
    assert document["rows"][1]["to_target"][1]["uplink_bytes"]["mean"] == 50
    assert "left out: runs/copy: the same config and seed as runs/a-1" in result.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    for arguments, word in (
        (["report", "runs", "-o", "missing/page.html"], "--out missing/page.html"),
        (["report", "runs", "-o", "p.html", "--target", "60"], "target 60 is no accuracy"),
        (["report", "page.html", "-o", "p.html"], "page.html is a file; expected a run folder"),
    ):
        refused = fedmpdd_command(*arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: ")
        assert word in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]


def test_a_folder_that_names_code_must_be_trusted(
    tmp_path: Path, refused: Refused, done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported, and nothing ends in silence: neither os:abort nor builtins:exit."""
    (tmp_path / "own_model.py").write_text("from tests.tasks.test_models import Tiny", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    changes = ["model=own_model:Tiny", "rounds=2", "clients=10", "codec.m=8", "journal=true"]
    done("run", "demo", *changes, "--out", "mine")  # who types the path trusts it
    monkeypatch.delitem(sys.modules, "own_model")
    for arguments in (["replay", "mine"], ["run", "--resume", "mine"], ["replay", "mine", "model=other:Tiny"]):
        told = refused(*arguments)
        assert "own_model:Tiny" in told
        assert "--trust-imports" in told
    refused("run", "--resume", "mine", "rounds=9")
    refused("replay", "mine", "rounds=9")
    refused("run", "demo", "--trust-imports")
    assert "own_model" not in sys.modules
    for arguments in (["replay", "mine", "--trust-imports"], ["run", "--resume", "mine", "model=own_model:Tiny"]):
        done(*arguments)
        monkeypatch.delitem(sys.modules, "own_model")
    for name in ("os:abort", "builtins:exit"):
        path = tmp_path / "mine" / "journal.fmpj"
        with JournalReader(path) as reader:
            header, start = reader.header, reader.end
        changed = header._replace(config={**header.config, "model": name})
        path.write_bytes(changed.pack() + path.read_bytes()[start:])
        assert name in refused("replay", "mine")
        assert "is not called" in refused("replay", "mine", "--trust-imports")


def test_a_run_of_the_local_engine_does_not_go_on_over_mqtt(done: Done, refused: Refused) -> None:
    """It may have no journal, which acknowledges updates, and its config states an ε for clients who see models."""
    done("run", "demo", "clients=2", "participation=1.0", "rounds=1", "--out", "mine")
    text = " ".join(refused("mqtt", "serve", "--resume", "mine", "rounds=2").split())
    assert "mine is no run of `fedmpdd mqtt serve`: its config has journal = None, downlink = 'model'" in text
    assert "go on with: fedmpdd run --resume mine" in text
