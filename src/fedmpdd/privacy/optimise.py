"""Optimisers for many small problems at once: rows of one tensor that have nothing to do with each other."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Objective = Callable[[Tensor], Tensor]  # [problems, n] to losses [problems]


class State(NamedTuple):
    """The best guess of every problem so far, and its loss."""

    iteration: int
    best: Tensor
    losses: Tensor


def _evaluate(objective: Objective, x: Tensor) -> tuple[Tensor, Tensor]:
    variable = x.detach().requires_grad_()
    losses = objective(variable)
    gradient = torch.autograd.grad(losses.sum(), variable)[0]
    return losses.detach(), gradient


class _Best:
    def __init__(self, x: Tensor) -> None:
        self.x = x.clone()
        self.losses = torch.full((len(x),), math.inf, device=x.device)

    def look(self, x: Tensor, losses: Tensor) -> None:
        better = losses < self.losses  # never true for NaN
        self.losses = torch.where(better, losses, self.losses)
        self.x = torch.where(better[:, None], x, self.x)


def lbfgs(
    objective: Objective, start: Tensor, iterations: int, *, history: int = 20, lr: float = 1.0, search: bool = True
) -> Iterator[State]:
    """L-BFGS on every row of `start`; yields after every iteration.

    search: halve a step until the loss falls enough (Armijo). Without it steps are taken as they come, as DLG was
    published: faster where it works, and it may run away; the best guess is kept either way.
    """
    x = start.clone()
    best = _Best(x)
    losses, gradient = _evaluate(objective, x)
    best.look(x, losses)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # s, y, 1 / yᵀs (0 where a pair is of no use)
    for iteration in range(iterations):
        direction = -_two_loop(gradient, pairs)
        slope = (direction * gradient).sum(dim=1)
        # Downhill, or else start afresh along the gradient.
        uphill = ~(slope < 0)
        direction = torch.where(uphill[:, None], -gradient, direction)
        slope = torch.where(uphill, -gradient.square().sum(dim=1), slope)
        first = (1 / gradient.abs().sum(dim=1).clamp_min(1e-30)).clamp_max(1.0) if iteration == 0 else 1.0
        step = torch.ones_like(losses) * lr * first
        moved, new_losses, new_gradient = _step(objective, x, direction, step, losses, slope, search)
        s, y = moved - x, new_gradient - gradient
        curvature = (s * y).sum(dim=1)
        usable = curvature > 1e-10 * y.square().sum(dim=1)
        inverse = torch.where(usable, 1 / torch.where(usable, curvature, 1.0), 0.0)
        finite = torch.isfinite(new_losses) & torch.isfinite(new_gradient).all(dim=1)
        # A pair of no use weighs nothing, but 0 · NaN is NaN, for as long as the pair is remembered.
        pairs.append((torch.where(finite[:, None], s, 0.0), torch.where(finite[:, None], y, 0.0), inverse))
        del pairs[:-history]
        x = torch.where(finite[:, None], moved, best.x)
        gradient = torch.where(finite[:, None], new_gradient, gradient)
        losses = torch.where(finite, new_losses, losses)
        best.look(x, losses)
        yield State(iteration + 1, best.x, best.losses)


def _step(
    objective: Objective, x: Tensor, direction: Tensor, step: Tensor, losses: Tensor, slope: Tensor, search: bool
) -> tuple[Tensor, Tensor, Tensor]:
    moved = x + step[:, None] * direction
    new_losses, gradient = _evaluate(objective, moved)
    if not search:
        return moved, new_losses, gradient
    for _ in range(12):
        failed = ~(new_losses <= losses + 1e-4 * step * slope)
        if not bool(failed.any()):
            break
        step = torch.where(failed, step * 0.5, step)
        moved = x + step[:, None] * direction
        new_losses, gradient = _evaluate(objective, moved)
    # A problem whose steps all fail stays where it is.
    stuck = ~(new_losses <= losses)
    if bool(stuck.any()):
        moved = torch.where(stuck[:, None], x, moved)
        new_losses, gradient = _evaluate(objective, moved)
    return moved, new_losses, gradient


def _two_loop(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The inverse Hessian's action on the gradient, row by row."""
    q = gradient.clone()
    alphas = []
    for s, y, inverse in reversed(pairs):
        alpha = inverse * (s * q).sum(dim=1)
        q = q - alpha[:, None] * y
        alphas.append(alpha)
    if pairs:
        s, y, inverse = pairs[-1]
        scale = torch.where(inverse > 0, 1 / (inverse * y.square().sum(dim=1)).clamp_min(1e-30), 1.0)
        q = q * scale[:, None]
    for (s, y, inverse), alpha in zip(pairs, reversed(alphas), strict=True):
        beta = inverse * (y * q).sum(dim=1)
        q = q + (alpha - beta)[:, None] * s
    return q


def adam(
    objective: Objective,
    start: Tensor,
    iterations: int,
    *,
    lr: float = 0.1,
    signed: bool = False,
    decay: bool = True,
    clamp: tuple[float, float] | None = None,
) -> Iterator[State]:
    """Adam on every row, on the sign of the gradient if asked; lr falls tenfold at 3/8, 5/8 and 7/8 of the way."""
    x = start.clone()
    best = _Best(x)
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for iteration in range(iterations):
        losses, gradient = _evaluate(objective, x)
        best.look(x, losses)
        gradient = torch.nan_to_num(gradient.sign() if signed else gradient)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient.square()
        passed = sum(iteration >= iterations * eighths // 8 for eighths in (3, 5, 7)) if decay else 0
        correction = math.sqrt(1 - 0.999 ** (iteration + 1)) / (1 - 0.9 ** (iteration + 1))
        x = x - lr * 0.1**passed * correction * first / (second.sqrt() + 1e-8)
        if clamp is not None:
            x = x.clamp(*clamp)
        yield State(iteration + 1, best.x, best.losses)
