"""Keys: which directions an update uses, and how a session hands them out."""

from collections.abc import Sequence
from operator import index
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions import _native
from fedmpdd.directions.spec import DOMAIN_SEEDS, MAX_SEED, MAX_SLOT
from fedmpdd.errors import KeyRangeError

# Two numbers that no client has. The first gives the seed that belongs to a round as a whole; the one below it, seeds
# that a server tells nobody.
NO_CLIENT = 2**64 - 1
MAX_CLIENT = NO_CLIENT - 2


class Key(NamedTuple):
    """The seed of an update's directions, and which block of m of them it uses.

    An update of m scalars with slot s uses directions s·m … s·m + m − 1 of its seed. Clients with seeds of their own
    all use slot 0. Clients that share a seed and have different slots use different directions: that is how a
    round is *partitioned*.
    """

    seed: int
    slot: int = 0


def check_key(key: Key | int) -> Key:
    """Return `key` as a Key (a bare integer is a seed with slot 0), or raise KeyRangeError."""
    try:
        seed, slot = key if isinstance(key, tuple) else (key, 0)
        seed, slot = index(seed), index(slot)
    except (TypeError, ValueError):
        raise KeyRangeError(
            f"a key is an integer seed or Key(seed, slot), got {key!r}; pass an int from 0 to 2^64 − 1"
        ) from None
    if not 0 <= seed <= MAX_SEED:
        raise KeyRangeError(f"seed {seed} is out of range: expected 0 to 2^64 − 1; reduce it modulo 2^64")
    if not 0 <= slot <= MAX_SLOT:
        raise KeyRangeError(f"slot {slot} is out of range: expected 0 to 2^32 − 1; number the clients from 0")
    return Key(seed, slot)


def derive_seed(session: int, round_number: int, client: int) -> int:
    """Derive the seed of one client in one round from a session's seed, so that no seed need be sent.

    Words 0 (low) and 1 (high) of Philox block (client low, round, domain 4, client high) under the session's seed.
    """
    session = check_key(session).seed
    round_number, client = check_round(round_number), _check_number("client", client, 64)
    low, high, _, _ = _native.philox4x32(client % 2**32, round_number, DOMAIN_SEEDS, client >> 32, session)
    return low | high << 32


def check_round(round_number: int) -> int:
    """Return the number of a round, or raise KeyRangeError."""
    return _check_number("round", round_number, 32)


def check_client(client: int) -> int:
    """Return the number of a client, or raise KeyRangeError; the last two numbers are nobody's."""
    if _check_number("client", client, 64) > MAX_CLIENT:
        raise KeyRangeError(f"client {client} is out of range: expected 0 to 2^64 − 3; the two above are the server's")
    return index(client)


def _check_number(name: str, value: int, bits: int) -> int:
    try:
        value = index(value)
    except TypeError:
        raise KeyRangeError(f"{name} {value!r} is no number: rounds and clients must be integers") from None
    if not 0 <= value < 2**bits:
        raise KeyRangeError(f"{name} {value} is out of range: expected 0 to 2^{bits} − 1")
    return value


def round_seed(session: int, round_number: int) -> int:
    """Derive the seed that the clients of a round have in common, where keys are shared or partitioned."""
    return derive_seed(session, round_number, NO_CLIENT)


def partitioned_keys(seed: int, clients: int) -> list[Key]:
    """One seed for a round and a slot for each of its clients: disjoint directions, decoded in one transform."""
    return [check_key(Key(seed, slot)) for slot in range(clients)]


def first_directions(keys: Sequence[Key], m: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the keys as the kernels want them: seeds, and the index of each one's first direction."""
    seeds = np.array([key.seed for key in keys], dtype=np.uint64)
    slots = np.array([key.slot for key in keys], dtype=np.uint64)
    return seeds, slots * np.uint64(m)


def rounding_words(keys: Sequence[Key], m: int) -> NDArray[np.uint32]:
    """Random words [clients, m] that decide how the scalars of each update are rounded."""
    out = np.empty((len(keys), m), dtype=np.uint32)
    slots = np.array([key.slot for key in keys], dtype=np.uint64)
    _native.rounding_words(first_directions(keys, m)[0], slots, out)
    return out
