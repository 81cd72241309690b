"""What a client minimises: a function of outputs and targets, or of model and batch."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedmpdd.errors import ConfigError
from fedmpdd.imports import quote
from fedmpdd.tasks.stores import Batch

IGNORED = -100  # the target that cross-entropy leaves out, as of padding
_MODEL_NAMES = ("model", "module", "network", "net")


class Loss:
    """A loss as the engine calls it: of a network and a batch.

    Args:
        function: (outputs, targets) -> scalar, or (model, batch) -> scalar. It is the second kind if its first
            parameter is called model, module, network or net.
        key: what messages call it.

    """

    def __init__(self, function: Callable[..., Any], key: str = "loss") -> None:
        if not callable(function):
            raise ConfigError(f"{key} = {quote(function)} cannot be called; expected a function (outputs, targets)")
        if isinstance(function, type):
            raise ConfigError(f"{key} = {function.__name__} is a class; make an object of it: {function.__name__}()")
        self.function = function
        self.takes_model = takes_model(function)

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        if self.takes_model:
            value = self.function(network, batch)
        else:
            outputs, targets = outputs_of(network, batch)
            value = self.function(outputs, targets)
        return _scalar(value)

    per_example: Callable[[Tensor, Tensor], Tensor] | None = None  # the loss of each example, where it is known

    def per_client(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of each client, where the loss of each example is known.

        Args:
            outputs: of all examples, one client's after another's.
            targets: theirs [clients, batch, …].

        """
        assert self.per_example is not None
        return self.per_example(logits_of(outputs), targets.flatten(0, 1)).reshape(len(targets), -1).mean(dim=1)

    def total(self, outputs: Any, targets: Tensor) -> tuple[float, int]:
        """Return the sum of the losses of test examples, and what to divide it by."""
        return float(_scalar(self.function(outputs, targets))) * len(targets), len(targets)


class CrossEntropy(Loss):
    """Cross-entropy of classes, the mean over examples and positions."""

    def __init__(self) -> None:
        super().__init__(functional.cross_entropy)

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        """See Loss."""
        outputs, targets = outputs_of(network, batch)
        return functional.cross_entropy(logits_of(outputs), targets)

    @staticmethod
    def per_example(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example and position."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def per_client(self, outputs: Any, targets: Tensor) -> Tensor:
        """See Loss; what is padded counts no more here than in the loss of one client."""
        losses = self.per_example(logits_of(outputs), targets.flatten(0, 1)).reshape(len(targets), -1)
        return losses.sum(dim=1) / (targets != IGNORED).flatten(1).sum(dim=1)

    def total(self, outputs: Any, targets: Tensor) -> tuple[float, int]:
        """See Loss."""
        summed = float(functional.cross_entropy(logits_of(outputs), targets, reduction="sum"))
        return summed, int((targets != IGNORED).sum())

    @staticmethod
    def check(
        outputs: Tensor, targets: Tensor, classes: NDArray[np.int64] | None = None, what: str = "examples"
    ) -> None:
        """Raise ConfigError for outputs and targets that this loss would take and not mean.

        Args:
            outputs: of some examples.
            targets: theirs.
            classes: of all examples, if they are known.
            what: how messages call the examples.

        """
        if targets.is_floating_point():
            raise ConfigError(
                f"cross-entropy came with targets of {targets.dtype}; expected whole numbers, the classes: for a "
                "regression give its loss, such as torch.nn.functional.mse_loss"
            )
        check_outputs(outputs)
        if targets.dtype == torch.bool:
            raise ConfigError("cross-entropy came with targets of torch.bool; expected whole numbers: call .long()")
        if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
            raise ConfigError(
                f"cross-entropy came with outputs of shape {list(outputs.shape)} and targets of shape "
                f"{list(targets.shape)}; expected outputs [examples, classes, …] and targets [examples, …]"
            )
        if classes is None:
            classes = targets[targets != IGNORED].cpu().numpy()
        if classes.size and not 0 <= classes.min() <= classes.max() < outputs.shape[1]:
            first, last = classes.min(), classes.max()
            there = f"class {first}" if first == last else f"classes {first} to {last}"
            raise ConfigError(
                f"the {what} have {there}, and the model has "
                f"{outputs.shape[1]} outputs; expected classes from 0 to {outputs.shape[1] - 1}"
            )


def check_outputs(outputs: Tensor) -> None:
    """Raise ConfigError for outputs over which every cross-entropy is 0, that with probabilities as targets too."""
    if outputs.ndim < 2 or outputs.shape[1] == 1:
        raise ConfigError(
            f"cross-entropy came with outputs of shape {list(outputs.shape)}, and over one class it is 0 whatever the "
            "model says; give one output per class, or another loss such as "
            "torch.nn.functional.binary_cross_entropy_with_logits"
        )


def as_loss(function: Any) -> Loss:
    """Return a loss as the engine calls it; see Loss."""
    if isinstance(function, Loss):
        return function
    plain = type(function) is nn.CrossEntropyLoss and repr(vars(function)) == repr(vars(nn.CrossEntropyLoss()))
    return CrossEntropy() if plain or function is functional.cross_entropy else Loss(function)


def takes_model(function: Callable[..., Any]) -> bool:
    """Return whether a function wants the model and a batch, by the name of its first parameter."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # written in C
        return False
    return bool(names) and names[0] in _MODEL_NAMES


def outputs_of(network: nn.Module, batch: Batch) -> tuple[Any, Tensor]:
    """Return what a network makes of the inputs of a batch, and its targets."""
    *inputs, targets = inputs_and_targets(batch)
    return network(*inputs), targets


def inputs_and_targets(batch: Batch) -> tuple[Any, ...]:
    """Return a batch whose last entry is the target, or raise ConfigError."""
    if not isinstance(batch, tuple) or len(batch) < 2:
        came = f"a dict of {', '.join(batch)}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ConfigError(
            f"a batch is {came}, and this loss or metric takes outputs and targets; name columns=(inputs, target), or "
            "give one of (model, batch)"
        )
    return batch


def logits_of(outputs: Any) -> Tensor:
    """Return the logits of what a model returns: a tensor, or a dict that has some."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        logits: Tensor = outputs["logits"]
        return logits
    has = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
    raise ConfigError(
        f"the model returns a {type(outputs).__name__}{has}, not a tensor of logits; give a loss and metrics of "
        "(model, batch), which take out of it what they need"
    )


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim != 0:
        came = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(f"the loss gives {came}; expected one number, a tensor of no dimensions: take its mean")
    if value.is_complex():
        raise ConfigError(f"the loss gives a number of {value.dtype}; expected a real one: take its abs() or real")
    return value if value.is_floating_point() else value.float()
