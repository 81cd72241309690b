import pytest

from benchmarks import engines


def test_engines_that_are_not_installed_are_left_out_with_a_line() -> None:
    for engine, there in engines.available().items():
        if not there:
            assert dict(engines.run(1, rounds=1))[engine] == "not installed: left out"


@pytest.mark.parametrize("engine", list(engines.ENGINES))
def test_engines_run_the_same_federation(engine: str) -> None:
    if not engines.available()[engine]:
        pytest.skip(f"{engine} is not installed; it is a rival in the benchmark, not a dependency")
    assert engines.measure(engine, batch=1, rounds=2) > 0


def test_an_engine_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "available", lambda: {"pfl-research": True})
    monkeypatch.setattr(engines, "_PFL", "raise SystemExit('no luck today')")
    ((engine, outcome),) = engines.run(1)
    assert engine == "pfl-research"
    assert "no luck today" in str(outcome)
