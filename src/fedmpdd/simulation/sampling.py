"""Every random choice of a run, each a pure function of (seed, round, client): nothing to save, nothing to restore."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions import Key, derive_seed, partitioned_keys
from fedmpdd.simulation.config import RunConfig

_CLIENTS, _BATCH, _DROPOUT, _KEYS, _INIT, _NOISE = range(6)  # streams that never meet

MOST_COUNTED = 2_000_000  # selections of clients, a few seconds


def _rng(config: RunConfig, stream: int, *counter: int) -> np.random.Generator:
    return np.random.default_rng([config.seed, stream, *counter])


def model_seed(config: RunConfig) -> int:
    """Return the seed of the initial model."""
    return int(_rng(config, _INIT).integers(2**63))


def sample_clients(config: RunConfig, round_number: int) -> NDArray[np.int64]:
    """Algorithm 2, line 3: βN of the N clients, without repetition, in memory that does not grow with N."""
    chosen = _rng(config, _CLIENTS, round_number).choice(config.clients, config.per_round, replace=False, shuffle=False)
    return np.sort(chosen)


def sample_batch(config: RunConfig, round_number: int, client: int, examples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices [local_steps, batch] of a client's minibatches of a round."""
    rng = _rng(config, _BATCH, round_number, client)
    return np.array([rng.choice(examples, config.batch, replace=False) for _ in range(config.local_steps)])


def survivors(config: RunConfig, round_number: int) -> NDArray[np.bool_]:
    """Return which of the round's clients answer."""
    if config.dropout == 0:
        return np.ones(config.per_round, dtype=bool)
    return _rng(config, _DROPOUT, round_number).random(config.per_round) >= config.dropout


def round_keys(config: RunConfig, round_number: int, clients: NDArray[np.int64]) -> list[Key]:
    """Return the keys of a round, by the policy of the config."""
    session = int(_rng(config, _KEYS).integers(2**63))
    round_seed = derive_seed(session, round_number, 2**64 - 1)  # no client has this number
    if config.codec.keys == "shared":
        return [Key(round_seed)] * len(clients)
    if config.codec.keys == "partitioned":
        return partitioned_keys(round_seed, len(clients))
    return [Key(derive_seed(session, round_number, client)) for client in clients.tolist()]


def noise_sources(config: RunConfig, round_number: int, clients: NDArray[np.int64]) -> list[np.random.Generator]:
    """Return what each client draws its noise from: a simulation's randomness, which who has the config can repeat."""
    return [_rng(config, _NOISE, round_number, int(client)) for client in clients]


def most_participations(config: RunConfig) -> int:
    """Return in how many rounds the busiest client is selected; all of them where counting would take long."""
    if config.per_round == config.clients or config.rounds * config.per_round > MOST_COUNTED:
        return config.rounds
    counts: Counter[int] = Counter()
    for k in range(config.rounds):
        counts.update(sample_clients(config, k).tolist())
    return max(counts.values())
