"""FedMPDD for Flower: a strategy in place of FedAvg, and a client mod that makes updates small (docs/flower.md)."""

from fedmpdd.flower.mod import fedmpdd_mod
from fedmpdd.flower.strategy import FedMPDD

__all__ = ["FedMPDD", "fedmpdd_mod"]
