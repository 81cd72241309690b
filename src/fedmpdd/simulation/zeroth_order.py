"""Clients without gradients: slopes along directions, and steps along these.

A slope is (f(x + μu) − f(x − μu)) / 2μ, two forward passes of which nothing is kept, or the derivative along u, one
pass in forward mode. Whoever takes T steps has m / T directions for each, some steps one more where T does not divide
m, and moves along the mean of its slopes times directions. With more steps than directions it goes round them, one a
step. What it sends is how far it came, as with any local steps: m scalars that decode to that by the mean along m
directions that all codecs have. So a server with step size 1 averages models, as FedKSeed's and DeComFL's do.

An optimiser takes a client away from its directions; what is sent then is the nearest point on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import MPDD, ScalarCodec, Update
from fedmpdd.directions import Key
from fedmpdd.simulation import forward
from fedmpdd.simulation.local_steps import LocalTraining

Losses = Callable[[Tensor, int], Tensor]  # of some clients at models, on the minibatches of one of their steps


@dataclass(frozen=True)
class ZerothOrder:
    """How clients make scalars of losses.

    Args:
        codec: of the round.
        steps: how many steps each client takes.
        training: how it steps, None where it takes none.

    """

    codec: ScalarCodec
    steps: int
    training: LocalTraining | None

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
        if self.training is not None:
            return self._after_steps(self.training, losses, flat, keys)
        if losses_of_all is not None and len(set(keys)) == 1:
            return self._shared_slopes(losses_of_all, flat, keys, at_once), losses(flat, 0)
        slopes, _, _ = self._slopes(losses, flat, keys, 0)
        return slopes, losses(flat, 0)

    def _after_steps(
        self, training: LocalTraining, losses: Losses, flat: Tensor, keys: Sequence[Key]
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Scalars of how far clients came, and their losses at each step."""
        scalars = np.zeros((len(keys), self.codec.count))
        moved = torch.zeros((len(keys), flat.numel()), device=flat.device)
        optimisers = [training.start(flat) for _ in keys]
        seen = []
        for step in range(self.steps):
            slopes, gradients, middle = self._slopes(losses, flat - moved if step else flat, keys, step)
            seen.append(middle)
            if training.factory is not None:
                training.step(flat, moved, gradients, optimisers)
                continue
            assert training.lr is not None
            shrink, which = 1 - training.lr * training.proximal, self._of_step(step)
            scalars *= shrink
            scalars[:, which] += training.lr * (self.codec.count / (which.stop - which.start)) * slopes
            moved = shrink * moved + training.lr * gradients
        if training.factory is not None:
            scalars = np.stack([self._nearest(row, key) for row, key in zip(moved, keys, strict=True)])
        return scalars, torch.stack(seen, dim=1)

    def _nearest(self, moved: Tensor, key: Key) -> NDArray[np.float64]:
        """The scalars [m] along the directions of a key whose estimate is nearest to a vector [d]."""
        count = self.codec.count
        rows = torch.stack([self._directions([key], number, moved) for number in range(count)]).double()
        inverse = torch.linalg.pinv((rows @ rows.T).cpu(), hermitian=True)  # directions may be there twice
        return np.asarray(count * (inverse @ (rows @ moved.double()).cpu()))

    def _shared_slopes(
        self, losses_of_all: Losses, flat: Tensor, keys: Sequence[Key], at_once: int
    ) -> NDArray[np.float64]:
        """Slopes [clients, directions] of clients at one model, along directions of all of them."""
        count, size, pairs = self.codec.count, self.codec.step, max(1, at_once // 2)
        assert size is not None
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
        count = self.codec.count
        if self.steps > count:
            return slice(step % count, step % count + 1)
        return slice(step * count // self.steps, (step + 1) * count // self.steps)

    def _slopes(
        self, losses: Losses, models: Tensor, keys: Sequence[Key], step: int
    ) -> tuple[NDArray[np.float64], Tensor, Tensor]:
        """Slopes [clients, directions of the step], what they say of the gradient, and losses where they were taken."""
        which = self._of_step(step)
        clients, count = len(keys), which.stop - which.start
        slopes = np.empty((clients, count))
        steps = self.training is not None
        gradients = torch.zeros((clients, models.shape[-1]) if steps else (1,), device=models.device)
        middle = torch.zeros(clients, dtype=torch.float64, device=models.device)
        for place in range(count):
            rows = self._directions(keys, which.start + place, models)
            slopes[:, place], loss = self._along(losses, models, rows, step)
            middle += loss / count
            if steps:
                along = torch.from_numpy(slopes[:, place] / count).to(gradients)
                gradients += along[:, None] * rows
        return slopes, gradients, middle

    def _along(self, losses: Losses, models: Tensor, rows: Tensor, step: int) -> tuple[NDArray[np.float64], Tensor]:
        """Slopes of clients' losses along directions, and the losses themselves: half-way, or in the same pass."""
        size = self.codec.step
        if size is None:
            shape = np.broadcast_shapes(models.shape, rows.shape)
            models, rows = (part.expand(shape).contiguous() for part in (models, rows))
            slopes, values = forward.along(lambda at: losses(at, step), models, rows[None])
            return slopes[0].cpu().numpy(), values
        ahead, behind = (losses(models + sign * (size * rows), step) for sign in (1, -1))
        return (ahead - behind).cpu().numpy() / (2 * size), (ahead + behind) / 2

    def _directions(self, keys: Sequence[Key], number: int, models: Tensor) -> Tensor:
        """One direction of each client's update [clients, d], or the one of all of them [d]."""
        chosen = [self.codec.direction_keys(key, number, number + 1)[0] for key in keys]
        if len(set(chosen)) == 1:
            return self._direction(chosen[0], models)
        return torch.stack([self._direction(one, models) for one in chosen])

    def _direction(self, key: Key, like: Tensor) -> Tensor:
        """The first direction of a key [d], made where a tensor is."""
        unit = MPDD(1, family=self.codec.family)  # whose estimate of one scalar 1 is the direction itself
        update = Update(unit, like.shape[-1], key, (np.ones(1, np.float32),))
        if like.is_cuda:
            return unit.decode_mean_on(str(like.device), [update])
        return torch.from_numpy(unit.decode_mean([update]))
