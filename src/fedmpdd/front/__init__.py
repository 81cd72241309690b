"""The front door: train a task of one's own in a few lines of Python."""

from fedmpdd.front.simulate import run_config, simulate

__all__ = ["run_config", "simulate"]
