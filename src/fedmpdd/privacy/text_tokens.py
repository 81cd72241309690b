"""Which words an update was made of: embeddings are optimised until they explain it, then tokens are looked up.

The attacker knows the class, how many tokens there are, and those that every text has: a prompt, say. What it does not
know are vectors of their own at every other position, as pixels are in an attack on images.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.errors import ConfigError
from fedmpdd.privacy.matching import match_sent
from fedmpdd.privacy.observation import ObservedUpdate
from fedmpdd.privacy.optimise import State, lbfgs
from fedmpdd.privacy.text_victim import Embeddings, TextVictim
from fedmpdd.tasks.stores import Batch
from fedmpdd.tasks.text_models import occupied

ITERATIONS = 300
RESTARTS = 1
SPREAD = 0.1  # of the first guesses, in deviations of embeddings; what no gradient tells of a vector stays as it was
PERMUTATIONS = 9_999  # of which text belongs to which guess, by which chance is measured
GIVEN, UNKNOWN, PADDING = 0, 1, 2


class Layout(NamedTuple):
    """The tokens of texts, and which of them an attacker looks for.

    Args:
        batch: the texts [texts, 1, …], without columns that are padding in all of them.
        ids: their tokens [texts, positions].
        unknown: which positions are looked for [texts, positions].

    """

    batch: Batch
    ids: Tensor
    unknown: Tensor


class Words(NamedTuple):
    """What an attack found of each text, and how well it explains the update.

    Args:
        tokens: at the positions that are looked for, in their order.
        losses: of what was found [texts].
        truth: of the true embeddings [texts].

    """

    tokens: list[NDArray[np.int64]]
    losses: NDArray[np.float64]
    truth: NDArray[np.float64]


def layout_of(victim: TextVictim, examples: NDArray[np.int64], shared: tuple[int, int]) -> Layout:
    """Return the tokens of some examples, without those that all texts begin and end with.

    Args:
        victim: whose examples they are.
        examples: their numbers [texts].
        shared: how many tokens all texts begin with, and end with.

    """
    batch = victim.store.gather(torch.from_numpy(examples).to(victim.device)[:, None])
    ids = batch[0][:, 0]
    mask = batch[1][:, 0] if len(batch) > 2 else torch.ones_like(ids)
    some = occupied(mask)
    ids, mask = ids[:, some], mask[:, some]
    unknown = mask.bool()
    for row, there in enumerate(mask.bool()):
        places = there.nonzero()[:, 0]
        unknown[row, places[: shared[0]]] = False
        unknown[row, places[len(places) - shared[1] :]] = False
    inputs = (ids[:, None], mask[:, None]) if len(batch) > 2 else (ids[:, None],)
    return Layout((*inputs, batch[-1]), ids, unknown)


def shared_tokens(rows: Sequence[NDArray[np.int64]]) -> tuple[int, int]:
    """Return how many tokens all texts begin with, and how many they end with: those of a prompt.

    Args:
        rows: the tokens of each text.

    Example:
        >>> shared_tokens([np.array([1, 5, 9, 9]), np.array([1, 6, 7, 9, 9])])
        (1, 2)

    """
    shortest = min(map(len, rows))

    def common(number: Callable[[int], int], most: int) -> int:
        for count in range(most):
            if len({int(row[number(count)]) for row in rows}) > 1:
                return count
        return most

    first = common(lambda count: count, shortest)
    return first, common(lambda count: -1 - count, shortest - first)


def find_tokens(
    victim: TextVictim,
    observed: Sequence[ObservedUpdate],
    layout: Layout,
    *,
    iterations: int = ITERATIONS,
    restarts: int = RESTARTS,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Words:
    """Attack updates of one text each, side by side.

    Args:
        victim: the model.
        observed: the updates.
        layout: what is known of their texts, and what is looked for. Tokens at unknown positions are not looked at but
            to say how well the truth explains the update.
        iterations: of L-BFGS.
        restarts: starts of each; what explains the update best is kept.
        seed: of the starts.
        progress: is told how much is done.

    """
    table = victim.embeddings
    if table is None:
        raise ConfigError(
            'the model has no embeddings, or trains them, and then their gradient names the tokens; leave out "tokens"'
        )
    unknown = layout.unknown.repeat_interleave(restarts, dim=0)
    batch = tuple(leaf.repeat_interleave(restarts, dim=0) for leaf in layout.batch)
    hidden = (torch.where(unknown[:, None], 0, batch[0]), *batch[1:])
    match = match_sent([one for one in observed for _ in range(restarts)])
    shape = (*unknown.shape, table.shape[1])

    def objective(x: Tensor) -> Tensor:
        return match(victim.gradients(hidden, Embeddings(x.view(shape), unknown)))

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator).to(victim.device)
    start = (table.mean(dim=0) + SPREAD * table.std(dim=0) * drawn).flatten(1)
    state: State | None = None
    for state in lbfgs(objective, start, iterations):
        if progress is not None:
            progress(state.iteration / iterations)
    assert state is not None, "an attack runs at least one iteration"
    losses = state.losses.view(-1, restarts)
    best = losses.argmin(dim=1) + restarts * torch.arange(len(losses), device=losses.device)
    vectors = state.best[best].view(len(losses), *shape[1:])
    tokens = [_nearest(vectors[row][layout.unknown[row]], table) for row in range(len(losses))]
    with torch.no_grad():
        true = table[layout.ids]
    known = match_sent(list(observed))(victim.gradients(layout.batch, Embeddings(true, layout.unknown))).detach()
    return Words(tokens, losses.min(dim=1).values.double().cpu().numpy(), known.double().cpu().numpy())


def _nearest(vectors: Tensor, table: Tensor) -> NDArray[np.int64]:
    """The tokens whose embeddings point most nearly the same way, seen from the middle of all of them."""
    middle = table.mean(dim=0)
    directions = torch.nn.functional.normalize(table - middle, dim=1)
    cosines = torch.nn.functional.normalize(vectors - middle, dim=1) @ directions.T
    tokens: NDArray[np.int64] = cosines.argmax(dim=1).cpu().numpy()
    return tokens


def shares(guesses: Sequence[NDArray[np.int64]], texts: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return which share of the tokens of each text is among those of each guess [guesses, texts].

    Args:
        guesses: tokens, wherever they are in the text; one that comes twice counts twice.
        texts: the true tokens.

    Example:
        >>> shares([np.array([4, 4, 7])], [np.array([4, 5]), np.array([4, 7, 4])])
        array([[0.5, 1. ]])

    """
    return np.array([[_common(guess, text) / len(text) for text in texts] for guess in guesses])


def _common(guess: NDArray[np.int64], text: NDArray[np.int64]) -> int:
    tokens, counts = np.unique(text, return_counts=True)
    return sum(min(int(count), int((guess == token).sum())) for token, count in zip(tokens, counts, strict=True))


def luck_of(matrix: NDArray[np.float64], seed: int) -> float:
    """Return how often guesses do as well on texts that they do not belong to, dealt out at random.

    Args:
        matrix: shares [guesses, texts], those that belong together on the diagonal.
        seed: of the draws.

    """
    rng, count = np.random.default_rng(seed), len(matrix)
    dealt = rng.permuted(np.tile(np.arange(count), (PERMUTATIONS, 1)), axis=1)
    values = matrix[np.arange(count), dealt].sum(axis=1)
    return float((1 + (values >= matrix.trace() - 1e-9).sum()) / (1 + PERMUTATIONS))
