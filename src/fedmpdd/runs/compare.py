"""Codecs side by side in one federation and one process."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpdd.errors import ConfigError, InputError
from fedmpdd.runs.driver import Callback, StopWhen, Training, at_target, progress, train
from fedmpdd.runs.environment import environment
from fedmpdd.runs.history import History, RunRecord
from fedmpdd.simulation.config import RunConfig, apply_overrides, parse_config
from fedmpdd.simulation.engine import Federation, federation_of
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.tasks.data import load
from fedmpdd.uplink.codec_config import codec_overrides

OnRound = Callable[[str, int, float | None, int, int], None]  # which codec, and what `progress` shows


@dataclass(frozen=True)
class Comparison:
    """How one codec did."""

    codec: str
    run: RunRecord
    seconds: float
    error: str | None  # why it stopped early, if it did
    target: float | None
    budget: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document.

        None where the target was not reached, or the first evaluation was over the budget already.
        """
        history = self.run.history
        reached = None if self.target is None else history.first_at(self.target)
        return {
            "codec": self.codec,
            "bytes_to_target": reached and reached.uplink_bytes,
            "rounds_to_target": reached and reached.rounds,
            "accuracy_at_budget": None if self.budget is None else history.accuracy_at(self.budget),
            "final_accuracy": history.final_accuracy,
            "rounds": history.last.rounds,
            "uplink_bytes": history.last.uplink_bytes,
            "seconds": self.seconds,
            "history": [(entry.rounds, entry.uplink_bytes, entry.accuracy) for entry in history.evaluations],
            "error": self.error,
        }


def codec_config(config: RunConfig, text: str) -> RunConfig:
    """Return the config with the codec that a text like `mpdd:m=400:bits=1` or `fedsgd` describes."""
    values = config.model_dump(mode="json")
    values["codec"] = {key: values["codec"][key] for key in ("keys", "error_feedback")}
    return parse_config(apply_overrides(values, codec_overrides(text)))


def compare(
    config: RunConfig,
    codecs: list[str],
    *,
    target: float | None = None,
    budget: int | None = None,
    stop_at_target: bool = False,
    data_dir: Path | None = None,
    on_round: OnRound | None = None,
) -> Iterator[Comparison]:
    """Train the federation of `config` once per codec."""
    if not codecs:
        raise ConfigError("there is nothing to compare; name codecs, like --codecs fedsgd,mpdd:m=400")
    if stop_at_target and target is None:
        raise ConfigError("--stop-at-target needs a --target to stop at")
    dataset = load(config.dataset, data_dir)
    # All are built before the first one is trained: a codec that does not fit the model is refused now.
    federations = [(text, federation_of(codec_config(config, text), dataset)) for text in codecs]
    for text, federation in federations:
        callbacks: list[Callback] = []
        if on_round is not None:
            callbacks.append(progress(lambda *shown, text=text: on_round(text, *shown)))
        if stop_at_target and target is not None:
            callbacks.append(StopWhen(at_target(target, budget)))
        start = time.perf_counter()
        history, error = _trained(federation, callbacks)
        seconds = time.perf_counter() - start
        sent = {"rounds": history.last.rounds, "uplink_bytes": history.last.uplink_bytes}
        summary = {**sent, "model_sha256": model_sha256(federation.flat)}
        starts = ({"from_round": 0, **environment()},)
        run = RunRecord(Path(text), federation.config, history, starts, summary)
        yield Comparison(text, run, seconds, error, target, budget)


def _trained(federation: Federation, callbacks: list[Callback]) -> tuple[History, str | None]:
    """The history of a federation, and the error that ended it if one did: the other codecs still count."""
    training = Training(federation)
    try:
        return train(training, callbacks), None
    except InputError as error:
        return training.history, str(error)
