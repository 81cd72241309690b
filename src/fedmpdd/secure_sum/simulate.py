"""A whole secure sum in one process: for tests, simulations and counting bytes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import InputError
from fedmpdd.secure_sum.client import SecureClient
from fedmpdd.secure_sum.messages import Phase, read_terms
from fedmpdd.secure_sum.server import SecureServer
from fedmpdd.secure_sum.terms import RUN_BYTES, Terms

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SecureSum:
    """What a round gave and cost."""

    total: NDArray[np.uint64]  # [length], modulo 2^ring_bits
    included: tuple[int, ...]  # whose vectors the total is of
    up: Counts  # bytes [clients, 4 phases] that clients sent
    down: Counts  # and that they were sent at the start of each phase


def secure_sum(
    vectors: NDArray[np.uint64],
    threshold: int = 0,
    ring_bits: int = 32,
    drop_after: Mapping[int, Phase | None] | None = None,
    neighbours: int = 0,
) -> SecureSum:
    """Add up vectors [clients, length] by the protocol, all of its messages as bytes, and count these.

    threshold: how many must stay to the end; 0 is the usual ⌊2n/3⌋ + 1.
    drop_after: the last phase that a client answers, None if it answers none; others answer all. SecureSumError is
        raised where too few are left.
    neighbours: with how many others a client shares its secrets, 0 for everybody; see Terms.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2:
        raise InputError("the vectors to add are no array [clients, length]; expected uint64, one row per client")
    clients, length = vectors.shape
    terms = Terms(os.urandom(RUN_BYTES), 0, clients, length, threshold, ring_bits, neighbours)
    server = SecureServer(terms)
    last = {**dict.fromkeys(range(clients), Phase.DONE), **(drop_after or {})}
    if unknown := set(last) - set(range(clients)):
        raise InputError(f"drop_after names client {min(unknown)}; there are 0 to {clients - 1}")
    machines: dict[int, SecureClient] = {}
    up, down = np.zeros((clients, 4), np.int64), np.zeros((clients, 4), np.int64)
    opening = dict.fromkeys(range(clients), server.open())
    for phase in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK):
        for client, message in opening.items():
            down[client, phase] = len(message)
            stays_until = last[client]
            if stays_until is None or stays_until < phase:
                continue
            if phase == Phase.ADVERTISE:
                machines[client] = SecureClient(read_terms(message), client)
            answer = _answer(machines[client], phase, message, vectors[client])
            up[client, phase] = len(answer)
            server.receive(client, answer)
        if phase < Phase.UNMASK:
            opening = server.advance()
    return SecureSum(server.finish(), server.included, up, down)


def _answer(machine: SecureClient, phase: Phase, message: bytes, values: NDArray[np.uint64]) -> bytes:
    if phase == Phase.ADVERTISE:
        return machine.advertise()
    if phase == Phase.SHARE:
        return machine.share(message)
    if phase == Phase.MASK:
        return machine.mask(message, values)
    return machine.unmask(message)
