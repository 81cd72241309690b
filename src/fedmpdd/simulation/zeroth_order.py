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

from fedmpdd.codecs import MPDD, LossCodec, Update
from fedmpdd.directions import Key, direction
from fedmpdd.simulation.config import RunConfig

Losses = Callable[[Tensor, int], Tensor]  # of some clients at models, on the minibatches of one of their steps


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

    def scalars(
        self,
        losses: Losses,
        flat: Tensor,
        keys: Sequence[Key],
        *,
        losses_of_all: Losses | None = None,
        at_once: int = 1,
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Return the scalars [clients, m] of some clients, and their losses [clients] or, of steps, [clients, steps].

        Args:
            losses: [clients] in float64, at one model [d], or at one each [clients, d].
            flat: the server's model [d].
            keys: of these clients. Those with one key are at one model, and go through the network together.
            losses_of_all: of all clients at each of several models: [models, clients]; model by model by default.
            at_once: how many models it takes at a time.

        """
        if self.lr is None and losses_of_all is not None and len(set(keys)) == 1:
            return self._shared_slopes(losses_of_all, flat, keys, at_once), losses(flat, 0)
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

    def _shared_slopes(
        self, losses_of_all: Losses, flat: Tensor, keys: Sequence[Key], at_once: int
    ) -> NDArray[np.float64]:
        """Slopes [clients, directions] of clients at one model, along directions of all of them."""
        count, size, pairs = self.codec.count, self.codec.step, max(1, at_once // 2)
        slopes = np.empty((len(keys), count))
        for begin in range(0, count, pairs):
            some = range(begin, min(begin + pairs, count))
            ahead, behind = [], []
            for number in some:
                along = size * self._directions(keys, number, flat)
                ahead.append(flat + along)
                behind.append(flat - along)
            models = torch.stack([*ahead, *behind])
            values = torch.cat([losses_of_all(part, 0) for part in torch.split(models, at_once)])
            first, second = values.cpu().numpy().reshape(2, len(some), len(keys))
            slopes[:, begin : some.stop] = ((first - second) / (2 * size)).T
        return slopes

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
            return _direction(chosen[0], d, models)
        return torch.stack([_direction(one, d, models) for one in chosen])


def _direction(key: Key, d: int, like: Tensor) -> Tensor:
    """The first direction of a key [d], made where a tensor is."""
    if not like.is_cuda:
        return torch.from_numpy(direction(key, 1, 0, d))
    unit = MPDD(1)  # whose estimate of one scalar 1 is the direction itself
    update = Update(unit, d, key, (np.ones(1, np.float32),))
    return unit.decode_mean_on(str(like.device), [update])
