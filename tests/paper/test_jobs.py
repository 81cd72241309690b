"""Several processes give what one gives, and stop when they are asked to."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedmpdd_paper.jobs import run_trainings
from fedmpdd_paper.trainings import DONE, Workspace
from tests.paper.test_reproduce import small_table

pytestmark = pytest.mark.slow


def test_two_jobs_give_what_one_gives(tmp_path: Path) -> None:
    table = small_table()
    seen: set[str] = set()
    readings = [
        run_trainings(
            table, table.methods, 2, Workspace(tmp_path / str(jobs), "cpu"), jobs, lambda name, *_: seen.add(name)
        )
        for jobs in (1, 2)
    ]
    assert readings[0] == readings[1]
    assert len(readings[0]) == 2
    models = [
        json.loads(path.read_text(encoding="utf-8"))["model_sha256"]
        for jobs in (1, 2)
        for path in sorted((tmp_path / str(jobs)).rglob("summary.json"))
    ]
    assert models[: len(models) // 2] == models[len(models) // 2 :]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_stopped_has_a_checkpoint_and_goes_on(tmp_path: Path, jobs: int) -> None:
    table = small_table()
    table = replace(table, config=table.config.model_copy(update={"rounds": 1_000}), second_target=1.0, lrs=(0.05,))

    once = iter([True])

    def interrupt(*_: object) -> None:  # as Ctrl-C would: progress is shown by another thread
        if next(once, False):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_trainings(table, table.methods[:1], 1, Workspace(tmp_path, "cpu"), jobs, interrupt)
    assert not list(tmp_path.rglob(DONE))
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    begun = len((checkpoint.parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert 0 < begun < 1_000
    reading = run_trainings(table, table.methods[:1], 1, Workspace(tmp_path, "cpu"), 1, None)[0][0]
    assert reading.rounds == 1_000


def test_what_fails_in_a_process_is_raised(tmp_path: Path) -> None:
    table = small_table()
    table = replace(table, config=table.config.model_copy(update={"dataset": "mnist"}))
    with pytest.raises(Exception, match="mnist"):
        run_trainings(table, table.methods[:1], 1, Workspace(tmp_path, "cpu", tmp_path / "nowhere"), 2, None)


_PROGRAM = """
import os, time
from fedmpdd_paper.jobs import executor

if __name__ == "__main__":
    with executor(2, None) as (pool, _):
        print(*{pool.submit(os.getpid).result() for _ in range(4)}, flush=True)
        pool.submit(time.sleep, 600).result()
"""


def test_processes_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert workers
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 30
    while any(_is_alive(worker) for worker in workers):
        assert time.monotonic() < end, "processes live on"
        time.sleep(0.05)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        # One that has ended and was not waited for is there by name only.
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
