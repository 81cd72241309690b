import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmpdd.errors import RunError
from fedmpdd.report import Goals, tables, write_report
from fedmpdd.report.collect import collect
from fedmpdd.runs.history import Round
from tests.report.fixtures import ONE_BIT, audit_row, make_audit, make_run, make_runs


def test_runs_and_audits_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    make_runs(tmp_path / "deep" / "er")
    make_audit(tmp_path / "audit")
    shutil.copytree(tmp_path / "deep" / "er" / "a-1", tmp_path / ".a-1-123")  # as a run that is being made
    found = collect([tmp_path / "deep" / "er" / "b-2", tmp_path, tmp_path / "audit"])
    assert [run.folder.name for run in found.runs] == ["b-2", "a-1", "a-2", "b-1"]  # as named, then by name
    assert [audit.folder.name for audit in found.audits] == ["audit"]
    assert found.left_out == []


def test_bytes_add_up_and_a_run_knows_its_state(tmp_path: Path) -> None:
    make_run(tmp_path / "whole", {2: 0.5}, rounds=3, uplink=7, payload=5, losses=[3.0, None, 1.0])
    make_run(tmp_path / "cut", {2: 0.5}, rounds=6, done=3, seed=2)
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as lines:
        lines.write('{"round": 3, "lo')  # the process was killed here
    cut, whole = collect([tmp_path]).runs
    assert whole.history.rounds == [
        Round(1, 3.0, None, 7, 5, 1000, 2, metrics={}),
        Round(2, None, 0.5, 14, 10, 2000, 4, metrics={"accuracy": 0.5}),
        Round(3, 1.0, None, 21, 15, 3000, 6, metrics={}),
    ]
    assert whole.finished
    assert (cut.finished, cut.history.last.rounds, cut.summary) == (False, 3, None)
    assert [entry.rounds for entry in cut.history.evaluations] == [2]


def test_a_run_that_ended_at_a_target_is_finished_until_it_goes_on(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", {2: 0.5}, done=3, ended=True)
    assert collect([folder]).runs[0].finished
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps(line | {"round": 3}) + "\n")
    assert not collect([folder]).runs[0].finished


def test_runs_below_a_folder_with_results_of_its_own_are_found(tmp_path: Path) -> None:
    make_runs(tmp_path / "table")
    (tmp_path / "table" / "results.json").write_text("{}")  # as fedmpdd reproduce leaves it
    assert len(collect([tmp_path / "table"]).runs) == 4


def test_a_run_that_has_not_begun_is_unfinished(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "new", {}, done=0)
    (folder / "metrics.jsonl").unlink()
    (folder / "environment.json").unlink()
    (run,) = collect([folder]).runs
    assert (run.finished, run.history.rounds, run.starts) == (False, [], ())


def test_the_same_config_and_seed_count_once_and_the_longer_run_stays(tmp_path: Path) -> None:
    make_run(tmp_path / "short", {2: 0.5}, done=3, codec=ONE_BIT)
    make_run(tmp_path / "whole", {2: 0.5}, codec=dict(reversed(ONE_BIT.items())))  # the order of keys says nothing
    found = collect([tmp_path])
    assert [run.folder.name for run in found.runs] == ["whole"]
    assert found.left_out == [f"{tmp_path / 'short'}: the same config and seed as {tmp_path / 'whole'}"]


def test_an_audit_without_results_is_unfinished(tmp_path: Path) -> None:
    folder = make_audit(tmp_path / "audit")
    (folder / "results.json").unlink()
    (folder / "cells" / "one.npz").touch()
    (audit,) = collect([tmp_path]).audits
    assert (audit.results, audit.attacks) == (None, 1)


def edit_line(number: int, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[number] |= changes
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return edit


def write(name: str, text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_text(text)

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write("config.json", "{"), r"config.json is damaged: .*"),
        (write("config.json", '{"rounds": 0}'), r"config.json is not the config of a run: rounds = 0: .*leave"),
        (write("config.json", '{"rounds": 5}'), r"has 6 rounds, but config.json says rounds = 5.*leave"),
        (write("environment.json", "[1]"), r"environment.json is damaged: expected a list.*delete"),
        (write("environment.json", "["), r"environment.json is damaged: .*delete"),
        (write("summary.json", '{"rounds": 6}'), r"6 rounds and 600 uplink bytes where the summary says \(6, None\)"),
        (write("summary.json", "3"), r"where the summary says 3"),
        (write("metrics.jsonl", '{"round": 0}\n{}\n'), r"metrics.jsonl, line 1 is damaged"),
        (edit_line(2, round=5), r"line 3 is damaged: round = 5, expected 2; put back"),
        (edit_line(2, uplink_bytes=-1), r"uplink_bytes = -1, expected a number of bytes"),
        (edit_line(2, payload_bytes="8"), r"payload_bytes = '8', expected a number of bytes"),
        (edit_line(2, accuracy=1.5), r"accuracy = 1.5, expected null or a number from 0 to 1"),
        (edit_line(2, loss=float("nan")), r"loss = nan, expected null or a number"),
        (edit_line(2, test_loss="low"), r"test_loss = 'low', expected null or a number"),
        (edit_line(2, metrics={"r2": "x"}), r"metrics = {'r2': 'x'}, expected null or a table of numbers"),
    ],
)
def test_a_damaged_run_is_refused_with_what_came_and_what_to_do(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = make_run(tmp_path / "run", {2: 0.5})
    damage(folder)
    with pytest.raises(RunError, match=message):
        collect([folder])


def test_what_is_damaged_is_left_out_and_the_rest_is_shown(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs")
    write("metrics.jsonl", '{"round": 0}\n{}\n')(tmp_path / "runs" / "a-1")
    write("results.json", "[")(make_audit(tmp_path / "audit"))
    found = collect([tmp_path])
    assert [run.folder.name for run in found.runs] == ["a-2", "b-1", "b-2"]
    audit, run = found.left_out
    assert "results.json is damaged" in audit
    assert "metrics.jsonl, line 1 is damaged" in run
    assert tables(found, Goals())["left_out"] == found.left_out
    page = tmp_path / "page.html"
    write_report(page, found)
    assert page.read_text(encoding="utf-8").count("Left out: ") == 2
    for name in ("a-2", "b-1", "b-2"):
        write("metrics.jsonl", "x\nx\n")(tmp_path / "runs" / name)
    with pytest.raises(RunError, match=r"nothing left to report on: .*results.json is damaged.*b-2"):
        collect([tmp_path])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write("results.json", "["), r"results.json is damaged"),
        (write("results.json", '{"rows": []}'), r"expected a table with rows, codecs and config; delete the"),
        (
            write("results.json", '{"rows": [], "codecs": [], "config": {}}'),
            r"is not of an audit: expected tables config and audit",
        ),
    ],
)
def test_a_damaged_audit_is_refused(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    folder = make_audit(tmp_path / "audit")
    damage(folder)
    with pytest.raises(RunError, match=message):
        collect([folder])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": 3}, "row 0 is damaged: verdict = 3, expected a text"),
        ({"ssim": "high"}, "ssim = 'high', expected a number"),
        ({"ssim_each": None}, "ssim_each = None, expected a list of numbers"),
        ({"linkage": "all"}, "linkage = 'all'"),
        ({"history": [[1]]}, r"history = \[\[1\]\], expected null or pairs"),
    ],
)
def test_a_damaged_row_of_an_audit_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = make_audit(tmp_path / "audit", [audit_row("fedsgd", "dlg", "partly", 0.5, **change)])
    with pytest.raises(RunError, match=message):
        collect([folder])


def test_nothing_to_report_on_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for paths, message in (
        ([], "nothing to report on"),
        ([tmp_path / "nowhere"], "does not exist; expected a run folder"),
        ([tmp_path / "file"], "is a file; expected a run folder"),
        ([tmp_path / "empty"], "holds no run"),
    ):
        with pytest.raises(RunError, match=message):
            collect(paths)


BRACKETS = "[" * 100_000


@pytest.mark.parametrize("name", ["config.json", "environment.json", "summary.json", "metrics.jsonl"])
def test_brackets_in_a_file_of_a_run_are_an_error_of_ours(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run", {2: 0.5})
    (folder / name).write_text(BRACKETS + "\n" + BRACKETS + "\n")
    with pytest.raises(RunError, match=f"{name}.* is damaged"):
        collect([folder])


@pytest.mark.parametrize("name", ["config.json", "results.json"])
def test_brackets_in_a_file_of_an_audit_are_an_error_of_ours(tmp_path: Path, name: str) -> None:
    folder = make_audit(tmp_path / "audit")
    if name == "config.json":
        (folder / "results.json").unlink()
    (folder / name).write_text(BRACKETS)
    with pytest.raises(RunError, match=f"{name} is damaged"):
        collect([folder])


def test_a_report_imports_nothing_that_a_folder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_for_tests.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    make_run(tmp_path / "runs" / "one", {2: 0.5}, model="named_for_tests:Net")
    make_run(tmp_path / "runs" / "two", {2: 0.5}, model="os:abort", seed=2)
    found = collect([tmp_path / "runs"])
    tables(found, Goals((0.4,)))
    write_report(tmp_path / "page.html", found, Goals((0.4,)))
    assert (tmp_path / "page.html").is_file()
    assert "named_for_tests" not in sys.modules
