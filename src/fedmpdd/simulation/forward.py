"""Forward-mode clients: directional derivatives of the loss, one forward pass each, and never a gradient.

FedMPDD sends s_j = u_jᵀ∇f(x) = d/dt f(x + t·u_j) at t = 0 (Algorithm 2, line 9), and forward-mode differentiation
gives the right-hand side at once: every layer passes on its output and how fast that moves along u_j, so that nothing
is kept for a way back. docs/forward.md says what this costs.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedmpdd.codecs import ScalarCodec
from fedmpdd.directions import Key, Rademacher, family_named


def directions(codec: ScalarCodec, key: Key, begin: int, end: int, d: int) -> Tensor:
    """Directions begin … end − 1 of those that a key stands for: [end − begin, d], ±1."""
    family = family_named(codec.family)
    one, factor = np.ones((1, 1), np.float32), np.ones(1)
    rows = torch.zeros(end - begin, d)
    for row, one_key in zip(rows.numpy(), codec.direction_keys(key, begin, end), strict=True):
        # One scalar, 1, decodes to its direction, without rounding.
        if isinstance(family, Rademacher):
            family.decode_slice(one, factor, [one_key], row, 0)
        else:
            row[:] = family.decode(one, factor, [one_key], d)
    return rows


def along(losses: Callable[[Tensor], Tensor], flat: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return d/dt losses(flat + t·u) at t = 0 for all rows u together [rows, losses], and the losses.

    What does not depend on u is computed once. No graph is made: there is no way back to remember.
    """

    def derivative(row: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes, *_ = torch.func.jvp(losses, (flat,), (row,))
        return values, slopes

    with torch.no_grad():
        if len(rows) == 1:
            values, slopes = derivative(rows[0])
            return slopes.unsqueeze(0), values
        values, slopes = torch.func.vmap(derivative)(rows)
        return slopes, values[0]  # the same for all rows


def derivatives(
    losses: Callable[[Tensor], Tensor], flat: Tensor, codec: ScalarCodec, key: Key, at_once: int
) -> tuple[Tensor, Tensor]:
    """Return the scalars [losses, count] of some clients with one key, so many directions at once, and the losses."""
    parts = []
    for begin in range(0, codec.count, at_once):
        rows = directions(codec, key, begin, min(codec.count, begin + at_once), flat.numel()).to(flat.device)
        slopes, values = along(losses, flat, rows)
        parts.append(slopes)
        del rows  # they are large, and the next ones need the room
    return torch.cat(parts).T, values
