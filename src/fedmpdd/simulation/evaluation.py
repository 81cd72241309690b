"""The model on the test examples."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedmpdd.errors import ConfigError, DataError, FedmpddError
from fedmpdd.imports import words_and_line_of
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.workers import Workers
from fedmpdd.tasks.batch_norm import RunningStatistics, without_statistics
from fedmpdd.tasks.losses import CrossEntropy, logits_of, outputs_of
from fedmpdd.tasks.metrics import Metric
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.stores import Batch
from fedmpdd.tasks.task import Task, no_broadcasting

EXAMPLES, TEXTS = 500, 50  # that are evaluated at a time: a text has a target per position


class Evaluation(NamedTuple):
    """What was measured of a model."""

    loss: float
    metrics: dict[str, float]


class Evaluator:
    """Loss and metrics on the test examples, in eval mode.

    Args:
        config: of the run.
        task: with the test examples and the metrics.
        objective: what clients minimise.
        statistics: of batch norm, where the server keeps some.
        workers: the threads that compute.

    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        objective: Objective,
        statistics: RunningStatistics | None,
        workers: Workers[Objective],
    ) -> None:
        self._workers = workers
        self._loss = task.loss
        self._metrics = task.metrics
        self._statistics = statistics
        self._store = task.test.to(config.device)
        self._module = objective.model.module
        if statistics is None:  # local ones are with the clients: the test batch's own are left
            without_statistics(self._module)
        self._at_a_time = TEXTS if _has_positions(self._store.gather(torch.zeros(1, dtype=torch.int64))) else EXAMPLES

    def __call__(self, flat: Tensor) -> Evaluation:
        """Measure a model."""
        if self._statistics is not None:
            self._statistics.put_into(self._module)

        def compute(objective: Objective, begin: int) -> tuple[tuple[float, int], list[Any]]:
            chosen = torch.arange(begin, min(begin + self._at_a_time, len(self._store)))
            with torch.no_grad():
                return objective.tested(flat, lambda network: self._part(network, self._store.gather(chosen)))

        try:
            results = self._workers.map(compute, range(0, len(self._store), self._at_a_time))
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model, loss or metric
            raise ConfigError(f"the model cannot be tested: {words_and_line_of(error)}") from error
        losses, parts = zip(*results, strict=True)
        total, count = (sum(values) for values in zip(*losses, strict=True))
        if not math.isfinite(total) and bool(torch.isfinite(flat).all()):
            number = self._store.not_finite()
            if number is not None:
                raise DataError(
                    f"the test loss is {total}, and test example {number} holds NaN or infinity; leave such ones out"
                )
        metrics = {
            name.removeprefix("-"): _value(name, metric, [part[number] for part in parts])
            for number, (name, metric) in enumerate(self._metrics.items())
        }
        return Evaluation(total / max(count, 1), metrics)

    def check(self, flat: Tensor) -> None:
        """Raise ConfigError if the loss or a metric cannot be taken of test examples."""

        def compute(objective: Objective, chosen: Tensor) -> list[Any]:
            with torch.no_grad():
                return objective.tested(flat, lambda network: self._part(network, self._store.gather(chosen)))[1]

        chosen = torch.arange(min(2, len(self._store)))
        try:
            with no_broadcasting():
                (parts,) = self._workers.map(compute, [chosen])
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model, loss or metric
            raise ConfigError(f"the model cannot be tested: {words_and_line_of(error)}") from error
        for (name, metric), part in zip(self._metrics.items(), parts, strict=True):
            _value(name, metric, [part])

    def _part(self, network: nn.Module, batch: Batch) -> tuple[tuple[float, int], list[Any]]:
        """Loss and metrics of a batch, and how much they count."""
        outputs = None
        if not self._loss.takes_model or any(metric.needs_outputs for metric in self._metrics.values()):
            outputs, targets = outputs_of(network, batch)
            if isinstance(self._loss, CrossEntropy):
                CrossEntropy.check(logits_of(outputs), targets, what="test examples")
        if self._loss.takes_model:
            size = len(tree_leaves(batch)[0])
            loss = float(self._loss(network, batch)) * size, size
        else:
            loss = self._loss.total(outputs, batch[-1])
        return loss, [metric.part(network, batch, outputs) for metric in self._metrics.values()]


def _value(name: str, metric: Metric, parts: list[Any]) -> float:
    """A metric of test examples, or ConfigError for what somebody else's metric raises."""
    try:
        value = metric.value(parts)
    except FedmpddError:
        raise
    except Exception as error:
        raise ConfigError(f"metric {name} cannot be taken of test examples: {words_and_line_of(error)}") from error
    if name == "accuracy" and not 0 <= value <= 1 and not math.isnan(value):
        raise ConfigError(
            f"metric accuracy gives {value:g}; expected a number from 0 to 1: give another metric its name"
        )
    return value


def _has_positions(batch: Batch) -> bool:
    """Whether a target is many classes: one per position of a text, or per pixel."""
    target = batch[-1] if isinstance(batch, tuple) else tree_leaves(batch)[-1]
    return isinstance(target, Tensor) and target.ndim > 1 and not target.is_floating_point()
