"""The trainings of a table, one after another or in several processes at a time."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from time import monotonic
from typing import Any

from fedmpdd.directions import THREADS_VARIABLE, backend
from fedmpdd.experiments.reading import Reading
from fedmpdd.experiments.tables import SEEDS, Method, Table
from fedmpdd.experiments.trainings import OnRound, Place, Training, choose_lr, train

SHOW_EVERY_S = 0.5


def run_trainings(
    table: Table, methods: Sequence[Method], seeds: int, place: Place, jobs: int, on_round: OnRound | None
) -> list[list[Reading]]:
    """Return the readings of every method, seed by seed; what is there already is only read.

    A method's first seed chooses its step size; its other seeds follow as soon as that is known.
    """
    with _executor(jobs, on_round) as (executor, options):
        first = {executor.submit(choose_lr, table, method, place, **options): i for i, method in enumerate(methods)}
        others: dict[Future[Reading], tuple[int, int]] = {}
        readings: list[dict[int, Reading]] = [{} for _ in methods]
        waiting: set[Future[Reading]] = set(first)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                reading = future.result()
                if future not in first:
                    i, seed = others[future]
                    readings[i][seed] = reading
                    continue
                i = first[future]
                readings[i][SEEDS[0]] = reading
                for seed in SEEDS[1:seeds]:
                    later = executor.submit(train, Training(table, methods[i], seed, reading.lr), place, **options)
                    others[later] = (i, seed)
                    waiting.add(later)
    return [[own[seed] for seed in SEEDS[:seeds]] for own in readings]


class _Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args, **options))
        return future


def _executor(jobs: int, on_round: OnRound | None) -> AbstractContextManager[tuple[Executor, dict[str, Any]]]:
    if jobs == 1:
        return nullcontext((_Here(), {"on_round": on_round}))
    return _Processes(jobs, on_round)


class _Processes:
    """Several processes. Whatever ends the block early lets each finish its round and write a checkpoint."""

    def __init__(self, jobs: int, on_round: OnRound | None) -> None:
        context = get_context("spawn")  # a fork would take PyTorch's threads and the GPU's context with it
        self._queue: Queue[tuple[Any, ...] | None] = context.Queue()
        self._stop: Event = context.Event()
        self._on_round = on_round
        threads = max(1, backend().threads // jobs)
        self._pool = ProcessPoolExecutor(jobs, context, _begin, (self._queue, self._stop, threads))
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> tuple[Executor, dict[str, Any]]:
        self._reader.start()
        return self._pool, {"on_round": _report, "stopped": _stopped}

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._queue.put(None)
        self._reader.join()

    def _read(self) -> None:
        while (message := self._queue.get()) is not None:
            if self._on_round is not None:
                self._on_round(*message)


# What a process was given when it began: functions that are sent to it later find it here.
_given: dict[str, Any] = {}


def _begin(queue: "Queue[tuple[Any, ...] | None]", stop: Event, threads: int) -> None:
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent says when to stop
    os.environ[THREADS_VARIABLE] = str(threads)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # it would start processes of its own, and keep them
    torch.set_num_threads(1)
    _given.update(queue=queue, stop=stop, shown=0.0)


def _stopped() -> bool:
    return bool(_given["stop"].is_set())


def _report(name: str, done: int, total: int, accuracy: float | None) -> None:
    now = monotonic()
    if now - _given["shown"] >= SHOW_EVERY_S or done == total:
        _given["queue"].put((name, done, total, accuracy))
        _given["shown"] = now
