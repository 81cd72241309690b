"""The driver: what callbacks hear and in which order, and how they end a training. Ctrl-C, once and twice."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import GradientError
from fedmpdd.runs.driver import (
    AfterRound,
    Callback,
    Interruption,
    MetricsFile,
    PauseWhen,
    StopWhen,
    SummaryFile,
    Training,
    at_target,
    progress,
    train,
)
from fedmpdd.simulation.config import parse_config
from fedmpdd.simulation.engine import RoundMetrics, make_federation
from tests.runs.test_history import history_of
from tests.simulation.test_engine import BASE


def training(**changes: Any) -> Training:
    settings = {**BASE, "rounds": 6, "evaluate_every": 2, "clients": 4, "codec": {"name": "fedsgd"}}
    return Training(make_federation(parse_config({**settings, **changes})))


class Recorder(Callback):
    def __init__(self, name: str, heard: list[str]) -> None:
        self.name, self.heard = name, heard

    def begin(self, training: Training) -> None:
        self.heard.append(f"{self.name} begins")

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        self.heard.append(f"{self.name} {metrics.round} of {len(training.history)}")

    def diverged(self, training: Training, error: Exception) -> None:
        self.heard.append(f"{self.name} diverged")

    def end(self, training: Training) -> None:
        self.heard.append(f"{self.name} ends")

    def close(self) -> None:
        self.heard.append(f"{self.name} closes")


def test_callbacks_are_asked_in_their_order_and_closed_in_the_other() -> None:
    heard: list[str] = []
    history = train(training(rounds=2), [Recorder("a", heard), Recorder("b", heard)])
    assert heard == [
        "a begins", "b begins", "a 0 of 1", "b 0 of 1", "a 1 of 2", "b 1 of 2", "a ends", "b ends", "b closes",
        "a closes",
    ]  # fmt: skip
    assert (len(history), history.last.updates, len(history.evaluations)) == (2, 4, 1)


def test_what_a_callback_raises_ends_it_without_an_end_but_everything_is_closed() -> None:
    heard: list[str] = []

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(training(), [Recorder("a", heard), AfterRound(fail)])
    assert heard == ["a begins", "a 0 of 1", "a closes"]


def test_it_is_over_at_a_target_and_goes_on_after_a_pause() -> None:
    stop = StopWhen(lambda history: "enough" if len(history) >= 4 else None)
    state = training()
    train(state, [PauseWhen(lambda: len(state.history) == 2)])
    assert (len(state.history), state.is_complete) == (2, False)
    state.is_paused = False
    train(state, [stop])
    assert (len(state.history), state.is_complete, stop.reason) == (4, True, "enough")
    train(state, [stop])
    assert len(state.history) == 4


def test_a_target_with_a_budget_waits_until_the_budget_is_spent() -> None:
    early, late = history_of({2: 0.7}, rounds=2), history_of({2: 0.7, 4: 0.6}, rounds=4)
    assert at_target(0.7)(early) is not None
    assert at_target(0.8)(late) is None
    assert at_target(0.7, budget=201)(early) is None
    assert at_target(0.7, budget=200)(early) is not None  # exactly spent: nothing after it can count
    assert at_target(0.7, budget=300)(late) is not None


def test_a_training_that_diverges_says_so_and_has_its_lines(tmp_path: Path) -> None:
    state = training(lr=3e38)
    heard: list[str] = []
    summary_file = SummaryFile(tmp_path / "s.json", lambda: {"rounds": len(state.history)})
    with pytest.raises(GradientError):
        train(state, [MetricsFile(tmp_path / "m.jsonl"), summary_file, Recorder("a", heard)])
    assert state.history.diverged
    assert heard[-2:] == ["a diverged", "a closes"]
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["rounds"] == len(lines) == len(state.history)
    assert "finite" in summary["diverged"]


def test_a_pause_leaves_no_summary_and_removes_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("{}")
    train(training(), [SummaryFile(path, dict), PauseWhen(lambda: True)])
    assert not path.exists()


def test_progress_is_shown_against_what_fedsgd_would_have_sent() -> None:
    shown: list[tuple[int, float | None, int, int]] = []
    state = training(codec={"name": "mpdd", "m": 4})
    history = train(state, [progress(lambda *values: shown.append(values))])
    assert [values[0] for values in shown] == [1, 2, 3, 4, 5, 6]
    assert shown[-1][2:] == (history.last.uplink_bytes, 6 * 2 * 4 * state.federation.model.d)
    assert [accuracy is None for _, accuracy, _, _ in shown] == [True, False] * 3


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@contextmanager
def listening() -> Iterator[Interruption]:
    interruption = Interruption()
    interruption.begin(training())
    try:
        yield interruption
    finally:
        interruption.close()


def test_the_first_interruption_pauses_after_its_round() -> None:
    state = training()
    interruption = Interruption()
    train(state, [AfterRound(lambda *_: interrupt() if len(state.history) == 3 else None), interruption])
    assert interruption.heard
    assert (len(state.history), state.is_complete) == (3, False)


def test_the_first_is_noted_and_the_second_raised() -> None:
    with listening() as interruption:
        assert not interruption.heard
        interrupt()
        assert interruption.heard
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    with pytest.raises(KeyboardInterrupt):  # as before
        interrupt()


def test_a_signal_that_is_handled_like_it_counts_too() -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with listening() as interruption:
            interrupt(signal.SIGTERM)
            assert interruption.heard
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_the_caller_wants_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as interruption:
            interrupt()
            interrupt()
            assert not interruption.heard
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_nothing() -> None:
    handlers = []

    def elsewhere() -> None:
        with listening():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]
