"""Several threads for what PyTorch computes, without changing a bit of it."""

import copy
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from fedmpdd.directions import backend
from fedmpdd.tasks.models import FlatModel

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """Maps a function of (model, item) over items, each item on one thread, results in order.

    PyTorch's own threads would cut sums differently for another number of them; here the items are cut the same way
    always, and each is computed by one thread.
    """

    def __init__(self, model: FlatModel, *, threaded: bool = True) -> None:
        self._model = model
        self._threaded = threaded  # a GPU has threads enough of its own
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._process_and_size = (0, 0)

    def map(self, call: Callable[[FlatModel, Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of all items."""
        todo = list(items)
        threads = backend().threads if self._threaded else 1
        if min(threads, len(todo)) <= 1:
            return [call(self._model, item) for item in todo]
        return list(self._threads(threads).map(lambda item: call(self._thread_model(), item), todo))

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

    def _thread_model(self) -> FlatModel:
        # functional_call puts the parameters of a call into the module for its duration: one module per thread.
        if not hasattr(self._local, "model"):
            self._local.model = FlatModel(copy.deepcopy(self._model.module), self._model.names, self._model.shapes)
        model: FlatModel = self._local.model
        return model

    def __getstate__(self) -> Any:
        raise TypeError("workers hold threads and cannot be copied")


def _one_torch_thread() -> None:
    torch.set_num_threads(1)
