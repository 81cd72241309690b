"""FedMPDD for Flower: a strategy in place of FedAvg, and a client mod that makes updates small (docs/flower.md)."""

from typing import TYPE_CHECKING, Any

from fedmpdd.flower.mod import fedmpdd_mod, make_mod
from fedmpdd.server.step import StepRule
from fedmpdd.uplink import RobustMean, SecureRounds
from fedmpdd.uplink.policy import ClientPolicy

if TYPE_CHECKING:
    from fedmpdd.flower.strategy import FedMPDD

__all__ = ["ClientPolicy", "FedMPDD", "RobustMean", "SecureRounds", "StepRule", "fedmpdd_mod", "make_mod"]


def __getattr__(name: str) -> Any:
    # A client, started anew for every message, need not wait for the strategy.
    if name == "FedMPDD":
        from fedmpdd.flower.strategy import FedMPDD

        return FedMPDD
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
