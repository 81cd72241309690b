"""Rounds of secure sums that stop where a test looks closer."""

import numpy as np
from numpy.typing import NDArray

from fedmpdd.secure_sum import (
    Identity,
    MemoryLedger,
    Phase,
    Roster,
    SecureClient,
    SecureServer,
    Terms,
    primitives,
)
from fedmpdd.secure_sum.messages import HEADER_BYTES, phases_of

RUN = bytes(range(16))
Vectors = NDArray[np.uint64]


def terms_of(clients: int, length: int = 5, **changes: int) -> Terms:
    return Terms(**{"run": RUN, "round": 3, "clients": clients, "length": length, **changes})  # type: ignore[arg-type]


def some_vectors(clients: int, length: int, bits: int, seed: int = 0) -> Vectors:
    words = np.random.default_rng(seed).integers(0, 2**64 - 1, (clients, length), dtype=np.uint64, endpoint=True)
    return words & np.uint64(2**bits - 1)


def sum_of(vectors: Vectors, members: tuple[int, ...], bits: int) -> list[int]:
    return [sum(int(vectors[i, k]) for i in members) % 2**bits for k in range(vectors.shape[1])]


def identities_of(clients: int) -> list[Identity | None]:
    """Signing keys, the same in every round, as those of clients are."""
    secrets = [bytes([7, i] * 16) for i in range(clients)]
    roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets])
    return [Identity(secret, roster) for secret in secrets]


class Round:
    """A round that stops where a test looks closer; `sent` and `opening` keep every message."""

    def __init__(self, terms: Terms, vectors: Vectors | None = None, until: Phase = Phase.DONE) -> None:
        self.terms = terms
        self.vectors = np.zeros((terms.clients, terms.length), np.uint64) if vectors is None else vectors
        self.ledgers = [MemoryLedger() for _ in range(terms.clients)]
        self.identities = identities_of(terms.clients) if terms.signed else [None] * terms.clients
        self.clients = [
            SecureClient(terms, i, self.ledgers[i], fewest_clients=2, identity=self.identities[i])
            for i in range(terms.clients)
        ]
        first = self.identities[0]
        self.server = SecureServer(terms, first.roster if first else None)
        self.opening: dict[Phase, dict[int, bytes]] = {
            Phase.ADVERTISE: dict.fromkeys(range(terms.clients), self.server.open())
        }
        self.sent: dict[Phase, dict[int, bytes]] = {}
        for phase in phases_of(terms):
            if phase == until:
                return
            self.play(phase)
        self.total = self.server.finish()

    def play(self, phase: Phase) -> None:
        """Have everybody answer a phase, and open the next."""
        self.answers(phase)
        for i, message in self.sent[phase].items():
            self.server.receive(i, message)
        if phase != Phase.UNMASK:
            opening = self.server.advance()
            self.opening[self.server.phase] = opening

    def answers(self, phase: Phase) -> None:
        self.sent[phase] = {i: self.answer(i, phase, message) for i, message in self.opening[phase].items()}

    def answer(self, i: int, phase: Phase, message: bytes) -> bytes:
        assert self.clients[i].phase == phase
        return self.clients[i].answer(message, self.vectors[i])

    def masked(self, i: int) -> NDArray[np.uint32] | Vectors:
        return self.terms.ring.unpack(memoryview(self.sent[Phase.MASK][i])[HEADER_BYTES:], self.terms.length)
