"""Which words an update was made of, without an optimiser: a layer's gradient is a sum of few vectors of tokens.

The gradient of a linear layer is Σ δ xᵀ over positions. In the first block of many models x depends on the token
alone. So every row of the gradient is a sum of as many known vectors as there are different tokens, and these can be
picked one after the other (simultaneous orthogonal matching pursuit). Their order stays unknown.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.privacy.observation import ObservedUpdate
from fedmpdd.privacy.text_tokens import Layout
from fedmpdd.privacy.text_victim import TextVictim

EXPLAINED = 1e-4  # of a gradient's length; where less is left, all tokens have been picked


def solve_for_tokens(
    victim: TextVictim, observed: Sequence[ObservedUpdate], layout: Layout
) -> list[NDArray[np.int64]] | None:
    """Return tokens that explain what the server decodes of updates of one text each.

    Args:
        victim: the model.
        observed: the updates.
        layout: what is known of their texts: the tokens of a prompt, and how many others there are.

    Returns:
        Tokens of each text, likeliest first, as many as are looked for; None where every trained layer sees
        more than one token at a time, or its place in the text.

    """
    layers = victim.token_layers()
    if not layers:
        return None
    vectors = victim.token_vectors(layers[0])
    directions = torch.nn.functional.normalize(vectors, dim=1)
    results = []
    for row, one in enumerate(observed):
        rows = torch.cat([victim.part(one.decoded, layer) for layer in layers])
        there = layout.batch[1][row, 0].bool() if len(layout.batch) > 2 else torch.ones_like(layout.unknown[row])
        given = layout.ids[row][there & ~layout.unknown[row]]
        results.append(_pick(rows, directions, given, int(layout.unknown[row].sum())))
    return results


def _pick(rows: Tensor, directions: Tensor, given: Tensor, count: int) -> NDArray[np.int64]:
    chosen = sorted(set(given.tolist()))
    first = len(chosen)
    length = float(rows.norm())
    for _ in range(count):
        rest = rows
        if chosen:
            basis = torch.linalg.qr(directions[chosen].double().T)[0]
            rest = (rows.double() - rows.double() @ basis @ basis.T).float()
        if float(rest.norm()) <= EXPLAINED * length:
            break
        scores = (directions @ rest.T).square().sum(dim=1)
        scores[chosen] = -1.0
        chosen.append(int(scores.argmax()))
    return np.array(chosen[first:], dtype=np.int64)
