"""The command line, as a user's shell sees it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedmpdd


def fedmpdd_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedmpdd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


def test_version_and_help() -> None:
    assert fedmpdd_command("--version").stdout.strip() == fedmpdd.__version__
    for arguments in ([], ["--help"], ["bench"], ["bench", "codec", "--help"], ["demo", "--help"]):
        result = fedmpdd_command(*arguments)
        assert "Usage" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["bench", "codec", "--threads", "0"], ["bench", "codec", "--seconds", "many"], ["demo", "--out"]],
)
def test_bad_input_is_exit_status_2(arguments: list[str]) -> None:
    result = fedmpdd_command(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("place", ["missing/page.html", ".", ""])
def test_a_page_that_cannot_be_written_is_bad_input(tmp_path: Path, place: str) -> None:
    result = fedmpdd_command("demo", "--out", place, cwd=tmp_path)
    assert result.returncode == 2
    assert "--out" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_demo_writes_a_page_and_one_json_document(tmp_path: Path) -> None:
    result = fedmpdd_command("demo", "--out", "page.html", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text(encoding="utf-8").lower().startswith(("<html", "<!doctype html"))
    for row in document["rows"]:
        # Twenty rounds of real gradients: 15 % is far outside what chance does to the mean of any row but m = 1.
        assert row["error"] == pytest.approx(row["predicted"], rel=0.15 if row["m"] > 1 else 0.5)
    assert document["rows"][-1]["uplink_bytes"] == 19


def test_bench_prints_the_agreed_keys() -> None:
    result = fedmpdd_command("bench", "codec", "--json", "--seconds", "0.01", "--no-memory")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    keys = {"op", "family", "bits", "d", "m", "clients", "impl", "threads", "device", "median_ms"}
    assert all(keys <= set(row) for row in rows)
    assert {"fedmpdd", "numpy"} <= {row["impl"] for row in rows}
    assert all(row["median_ms"] > 0 for row in rows)
    assert "Traceback" not in result.stderr
