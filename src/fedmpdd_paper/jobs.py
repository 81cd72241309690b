"""The trainings of a table, one after another or in several processes at a time."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context, parent_process
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from time import monotonic
from typing import Any, TypeVar

from fedmpdd.directions import THREADS_VARIABLE, backend
from fedmpdd_paper.summaries import RunSummary
from fedmpdd_paper.tables import SEEDS, Method, Table
from fedmpdd_paper.trainings import OnRound, Training, Workspace, choose_lr, train

SHOW_EVERY_S = 0.5
R = TypeVar("R")


def run_trainings(
    table: Table, methods: Sequence[Method], seeds: int, workspace: Workspace, jobs: int, on_round: OnRound | None
) -> list[list[RunSummary]]:
    """Return the runs of every method, seed by seed; what is there already is only read.

    A method's first seed chooses its step size; its other seeds follow as soon as that is known.
    """
    with executor(jobs, on_round) as (pool, options):

        def first(i: int) -> Future[RunSummary]:
            return pool.submit(choose_lr, table, methods[i], workspace, **options)

        def later(i: int, seed: int, chosen: RunSummary) -> Future[RunSummary]:
            return pool.submit(train, Training(table, methods[i], seed, chosen.lr), workspace, **options)

        return first_seed_then_others(len(methods), SEEDS[:seeds], first, later)


def first_seed_then_others(
    count: int,
    seeds: Sequence[int],
    first: Callable[[int], "Future[R]"],
    later: Callable[[int, int, R], "Future[R]"],
) -> list[list[R]]:
    """Wait for the first seed of each of `count` things, and have the others follow with what it chose."""
    begun = {first(i): (i, seeds[0]) for i in range(count)}
    results: list[dict[int, R]] = [{} for _ in range(count)]
    waiting: set[Future[R]] = set(begun)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            i, seed = begun[future]
            results[i][seed] = future.result()
            if seed == seeds[0]:
                following = {later(i, other, results[i][seed]): (i, other) for other in seeds[1:]}
                begun.update(following)
                waiting |= set(following)
    return [[by_seed[seed] for seed in seeds] for by_seed in results]


class _Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args, **options))
        return future


def executor(jobs: int, on_round: OnRound | None) -> AbstractContextManager[tuple[Executor, dict[str, Any]]]:
    """Something to submit trainings to, and the options that they need there."""
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

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they may reach all processes; the parent says when to stop
    os.environ[THREADS_VARIABLE] = str(threads)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # it would start processes of its own, and keep them
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _given.update(queue=queue, stop=stop, shown=0.0)


def _end_with_parent() -> None:
    """End at once if the parent was killed: runs stand it, and whoever starts the command again needs their folders."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stopped() -> bool:
    return bool(_given["stop"].is_set())


def _report(name: str, done: int, total: int, accuracy: float | None) -> None:
    now = monotonic()
    if now - _given["shown"] >= SHOW_EVERY_S or done == total:
        _given["queue"].put((name, done, total, accuracy))
        _given["shown"] = now
