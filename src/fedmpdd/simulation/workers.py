"""Several threads for what PyTorch computes, without changing a bit of it."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, Self, TypeVar

import torch

from fedmpdd.directions import backend

Item = TypeVar("Item")
Result = TypeVar("Result")


class Copied(Protocol):
    """What one thread uses at a time: PyTorch puts the parameters of a call into the module for its duration."""

    def copy(self) -> Self:
        """Return another one for another thread."""


Subject = TypeVar("Subject", bound=Copied)


class Workers(Generic[Subject]):
    """Maps a function of (subject, item) over items, each item on one thread, results in order.

    PyTorch's own threads would cut sums differently for another number of them; here the items are cut the same way
    always, and each is computed by one thread.
    """

    def __init__(self, subject: Subject, *, threaded: bool = True) -> None:
        self._subject = subject
        self._threaded = threaded  # a GPU has threads enough of its own
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._process_and_size = (0, 0)

    def map(self, call: Callable[[Subject, Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of all items."""
        todo = list(items)
        threads = backend().threads if self._threaded else 1
        if min(threads, len(todo)) <= 1:
            return [call(self._subject, item) for item in todo]
        return list(self._threads(threads).map(lambda item: call(self._thread_subject(), item), todo))

    def close(self) -> None:
        """End the threads. If they were left to the garbage collector, a Ctrl-C that comes just then would be lost."""
        if self._pool is not None and self._process_and_size[0] == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _threads(self, count: int) -> ThreadPoolExecutor:
        wanted = (os.getpid(), count)  # a forked child has none of the threads
        if self._pool is None or self._process_and_size != wanted:
            self._pool = ThreadPoolExecutor(count, initializer=_one_torch_thread)
            self._process_and_size = wanted
        return self._pool

    def _thread_subject(self) -> Subject:
        if not hasattr(self._local, "subject"):
            self._local.subject = self._subject.copy()
        subject: Subject = self._local.subject
        return subject

    def __getstate__(self) -> Any:
        raise TypeError("workers hold threads and cannot be copied")


def _one_torch_thread() -> None:
    torch.set_num_threads(1)
