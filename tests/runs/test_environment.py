"""What the last bits of a training depend on, and how a change is said."""

import pytest

from fedmpdd.runs.environment import CHANGE_BITS, differences, environment


def test_everything_that_changes_bits_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    here = environment()
    assert set(CHANGE_BITS) <= set(here)
    assert here["variables"]["MKL_CBWR"] == "COMPATIBLE"
    assert "ONEDNN_MAX_CPU_ISA" not in here["variables"]
    assert here["cpu_capability"]
    assert differences(here, environment()) == []


def test_only_what_both_noted_and_changes_bits_is_compared() -> None:
    here = environment()
    assert differences({}, here) == []
    assert differences({"python": "2.7", "threads": 99}, here) == []
    before = {**here, "torch_threads": -1, "variables": {"MKL_CBWR": "AVX2"}}
    changed = differences(before, here)
    assert [text.split()[0] for text in changed] == ["torch_threads", "variables"]
    assert changed[0] == f"torch_threads was -1, is {here['torch_threads']}"
