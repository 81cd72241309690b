"""Clients that compute losses only: slopes along directions, and steps along these.

A slope is (f(x + μu) − f(x − μu)) / 2μ, two forward passes of which nothing is kept. Whoever takes T steps has m / T
directions for each, and moves along the mean of its slopes times directions. What it sends is how far it came, as with
any local steps: the m scalars T · local_lr · slope, which decode to that by the mean along m directions that all codecs
have. So a server with step size 1 averages models, as FedKSeed's and DeComFL's do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import LossCodec
from fedmpdd.directions import Key, direction
from fedmpdd.simulation.config import RunConfig

Losses = Callable[[Tensor, int], Tensor]  # of some clients [clients], at one model [d] or one each, at one of the steps


@dataclass(frozen=True)
class ZerothOrder:
    """How clients make scalars of losses.

    Args:
        codec: of the round.
        steps: how many steps each client takes.
        lr: its step size, None where it takes none.
        proximal: how much it is pulled back to the server's model.

    """

    codec: LossCodec
    steps: int
    lr: float | None
    proximal: float

    @classmethod
    def of(cls, config: RunConfig, codec: LossCodec) -> "ZerothOrder":
        """Return what a config asks for."""
        return cls(codec, config.local_steps, config.local_lr, config.proximal)

    def scalars(self, losses: Losses, flat: Tensor, keys: Sequence[Key]) -> tuple[NDArray[np.float64], Tensor]:
        """Return the scalars [clients, m] of some clients, and their losses [clients] or, of steps, [clients, steps].

        Args:
            losses: in float64.
            flat: the server's model [d].
            keys: of these clients. Those with one key are at one model, and go through the network together.

        """
        if self.lr is None:
            slopes, _, _ = self._slopes(losses, flat, keys, 0)
            return slopes, losses(flat, 0)
        scalars = np.zeros((len(keys), self.codec.count))
        moved = torch.zeros((len(keys), flat.numel()), device=flat.device)
        shrink = 1 - self.lr * self.proximal
        seen = []
        for step in range(self.steps):
            slopes, gradients, middle = self._slopes(losses, flat - moved if step else flat, keys, step)
            scalars *= shrink
            scalars[:, self._of_step(step)] = self.lr * self.steps * slopes
            moved = shrink * moved + self.lr * gradients
            seen.append(middle)
        return scalars, torch.stack(seen, dim=1)

    def _of_step(self, step: int) -> slice:
        """Which directions of an update a step goes along."""
        size = self.codec.count // self.steps
        return slice(step * size, (step + 1) * size)

    def _slopes(
        self, losses: Losses, models: Tensor, keys: Sequence[Key], step: int
    ) -> tuple[NDArray[np.float64], Tensor, Tensor]:
        """Slopes [clients, directions of the step], what they say of the gradient, and losses half-way between."""
        which, size = self._of_step(step), self.codec.step
        clients, count = len(keys), which.stop - which.start
        slopes = np.empty((clients, count))
        gradients = torch.zeros((clients, models.shape[-1]) if self.lr is not None else (1,), device=models.device)
        middle = torch.zeros(clients, dtype=torch.float64, device=models.device)
        for place in range(count):
            rows = self._directions(keys, which.start + place, models)
            ahead, behind = (losses(models + sign * (size * rows), step) for sign in (1, -1))
            slopes[:, place] = (ahead - behind).cpu().numpy() / (2 * size)
            middle += (ahead + behind) / (2 * count)
            if self.lr is not None:
                along = torch.from_numpy(slopes[:, place] / count).to(gradients)
                gradients += along[:, None] * rows
        return slopes, gradients, middle

    def _directions(self, keys: Sequence[Key], number: int, models: Tensor) -> Tensor:
        """One direction of each client's update [clients, d], or the one of all of them [d]."""
        d = models.shape[-1]
        chosen = [self.codec.direction_keys(key, number, number + 1)[0] for key in keys]
        if len(set(chosen)) == 1:
            return torch.from_numpy(direction(chosen[0], 1, 0, d)).to(models.device)
        return torch.from_numpy(np.stack([direction(one, 1, 0, d) for one in chosen])).to(models.device)
