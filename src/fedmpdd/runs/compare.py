"""Codecs side by side in one federation and one process."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpdd.errors import ConfigError, InputError
from fedmpdd.simulation.config import RunConfig, apply_overrides, codec_overrides, parse_config
from fedmpdd.simulation.engine import RoundMetrics, federation_of
from fedmpdd.tasks.data import load


@dataclass(frozen=True)
class Comparison:
    """How one codec did. None where the target was not reached, or the first evaluation was over the budget already."""

    codec: str
    bytes_to_target: int | None
    rounds_to_target: int | None
    accuracy_at_budget: float | None
    final_accuracy: float | None
    rounds: int
    uplink_bytes: int
    seconds: float
    history: tuple[tuple[int, int, float], ...] = ()  # (rounds, uplink bytes, accuracy) at each evaluation
    error: str | None = None  # why it stopped early, if it did

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


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
    on_round: Callable[[str, RoundMetrics, int, int], None] | None = None,
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
        start = time.perf_counter()
        uplink, full = 0, 0
        history: list[tuple[int, int, float]] = []
        reached: tuple[int, int] | None = None
        at_budget: float | None = None
        trouble: str | None = None
        while federation.next_round < federation.config.rounds:
            try:
                metrics = federation.run_round()
            except InputError as error:  # it diverged, say: the others still count
                trouble = str(error)
                break
            uplink += metrics.uplink_bytes
            full += metrics.clients * 4 * federation.model.d
            if metrics.accuracy is not None:
                rounds = federation.next_round
                history.append((rounds, uplink, metrics.accuracy))
                if target is not None and reached is None and metrics.accuracy >= target:
                    reached = (rounds, uplink)
                if budget is not None and uplink <= budget:
                    at_budget = metrics.accuracy
            if on_round is not None:
                on_round(text, metrics, uplink, full)
            if stop_at_target and reached is not None and (budget is None or uplink > budget):
                break
        yield Comparison(
            codec=text,
            bytes_to_target=reached[1] if reached else None,
            rounds_to_target=reached[0] if reached else None,
            accuracy_at_budget=at_budget,
            final_accuracy=history[-1][2] if history else None,
            rounds=federation.next_round,
            uplink_bytes=uplink,
            seconds=time.perf_counter() - start,
            history=tuple(history),
            error=trouble,
        )
