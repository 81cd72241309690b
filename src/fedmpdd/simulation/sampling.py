"""Every random choice of a run, each a pure function of (seed, round, client): nothing to save, nothing to restore."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from fedmpdd.directions import Key, derive_seed, partitioned_keys, round_seed
from fedmpdd.simulation.config import RunConfig

_CLIENTS, _BATCH, _DROPOUT, _KEYS, _INIT, _NOISE, _TRAINING = range(7)  # streams that never meet

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


def sample_batches(
    config: RunConfig, round_number: int, clients: NDArray[np.int64], examples: list[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Indices [clients, steps, batch] of the minibatches of a round, from the examples that each client holds.

    With local epochs clients have as many steps as whole batches, and no more than local_steps where that is above 1;
    −1 stands where a client has no step any more.
    """
    rngs = _client_rngs(config, _BATCH, round_number, clients)
    if config.local_epochs is not None:
        most = config.local_steps if config.local_steps > 1 else None
        return _epochs(config.local_epochs, config.batch, rngs, examples)[:, :most]
    batch = config.batch
    batches = np.empty((len(clients), config.local_steps, batch), np.int64)
    for rows, rng, held in zip(batches, rngs, examples, strict=True):
        for row in rows:
            # Of one example, `choice` draws the same number, and takes several times as long.
            row[:] = held[rng.integers(held.size)] if batch == 1 else rng.choice(held, batch, replace=False)
    return batches


def _epochs(
    epochs: int, batch: int, rngs: Iterator[np.random.Generator], examples: list[NDArray[np.int64]]
) -> NDArray[np.int64]:
    most = max((held.size // batch for held in examples), default=0) * epochs
    batches = np.full((len(examples), most, batch), -1, np.int64)
    for rows, rng, held in zip(batches, rngs, examples, strict=True):
        whole = held.size // batch
        for epoch in range(epochs):
            order = rng.permutation(held)[: whole * batch]
            rows[epoch * whole : (epoch + 1) * whole] = order.reshape(whole, batch)
    return batches


def training_seed(config: RunConfig, round_number: int, client: int, step: int) -> tuple[int, ...]:
    """Return the seed of what a client draws at one of its steps: dropout, say, or a random crop."""
    return config.seed, _TRAINING, round_number, int(client), step


def survivors(config: RunConfig, round_number: int) -> NDArray[np.bool_]:
    """Return which of the round's clients answer."""
    if config.dropout == 0:
        return np.ones(config.per_round, dtype=bool)
    return _rng(config, _DROPOUT, round_number).random(config.per_round) >= config.dropout


def session_seed(config: RunConfig) -> int:
    """Return the seed from which the keys of all rounds follow. A `BareSession` with it has the same keys."""
    return int(_rng(config, _KEYS).integers(2**63))


def round_keys(config: RunConfig, round_number: int, clients: NDArray[np.int64]) -> list[Key]:
    """Return the keys of a round, by the policy of the config."""
    session = session_seed(config)
    if config.codec.keys == "shared":
        return [Key(round_seed(session, round_number))] * len(clients)
    if config.codec.keys == "partitioned":
        return partitioned_keys(round_seed(session, round_number), len(clients))
    return [Key(derive_seed(session, round_number, client)) for client in clients.tolist()]


def noise_sources(config: RunConfig, round_number: int, clients: NDArray[np.int64]) -> list[np.random.Generator]:
    """Return what each client draws its noise from: a simulation's randomness, which who has the config can repeat."""
    return list(_client_rngs(config, _NOISE, round_number, clients))


def most_participations(config: RunConfig) -> int:
    """Return in how many rounds the busiest client is selected; all of them where counting would take long."""
    if config.per_round == config.clients or config.rounds * config.per_round > MOST_COUNTED:
        return config.rounds
    counts: Counter[int] = Counter()
    for k in range(config.rounds):
        counts.update(sample_clients(config, k).tolist())
    return max(counts.values())


Words = NDArray[np.uint32]


class _Seed:
    """The words that start one generator."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: type) -> Any:
        """Return them as a generator asks for them: PCG64 for four of 64 bits."""
        return self._words.view(dtype)


ISeedSequence.register(_Seed)


def _client_rngs(
    config: RunConfig, stream: int, round_number: int, clients: NDArray[np.int64]
) -> Iterator[np.random.Generator]:
    """Yield `_rng(config, stream, round_number, client)` of every client, in a third of the time.

    It is NumPy's SeedSequence, whose algorithm is fixed, with a column of clients where NumPy takes one after another.
    """
    parts = (divmod(number, 2**32)[::-1] for number in (config.seed, stream, round_number))
    shared = [word for low, high in parts for word in ([low, high] if high else [low])]
    entropy = [np.full(len(clients), word, np.uint32) for word in shared] + [clients.astype(np.uint32)]
    absorb, draw = _hash(0x43B0D7E5, 0x931E8875), _hash(0x8B51F9DD, 0x58F38DED)
    pool = [absorb(words) for words in entropy[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = _mix(pool[target], absorb(pool[source]))
    for words in entropy[4:]:
        pool = [_mix(mixed, absorb(words)) for mixed in pool]
    states = np.stack([draw(pool[i % 4]) for i in range(8)], axis=1)
    for state in states:  # a generator takes a kilobyte: one at a time
        yield np.random.Generator(np.random.PCG64(cast(Any, _Seed(state))))


def _hash(constant: int, multiplier: int) -> Callable[[Words], Words]:
    """Return a hash whose constant changes with every call."""

    def apply(words: Words) -> Words:
        nonlocal constant
        words = words ^ np.uint32(constant)
        constant = constant * multiplier % 2**32
        words = words * np.uint32(constant)
        return words ^ (words >> np.uint32(16))

    return apply


def _mix(left: Words, right: Words) -> Words:
    mixed: Words = left * np.uint32(0xCA01F9DD) - right * np.uint32(0x4973F715)
    return mixed ^ (mixed >> np.uint32(16))
