"""Clients, server, and the local engine that runs them."""

from fedmpdd.simulation.client_work import ClientWork, client_work
from fedmpdd.simulation.config import (
    RunConfig,
    apply_overrides,
    codec_config,
    load_config,
    parse_config,
    shipped_configs,
)
from fedmpdd.simulation.engine import Federation, RoundMetrics, federation_of, make_federation

__all__ = [
    "ClientWork",
    "Federation",
    "RoundMetrics",
    "RunConfig",
    "apply_overrides",
    "client_work",
    "codec_config",
    "federation_of",
    "load_config",
    "make_federation",
    "parse_config",
    "shipped_configs",
]
