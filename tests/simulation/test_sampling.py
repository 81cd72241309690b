"""Random choices of a run: streams that NumPy's own generators have, whatever the seed."""

import numpy as np
import pytest

from fedmpdd.simulation import parse_config, sampling

SEEDS = (0, 1, 17, 2**32 - 1, 2**32, 2**63 - 1)  # of one word and of two


@pytest.mark.parametrize("seed", SEEDS)
def test_generators_of_many_clients_are_those_that_numpy_makes_one_by_one(seed: int) -> None:
    config = parse_config({"seed": seed})
    clients = np.array([0, 1, 77, 2**31, 2**32 - 1])
    for round_number in (0, 5, 2**32 - 1):
        several = sampling._client_rngs(config, 3, round_number, clients)
        for client, one in zip(clients.tolist(), several, strict=True):
            expected = np.random.default_rng([seed, 3, round_number, client])
            assert one.bit_generator.state == expected.bit_generator.state


def test_a_clients_minibatch_does_not_depend_on_who_else_takes_part() -> None:
    config = parse_config({"seed": 5, "batch": 3, "local_steps": 2, "local_lr": 0.1})
    held = [np.arange(10 * client, 10 * client + 10) for client in range(4)]
    together = sampling.sample_batches(config, 1, np.arange(4), held)
    assert together.shape == (4, 2, 3)
    alone = sampling.sample_batches(config, 1, np.array([2]), held[2:3])
    assert np.array_equal(together[2], alone[0])
    assert all(len(set(row)) == 3 and set(row) <= set(held[2]) for row in alone[0].tolist())


@pytest.mark.parametrize("size", [1, 2, 7, 40, 49, 50, 51, 9_999, 10_000, 10_001, 2**20])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_minibatch_is_what_choice_of_numpy_draws(size: int, batch: int) -> None:
    batch = min(batch, size)
    config = parse_config({"seed": 5, "batch": batch, "local_steps": 3, "local_lr": 0.1})
    clients, held = np.arange(20), 2 * np.arange(size) + 1
    batches = sampling.sample_batches(config, 4, clients, [held] * 20)
    for rows, rng in zip(batches, sampling._client_rngs(config, sampling._BATCH, 4, clients), strict=True):
        for row in rows:
            assert np.array_equal(row, rng.choice(held, batch, replace=False))
