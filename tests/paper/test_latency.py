from pathlib import Path

import pytest

from fedmpdd.directions import why_no_gpu
from fedmpdd.errors import ConfigError, RunError
from fedmpdd_paper.latency import NAME, RESULTS, done_latency, latency_text, reproduce_latency
from fedmpdd_paper.trainings import Workspace


def test_the_papers_numbers_of_directions_are_timed(tmp_path: Path) -> None:
    results = reproduce_latency(Workspace(tmp_path, "cpu"), seconds=0.01)
    assert [row["m"] for row in results["rows"]] == [400, 600, 800]
    assert all(row["ours"]["device"] == "cpu" and row["ours"]["median_ms"] > 0 for row in results["rows"])
    text = (tmp_path / "encode-latency" / "table.md").read_text(encoding="utf-8")
    assert text == latency_text(results)
    assert "| 800 | 0.93 |" in text
    assert done_latency(Workspace(tmp_path, "cpu")) == results
    assert done_latency(Workspace(tmp_path / "elsewhere", "cpu")) is None


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cuda"):
        reproduce_latency(Workspace(tmp_path, "cuda"))


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "{", "{}", "[1]"])
def test_damaged_results_are_an_error_of_ours(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / RESULTS).write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"results\.json is damaged"):
        done_latency(Workspace(tmp_path))
