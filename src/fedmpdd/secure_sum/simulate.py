"""A whole secure sum in one process: for tests, simulations and counting bytes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import InputError
from fedmpdd.secure_sum import primitives
from fedmpdd.secure_sum.client import SecureClient
from fedmpdd.secure_sum.ledger import MemoryLedger
from fedmpdd.secure_sum.messages import Phase, phases_of, read_terms
from fedmpdd.secure_sum.server import SecureServer
from fedmpdd.secure_sum.signatures import Identity, Roster
from fedmpdd.secure_sum.terms import RUN_BYTES, Terms

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SecureSum:
    """What a round gave and cost."""

    total: NDArray[np.uint64]  # [length], modulo 2^ring_bits
    included: tuple[int, ...]  # whose vectors the total is of
    up: Counts  # bytes [clients, phases] that clients sent: four phases, or with signatures five
    down: Counts  # and that they were sent at the start of each phase


def secure_sum(
    vectors: NDArray[np.uint64],
    threshold: int = 0,
    ring_bits: int = 32,
    drop_after: Mapping[int, Phase | None] | None = None,
    neighbours: int = 0,
    signed: bool = False,
) -> SecureSum:
    """Add up vectors [clients, length] by the protocol, all of its messages as bytes, and count these.

    threshold: how many must stay to the end; 0 is the usual ⌊2n/3⌋ + 1.
    drop_after: the last phase that a client answers, None if it answers none; others answer all. SecureSumError is
        raised where too few are left.
    neighbours: with how many others a client shares its secrets, 0 for everybody; see Terms.
    signed: whether clients sign their keys and who survived, here with keys made up for this one round.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2:
        raise InputError("the vectors to add are no array [clients, length]; expected uint64, one row per client")
    clients, length = vectors.shape
    terms = Terms(os.urandom(RUN_BYTES), 0, clients, length, threshold, ring_bits, neighbours, signed)
    secrets = [primitives.new_secret() for _ in range(clients)] if signed else []
    roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets]) if signed else None
    server = SecureServer(terms, roster)
    phases = phases_of(terms)
    last = {client: _last_step(phases, (drop_after or {}).get(client, Phase.DONE)) for client in range(clients)}
    if unknown := set(drop_after or {}) - set(range(clients)):
        raise InputError(f"drop_after names client {min(unknown)}; there are 0 to {clients - 1}")
    machines: dict[int, SecureClient] = {}
    up, down = np.zeros((clients, len(phases)), np.int64), np.zeros((clients, len(phases)), np.int64)
    opening = dict.fromkeys(range(clients), server.open())
    for step, phase in enumerate(phases):
        for client, message in opening.items():
            down[client, step] = len(message)
            if last[client] < step:
                continue
            if phase == Phase.ADVERTISE:
                identity = None if roster is None else Identity(secrets[client], roster)
                # Two is the fewest that can be asked for: nobody is protected here, and nobody has to insist.
                machines[client] = SecureClient(
                    read_terms(message), client, MemoryLedger(), fewest_clients=2, identity=identity
                )
            answer = machines[client].answer(message, vectors[client])
            up[client, step] = len(answer)
            server.receive(client, answer)
        if phase != Phase.UNMASK:
            opening = server.advance()
    return SecureSum(server.finish(), server.included, up, down)


def _last_step(phases: tuple[Phase, ...], phase: Phase | None) -> int:
    """Which of the phases a client answers last, by number; −1 where it answers none."""
    if phase is None:
        return -1
    if phase not in (*phases, Phase.DONE):
        raise InputError(f"drop_after says {phase.name}, which is no phase of this round: {[p.name for p in phases]}")
    return (*phases, Phase.DONE).index(phase)
