"""Ctrl-C, once and twice."""

import os
import signal
import threading

import pytest

from fedmpdd.runs.interrupts import Deferred


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def test_the_first_is_noted_and_the_second_raised() -> None:
    with Deferred() as deferred:
        assert not deferred.heard
        interrupt()
        assert deferred.heard
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    with pytest.raises(KeyboardInterrupt):  # as before
        interrupt()


def test_a_signal_that_is_handled_like_it_counts_too() -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Deferred() as deferred:
            interrupt(signal.SIGTERM)
            assert deferred.heard
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_the_caller_wants_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Deferred() as deferred:
            interrupt()
            interrupt()
            assert not deferred.heard
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_nothing() -> None:
    handlers = []

    def elsewhere() -> None:
        with Deferred():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]
