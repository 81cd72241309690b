"""`python -m benchmarks`, as a shell sees it."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from benchmarks.__main__ import main

ROOT = Path(__file__).parents[2]


def run_benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: another start takes seconds, and the first test has one."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["benchmarks", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return subprocess.CompletedProcess(arguments, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def test_it_is_a_module_that_python_runs() -> None:
    command = [sys.executable, "-m", "benchmarks", "codec", "--device", "abacus"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("error: --device 'abacus' is unknown")


@pytest.mark.parametrize("arguments", [("--threads", "0"), ("--seconds", "many"), ("--device", "abacus")])
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...]) -> None:
    assert run_benchmarks("codec", *arguments).returncode == 2


def test_bench_rounds_prints_the_agreed_keys() -> None:
    result = run_benchmarks("rounds", "--seconds", "0.1", "--json")
    assert result.returncode == 0, result.stderr
    keys = {"engine", "codec", "clients_per_round", "batch", "rounds_per_s"}
    assert all(keys <= set(row) and row["rounds_per_s"] > 0 for row in json.loads(result.stdout)["rows"])


def test_bench_prints_the_agreed_keys() -> None:
    result = run_benchmarks("codec", "--json", "--seconds", "0.01", "--no-memory")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    keys = {"op", "family", "bits", "d", "m", "clients", "impl", "threads", "device", "median_ms"}
    assert all(keys <= set(row) for row in rows)
    assert {"fedmpdd", "numpy"} <= {row["impl"] for row in rows}
    assert all(row["median_ms"] > 0 for row in rows)
    assert "Traceback" not in result.stderr
