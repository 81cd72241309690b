"""The one loop that trains a federation; everything beside its rounds is a callback.

Callbacks are asked in their order after every round. One that must be on the disk before others hear of the round
stands before them.
"""

import importlib.util
import json
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from fedmpdd.documents import write_json
from fedmpdd.errors import CodecError, ConfigError, GradientError, InputError, MissingDependencyError
from fedmpdd.imports import quote
from fedmpdd.runs.history import History
from fedmpdd.server.journal import Journal, Record
from fedmpdd.simulation.clients import Computed, GradientRequest, answered
from fedmpdd.simulation.engine import Federation, RoundMetrics
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.simulation.together import compute_together

ReasonOf = Callable[[History], str | None]  # why a training is over, once it is
Steps = Generator[GradientRequest, Computed, History]  # a training that asks for gradients


class Training:
    """A federation while it is trained, and how it went so far."""

    def __init__(self, federation: Federation, history: History | None = None) -> None:
        self.federation = federation
        self.history = History(score=federation.config.score) if history is None else history
        self.is_over = False  # set by a callback: what was wanted is there
        self.is_paused = False  # set by a callback: it goes on later

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_over or self.federation.next_round >= self.federation.config.rounds


class Callback:
    """Something that happens beside the rounds; what is not overridden does nothing."""

    def begin(self, training: Training) -> None:
        """Get ready, before the first round."""

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        """Hear of a round, which the history has already; may set `is_over` or `is_paused`."""

    def diverged(self, training: Training, error: Exception) -> None:
        """Hear that nothing is left that could be encoded; the error is raised afterwards."""

    def end(self, training: Training) -> None:
        """Finish after the last round; not called where an exception ended the training."""

    def close(self) -> None:
        """Let go of what `begin` took, whatever happened."""


def train(training: Training, callbacks: Sequence[Callback] = ()) -> History:
    """Run rounds until the config's last one, or until a callback ends or pauses the training."""
    return answered(steps(training, callbacks))


def steps(training: Training, callbacks: Sequence[Callback] = ()) -> Steps:
    """Train as `train` does, asking somebody else for the gradients of every round."""
    check_callbacks(callbacks)
    federation = training.federation
    with ExitStack() as closing:
        closing.callback(federation.close)
        for callback in callbacks:
            callback.begin(training)
            closing.callback(callback.close)
        while not (training.is_complete or training.is_paused):
            try:
                metrics = yield from federation.round()
            except (GradientError, CodecError) as error:
                training.history.diverged = True
                for callback in callbacks:
                    callback.diverged(training, error)
                raise
            training.history.add(metrics.as_dict())
            for callback in callbacks:
                callback.after_round(training, metrics)
        for callback in callbacks:
            callback.end(training)
    return training.history


def train_together(trainings: Sequence[Steps]) -> list[InputError | None]:
    """Train several federations of one task side by side, and compute their gradients in one pass where that can be.

    It is meant for GPUs, which a few clients do not fill. The sums of a larger pass may be rounded otherwise, so that a
    training has other last bits than alone.

    Args:
        trainings: of `steps`.

    Returns:
        What ended each training early; None where nothing did.

    """
    ends: list[InputError | None] = [None] * len(trainings)
    requests: dict[int, GradientRequest] = {}

    def advance(number: int, send: Callable[[], GradientRequest]) -> None:
        try:
            requests[number] = send()
        except StopIteration:
            requests.pop(number, None)
        except InputError as error:  # the others go on
            requests.pop(number, None)
            ends[number] = error

    try:
        for number, training in enumerate(trainings):
            advance(number, training.__next__)
        while requests:
            numbers = sorted(requests)
            computed = compute_together([requests[number] for number in numbers])
            for number, gradients in zip(numbers, computed, strict=True):
                advance(number, partial(trainings[number].send, gradients))
    finally:
        for training in trainings:
            training.close()
    return ends


def check_callbacks(callbacks: Any) -> None:
    """Raise ConfigError unless these are callbacks, in a list."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise ConfigError(f"callbacks = {quote(callbacks)}: expected a list of callbacks, like [EarlyStopping()]")
    for one in callbacks:
        if not isinstance(one, Callback):
            how = f"{one.__name__}()" if isinstance(one, type) else "fm.callbacks.AfterRound(function)"
            raise ConfigError(f"callbacks holds {quote(one)}; expected objects of fm.callbacks.Callback, such as {how}")


class JournalFile(Callback):
    """Appends a record per round."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        federation = training.federation
        record = Record(metrics.round, federation.bundle, model_sha256(federation.flat), metrics.as_dict())
        self._journal.append(record)


class MetricsFile(Callback):
    """Appends a line of JSON per round, which is on the disk after `sync` and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, training: Training) -> None:
        self._lines = self._path.open("a", encoding="utf-8")

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        self._lines.write(json.dumps(metrics.as_dict(), allow_nan=False) + "\n")

    def diverged(self, training: Training, error: Exception) -> None:
        self.sync()

    def end(self, training: Training) -> None:
        self.sync()

    def sync(self) -> None:
        """Put what was written on the disk."""
        self._lines.flush()
        os.fsync(self._lines.fileno())

    def close(self) -> None:
        self._lines.close()


class Checkpoints(Callback):
    """Has a checkpoint written every so many rounds and at the end, never of a round whose line could be lost."""

    def __init__(self, write: Callable[[], None], every: int, lines: MetricsFile) -> None:
        self._write, self._every, self._lines = write, every, lines

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        if training.federation.next_round % self._every == 0:
            self._lines.sync()
            self._write()

    def end(self, training: Training) -> None:
        self._write()


class SummaryFile(Callback):
    """Writes the summary of a training that is over: not of one that was paused, but of one that diverged."""

    def __init__(self, path: Path, summary: Callable[[], dict[str, Any]]) -> None:
        self._path, self._summary = path, summary

    def begin(self, training: Training) -> None:
        self._path.unlink(missing_ok=True)  # of a run that goes on

    def diverged(self, training: Training, error: Exception) -> None:
        write_json(self._path, {**self._summary(), "diverged": str(error)})

    def end(self, training: Training) -> None:
        if training.is_complete:
            write_json(self._path, self._summary())


class StopWhen(Callback):
    """Ends the training once its history gives a reason, which is kept."""

    def __init__(self, reason_of: ReasonOf) -> None:
        _check_callable("StopWhen", reason_of, "a history to a reason or None")
        self._reason_of = reason_of
        self.reason: str | None = None

    def begin(self, training: Training) -> None:
        if training.history.rounds:  # it goes on, and may have been over already
            self._ask(training)

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        self._ask(training)

    def _ask(self, training: Training) -> None:
        reason = self._reason_of(training.history)
        if reason is not None and not isinstance(reason, str):  # False would end it too, which nobody means
            raise ConfigError(
                f"StopWhen's function gives {quote(reason)}; expected the reason to stop in words, or None to go on"
            )
        self.reason = reason
        training.is_over = training.is_over or self.reason is not None


def at_target(target: float, budget: int | None = None) -> ReasonOf:
    """Return the reason to stop at an accuracy, where there is a budget of uplink bytes not before it is spent."""

    def reason_of(history: History) -> str | None:
        is_spent = budget is None or history.has_spent(budget)
        return "the target is reached" if is_spent and history.first_at(target) is not None else None

    return reason_of


def _check_callable(name: str, call: object, signature: str) -> None:
    if not callable(call) or isinstance(call, type):
        raise ConfigError(f"{name} came with {quote(call)}; expected a function from {signature}")


class PauseWhen(Callback):
    """Pauses the training when it is asked to: it has a checkpoint, and goes on from there later."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        _check_callable("PauseWhen", asked, "nothing to whether to pause")
        self._asked = asked

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        training.is_paused = training.is_paused or self._asked()


class AfterRound(Callback):
    """Calls a function with every round."""

    def __init__(self, call: Callable[[Training, RoundMetrics], None]) -> None:
        _check_callable("AfterRound", call, "a training and the metrics of a round to nothing")
        self._call = call

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        self._call(training, metrics)


def progress(show: Callable[[int, float | None, int, int], None]) -> Callback:
    """Have rounds shown: how many, the newest score, uplink bytes so far, and what FedSGD would have sent."""

    def show_round(training: Training, metrics: RoundMetrics) -> None:
        last = training.history.last
        show(last.rounds, last.accuracy, last.uplink_bytes, 4 * training.federation.model.d * last.updates)

    return AfterRound(show_round)


class TensorBoard(Callback):
    """Writes the metrics of every round as TensorBoard events."""

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, str | Path):
            raise ConfigError(f'TensorBoard came with {quote(folder)}; expected a folder, like "events"')
        self.check()
        self._folder = Path(folder)

    @staticmethod
    def check() -> None:
        """Raise MissingDependencyError before a run starts, not after."""
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingDependencyError("TensorBoard needs the package tensorboard; pip install tensorboard")

    def begin(self, training: Training) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder))

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        scalars = metrics.as_dict()
        scalars |= scalars.pop("metrics", {})
        for name, value in scalars.items():
            if name != "round" and value is not None:
                self._writer.add_scalar(name, value, metrics.round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Interruption(Callback):
    """Ctrl-C pauses a training after its round, so that what was trained is on the disk; a second one ends it at once.

    That goes for every signal that would raise KeyboardInterrupt: SIGTERM too, where the caller has it handled like
    Ctrl-C. In other threads than the main one nothing is changed, since signals do not come there.
    """

    def __init__(self) -> None:
        self.heard = False
        self._trainings = 0  # that are under way: several may share one
        self._before: dict[int, Any] = {}

    def begin(self, training: Training) -> None:
        self._trainings += 1
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._before[number] = signal.signal(number, self._hear)

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        training.is_paused = training.is_paused or self.heard

    def close(self) -> None:
        self._trainings -= 1
        if self._trainings == 0:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.heard:
            signal.default_int_handler(number, frame)
        self.heard = True
