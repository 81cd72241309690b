"""Codecs side by side in one federation and one process."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpdd.errors import ConfigError
from fedmpdd.federation.config import RunConfig, apply_overrides, parse_config
from fedmpdd.federation.engine import RoundMetrics, make_federation


@dataclass(frozen=True)
class Comparison:
    """How one codec did. None where the target or the budget was not reached."""

    codec: str
    bytes_to_target: int | None
    rounds_to_target: int | None
    accuracy_at_budget: float | None
    final_accuracy: float | None
    rounds: int
    uplink_bytes: int
    seconds: float
    history: tuple[tuple[int, int, float], ...] = ()  # (rounds, uplink bytes, accuracy) at each evaluation

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def codec_config(config: RunConfig, text: str) -> RunConfig:
    """Return the config with the codec that a text like `mpdd:m=400:bits=1` or `fedsgd` describes."""
    name, *parameters = text.split(":")
    values = config.model_dump(mode="json")
    keys = values["codec"].get("keys", "sent")
    values["codec"] = {"keys": keys}
    return parse_config(apply_overrides(values, [f"codec.name={name}", *(f"codec.{p}" for p in parameters)]))


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
    configs = [(text, codec_config(config, text)) for text in codecs]  # all checked before the first one runs
    for text, own in configs:
        start = time.perf_counter()
        federation = make_federation(own, data_dir)
        uplink, full = 0, 0
        history: list[tuple[int, int, float]] = []
        reached: tuple[int, int] | None = None
        at_budget: float | None = None
        while federation.next_round < own.rounds:
            metrics = federation.run_round()
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
        )
