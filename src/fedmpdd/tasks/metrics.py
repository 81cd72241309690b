"""What is measured of a model on the test examples, one part of them at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedmpdd.errors import ConfigError
from fedmpdd.imports import quote
from fedmpdd.tasks.losses import IGNORED, logits_of, takes_model
from fedmpdd.tasks.stores import Batch


class Metric:
    """A metric of all test examples: a function of outputs and targets.

    Args:
        function: (outputs, targets) -> number, called once with those of all test examples.

    """

    needs_outputs = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def part(self, network: nn.Module, batch: Batch, outputs: Any) -> Any:
        """Return what to keep of a batch."""
        return _on_host(outputs), batch[-1].cpu()

    def value(self, parts: Sequence[Any]) -> float:
        """Return the metric of all batches."""
        outputs, targets = zip(*parts, strict=True)
        return float(self.function(_joined(outputs), torch.cat(targets)))


class Updated(Metric):
    """An object with `reset`, `update` and `compute`, as torchmetrics has them."""

    def value(self, parts: Sequence[Any]) -> float:
        """See Metric."""
        metric: Any = self.function
        metric.reset()
        for outputs, targets in parts:
            metric.update(outputs, targets)
        return float(metric.compute())


class OfModel(Metric):
    """A function (model, batch) -> number: the mean over batches, by their numbers of examples."""

    needs_outputs = False

    def part(self, network: nn.Module, batch: Batch, outputs: Any) -> Any:
        """See Metric."""
        return float(self.function(network, batch)), len(tree_leaves(batch)[0])

    def value(self, parts: Sequence[Any]) -> float:
        """See Metric."""
        return float(sum(value * size for value, size in parts) / sum(size for _, size in parts))


class Accuracy(Metric):
    """The share of targets that have the largest output; of texts, at every position."""

    def __init__(self) -> None:
        super().__init__(accuracy)

    def part(self, network: nn.Module, batch: Batch, outputs: Any) -> Any:
        """See Metric."""
        return _correct(outputs, batch[-1])

    def value(self, parts: Sequence[Any]) -> float:
        """See Metric."""
        correct, counts = zip(*parts, strict=True)
        return float(sum(correct) / sum(counts))


def as_metrics(metrics: Any) -> dict[str, Metric]:
    """Return metrics by name as the engine calls them, or raise ConfigError."""
    if not isinstance(metrics, Mapping):
        raise ConfigError(f'metrics = {quote(metrics)}: expected functions by name, like {{"r2": r2}}')
    for name in metrics:
        if not isinstance(name, str) or not name.strip("-") or set(name) & set("=:( ") or name.strip("-") == "loss":
            raise ConfigError(
                f"a metric is called {name!r}; expected a word without blank, =, : and (, and another one than loss, "
                "which the test loss is called"
            )
    return {name: as_metric(name, metric) for name, metric in metrics.items()}


def as_metric(name: str, function: Any) -> Metric:
    """Return a metric as the engine calls it."""
    if isinstance(function, Metric):
        return function
    if isinstance(function, str) and function == "accuracy":
        return Accuracy()
    if all(callable(getattr(function, method, None)) for method in ("reset", "update", "compute")):
        return Updated(function)
    if not callable(function):
        raise ConfigError(f"metric {name} = {quote(function)} cannot be called; expected a function (outputs, targets)")
    if isinstance(function, type):
        raise ConfigError(f"metric {name} = {function.__name__} is a class; make an object of it")
    if function is accuracy:
        return Accuracy()
    return OfModel(function) if takes_model(function) else Metric(function)


def accuracy(outputs: Any, targets: Tensor) -> float:
    """Return the share of targets that have the largest output.

    Args:
        outputs: logits [examples, classes, …].
        targets: classes [examples, …].

    Returns:
        A number from 0 to 1.

    Example:
        >>> accuracy(torch.eye(3), torch.tensor([0, 1, 1]))
        0.6666666666666666

    """
    correct, count = _correct(outputs, targets)
    return correct / count


def _correct(outputs: Any, targets: Tensor) -> tuple[int, int]:
    """How many targets have the largest output, and of how many; what cross-entropy leaves out is left out here."""
    logits = logits_of(outputs)
    if targets.is_floating_point() or logits.shape[:1] + logits.shape[2:] != targets.shape:
        raise ConfigError(
            f"accuracy came with outputs of shape {list(logits.shape)} and targets of shape {list(targets.shape)}, "
            f"{targets.dtype}; expected outputs [examples, classes, …] and whole numbers [examples, …]"
        )
    return int((logits.argmax(dim=1) == targets).sum()), int((targets != IGNORED).sum())


def _on_host(outputs: Any) -> Any:
    """What a model returned, on the CPU: a tensor, or tensors in a dict or tuple."""
    if isinstance(outputs, Mapping):
        return {name: _on_host(value) for name, value in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(_on_host(value) for value in outputs)
    return outputs.cpu() if isinstance(outputs, Tensor) else outputs


def _joined(outputs: Sequence[Any]) -> Any:
    """The same of several batches, one after the other."""
    first = outputs[0]
    if isinstance(first, Mapping):
        return {name: _joined([one[name] for one in outputs]) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(values) for values in zip(*outputs, strict=True))
    return torch.cat(list(outputs)) if isinstance(first, Tensor) else list(outputs)
