"""Several steps of a client before it sends: gradient descent for all clients at once, or any optimiser of PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedmpdd.imports import named_object
from fedmpdd.simulation.config import RunConfig
from fedmpdd.torch.step import Factory, make_optimiser, split


@dataclass(frozen=True)
class LocalTraining:
    """How clients step. What they have moved away from the server's model is what they send.

    Args:
        lr: the step size; of plain gradient descent, or that of the optimiser.
        factory: of the optimiser of each client; its state is gone after the round.
        proximal: FedProx's μ: how much a client is pulled back to the server's model.
        shapes: of the parameters.

    """

    lr: float | None
    factory: Factory | None
    proximal: float
    shapes: Sequence[torch.Size]

    @classmethod
    def of(cls, config: RunConfig, shapes: Sequence[torch.Size]) -> "LocalTraining":
        """Return the local training that a config asks for."""
        name = config.local_optimiser
        factory = None if name is None else named_object(name, "local_optimiser")
        return cls(config.client_lr, factory, config.proximal, shapes)

    def start(self, flat: Tensor) -> "Optimizer | None":
        """Return the optimiser of a client that begins at the server's model; None for plain gradient descent."""
        if self.factory is None:
            return None
        parameters = [nn.Parameter(part.clone()) for part in split(flat, self.shapes)]
        optimiser = make_optimiser(self.factory, parameters, "local_optimiser")
        if self.lr is not None:  # groups keep their sizes relative to each other
            for group in optimiser.param_groups:
                group["lr"] *= self.lr / optimiser.defaults["lr"]
        return optimiser

    def step(self, flat: Tensor, moved: Tensor, gradients: Tensor, optimisers: Sequence[Optimizer | None]) -> None:
        """Move clients one step on.

        Args:
            flat: the server's model [d].
            moved: how far each client is from it [clients, d], x − x_k; changed in place.
            gradients: at each client's model [clients, d].
            optimisers: what `start` returned for each of them.

        """
        if self.proximal:
            gradients = gradients - self.proximal * moved
        if self.factory is None:
            assert self.lr is not None
            moved += self.lr * gradients
            return
        for row, gradient, optimiser in zip(moved, gradients, optimisers, strict=True):
            assert optimiser is not None
            row.copy_(flat - _stepped(optimiser, gradient, self.shapes))


def _stepped(optimiser: Optimizer, gradient: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for parameter, part in zip(parameters, split(gradient, shapes), strict=True):
        parameter.grad = part
    optimiser.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
