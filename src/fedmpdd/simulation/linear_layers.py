"""Gradients of many clients in one pass, where linear layers are all that is trained: adapters, say, and a head.

The examples of all clients go through the network as one batch, and a trained layer has one weight per client. So the
clients may stand at different models, and what is frozen is multiplied once for all of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedmpdd.tasks.losses import inputs_and_targets, logits_of
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.stores import Batch


class _LinearPerRow(nn.Linear):
    """A linear layer with a weight for each of so many equal parts of its batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs; of an ordinary weight as nn.Linear does."""
        weight, bias = self.weight, self.bias
        if weight.ndim == 2:
            return super().forward(inputs)
        if inputs.shape[0] % len(weight):
            raise RuntimeError(
                f"a linear layer came with {inputs.shape[0]} rows for {len(weight)} clients: the model does not keep "
                "examples in the first dimension"
            )
        rows = inputs.reshape(len(weight), -1, inputs.shape[-1])
        outputs = rows @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
        return outputs.view(*inputs.shape[:-1], -1)


def has_linear_layers(objective: Objective) -> bool:
    """Return whether every parameter that is trained belongs to a linear layer."""
    modules = dict(objective.model.module.named_modules())
    owners = [name.rpartition(".")[0] for name in objective.model.names]
    shared = len({id(modules[owner]) for owner in owners}) < len(set(owners))
    return not shared and all(type(modules[owner]) is nn.Linear for owner in owners)


def equal_frozen(one: nn.Module, other: nn.Module, trained: Sequence[str]) -> bool:
    """Return whether two modules have the same numbers in all that is not trained.

    Args:
        one: a module.
        other: a module with the same layers.
        trained: the names of the parameters that are.

    """
    ours, theirs = _frozen(one, trained), _frozen(other, trained)
    return ours.keys() == theirs.keys() and all(
        value is theirs[name]
        or (
            value.shape == theirs[name].shape and value.dtype == theirs[name].dtype and torch.equal(value, theirs[name])
        )
        for name, value in ours.items()
    )


def _frozen(module: nn.Module, trained: Sequence[str]) -> dict[str, Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value for name, value in named.items() if name not in set(trained)}


class LinearLayerGradients:
    """Gradients and losses of clients whose examples go through the network as one batch.

    The loss must know the loss of each example.

    Args:
        training: whether the model is in train mode; without it there is no dropout.

    """

    def __init__(self, *, training: bool = True) -> None:
        self._training = training
        self._with_rows: dict[Objective, Objective] = {}

    def __call__(self, objective: Objective, flat: Tensor, batch: Batch, gradients: Tensor) -> Tensor:
        """Write gradients [clients, d], and return losses [clients].

        Args:
            objective: what clients minimise; one thread uses it at a time.
            flat: the model of all clients [d], or of each [clients, d].
            batch: their examples [clients, batch, …].
            gradients: where to write.

        """
        models = flat.expand(len(gradients), -1).detach().requires_grad_()
        losses = self.losses(objective, models, batch)
        gradients.copy_(torch.autograd.grad(losses.sum(), models)[0])
        return losses.detach()

    def losses(self, objective: Objective, models: Tensor, batch: Batch, *, precise: bool = False) -> Tensor:
        """Return the losses [models] of batches [models, batch, …], each at its own model [models, d].

        They can be differentiated in the models, and again where the network can be.

        Args:
            objective: what clients minimise; one thread uses it at a time.
            models: parameters.
            batch: examples.
            precise: whether what leaves the network is float64 from there on.

        """
        if objective not in self._with_rows:
            self._with_rows[objective] = _with_rows(objective)
            self._with_rows[objective].network.train(self._training)
        *inputs, targets = inputs_and_targets(batch)
        inputs = tree_map(lambda leaf: leaf.flatten(0, 1), inputs)
        outputs = logits_of(self._with_rows[objective].outputs(models, *inputs))
        return objective.loss.per_client(outputs.double() if precise else outputs, targets)


def _with_rows(objective: Objective) -> Objective:
    """A copy whose trained layers take a weight per client."""
    copied = objective.copy()
    modules = dict(copied.network.named_modules())
    for name in objective.model.names:
        # The class alone is exchanged: whoever holds the layer, as adapters do, finds all its attributes.
        modules[name.rpartition(".")[0]].__class__ = _LinearPerRow
    return copied
