"""The model on the test examples."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedmpdd.errors import ConfigError, FedmpddError
from fedmpdd.imports import words_of
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.workers import Workers
from fedmpdd.tasks.batch_norm import RunningStatistics, without_statistics
from fedmpdd.tasks.losses import outputs_of
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.stores import Batch
from fedmpdd.tasks.task import Task

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

        results = self._workers.map(compute, range(0, len(self._store), self._at_a_time))
        losses, parts = zip(*results, strict=True)
        total, count = (sum(values) for values in zip(*losses, strict=True))
        metrics = {
            name.removeprefix("-"): metric.value([part[number] for part in parts])
            for number, (name, metric) in enumerate(self._metrics.items())
        }
        return Evaluation(total / count, metrics)

    def check(self, flat: Tensor) -> None:
        """Raise ConfigError if the loss or a metric cannot be taken of test examples."""

        def compute(objective: Objective, chosen: Tensor) -> list[Any]:
            with torch.no_grad():
                return objective.tested(flat, lambda network: self._part(network, self._store.gather(chosen)))[1]

        try:
            (parts,) = self._workers.map(compute, [torch.arange(min(2, len(self._store)))])
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model, loss or metric
            raise ConfigError(f"the model cannot be tested: {words_of(error)}") from None
        for (name, metric), part in zip(self._metrics.items(), parts, strict=True):
            try:
                metric.value([part])
            except Exception as error:  # likewise
                raise ConfigError(f"metric {name} cannot be taken of test examples: {words_of(error)}") from None

    def _part(self, network: nn.Module, batch: Batch) -> tuple[tuple[float, int], list[Any]]:
        """Loss and metrics of a batch, and how much they count."""
        outputs = None
        if not self._loss.takes_model or any(metric.needs_outputs for metric in self._metrics.values()):
            outputs, _ = outputs_of(network, batch)
        if self._loss.takes_model:
            size = len(tree_leaves(batch)[0])
            loss = float(self._loss(network, batch)) * size, size
        else:
            loss = self._loss.total(outputs, batch[-1])
        return loss, [metric.part(network, batch, outputs) for metric in self._metrics.values()]


def _has_positions(batch: Batch) -> bool:
    """Whether a target is many classes: one per position of a text, or per pixel."""
    target = batch[-1] if isinstance(batch, tuple) else tree_leaves(batch)[-1]
    return isinstance(target, Tensor) and target.ndim > 1 and not target.is_floating_point()
