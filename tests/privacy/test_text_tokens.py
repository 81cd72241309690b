import numpy as np
import pytest
import torch

import fedmpdd as fm
from fedmpdd.errors import ConfigError
from fedmpdd.privacy.text_tokens import find_tokens, layout_of, luck_of, shared_tokens, shares
from tests.privacy.text_cases import Answers, classifier, sent, symbols, victim_of
from tests.tasks import tiny


def test_words_are_found_in_whole_gradients() -> None:
    victim = victim_of(classifier(rank=8))
    numbers = np.arange(4)
    layout = layout_of(victim, numbers, (0, 1))
    assert layout.unknown.sum(dim=1).tolist() == [5] * 4
    updates = [sent(row, fm.FedSGD()) for row in victim.gradients_of(numbers[:, None])]
    words = find_tokens(victim, updates, layout, iterations=60, restarts=1, seed=1)
    truth = [row.numpy() for row in symbols()[0][:4, :5]]
    matrix = shares(words.tokens, truth)
    # Guesses find 5 of 42 symbols: a share of about 0.1, and half of 20 in less than one try of a million.
    assert matrix.diagonal().mean() > 0.5
    assert (words.truth < words.losses + 1e-6).all()
    assert luck_of(matrix, 0) < 0.1


def test_true_tokens_are_not_looked_at() -> None:
    examples = symbols()
    victim = victim_of(examples=examples)
    layout = layout_of(victim, np.arange(2), (0, 1))
    others = layout._replace(batch=(torch.where(layout.unknown[:, None], 9, layout.batch[0]), *layout.batch[1:]))
    updates = [sent(row, fm.MPDD(40)) for row in victim.gradients_of(np.arange(2)[:, None])]
    one, other = (find_tokens(victim, updates, each, iterations=3, seed=1) for each in (layout, others))
    assert all((a == b).all() for a, b in zip(one.tokens, other.tokens, strict=True))


def test_where_embeddings_are_trained_there_is_nothing_to_optimise() -> None:
    model = Answers(tiny.llama())
    victim = victim_of(model)
    updates = [sent(row, fm.FedSGD()) for row in victim.gradients_of(np.arange(1)[:, None])]
    with pytest.raises(ConfigError, match='their gradient names the tokens; leave out "tokens"'):
        find_tokens(victim, updates, layout_of(victim, np.arange(1), (0, 1)), seed=1)


def test_padding_and_what_all_texts_have_are_not_looked_for() -> None:
    ids, mask, labels = symbols()
    mask[0, :3] = 0  # on the left, as of a prompt
    victim = victim_of(examples=(ids, mask, labels))
    layout = layout_of(victim, np.arange(2), (1, 1))
    assert layout.unknown.long().tolist() == [[0, 0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 0]]


def test_shared_tokens_are_those_of_a_prompt() -> None:
    rows = [np.array(row) for row in ([1, 2, 3, 8, 9], [1, 2, 8, 9], [1, 2, 2, 9])]
    assert shared_tokens(rows) == (2, 1)
    assert shared_tokens([np.array([1, 2])] * 2) == (2, 0)


def test_luck_is_that_of_texts_dealt_out_at_random() -> None:
    assert luck_of(np.eye(8), 0) == 1e-4
    assert luck_of(np.ones((8, 8)), 0) == 1.0
    # Without anything to find, 5 of 100 are below 0.05: more than 14 of them in one try of ten thousand.
    rng = np.random.default_rng(0)
    assert sum(luck_of(rng.random((6, 6)), seed) <= 0.05 for seed in range(100)) <= 14
