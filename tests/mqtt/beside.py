"""Sides of a training that go on beside a test."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


def beside(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread of its own."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # whoever waits for the result is to have it
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
