"""The server of a secure sum: it collects answers, passes on what it cannot read, and in the end lifts the masks."""

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import messages, primitives, shamir
from fedmpdd.secure_sum.client import own_mask, pair_mask, seed_digest
from fedmpdd.secure_sum.messages import EVERYBODY, SEALED_BYTES, Kind, Phase
from fedmpdd.secure_sum.primitives import KEY_BYTES
from fedmpdd.secure_sum.ring import Words
from fedmpdd.secure_sum.shamir import SHARE_BYTES
from fedmpdd.secure_sum.terms import Terms


class SecureServer:
    """One round: `open`; then, phase by phase, `receive` what comes and `advance`; in the end `finish`.

    When to stop waiting for a client is the caller's to say. Who has not answered when a phase ends has dropped out.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.phase = Phase.ADVERTISE
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # U1: channel and mask key of those who advertised
        self._sealed: dict[int, dict[int, bytes]] = {}  # U2: what those who shared sent, by receiver
        self._seed_digests: dict[int, bytes] = {}
        self._total: Words = np.zeros(terms.length, terms.ring.dtype)
        self._stayed: set[int] = set()  # U3: whose vectors are in the total
        self._told: dict[int, list[int]] = {}  # U4: shares of everybody in U2, in order

    @property
    def answered(self) -> tuple[int, ...]:
        """Who has answered in this phase."""
        current: list[set[int]] = [set(self._keys), set(self._sealed), self._stayed, set(self._told), set(self._told)]
        return tuple(sorted(current[self.phase]))

    @property
    def included(self) -> tuple[int, ...]:
        """Whose vectors the sum is of."""
        return tuple(sorted(self._stayed))

    def open(self) -> bytes:
        """Return the message, the same for all, that opens the round."""
        return messages.write_terms(self.terms)

    def receive(self, client: int, message: bytes) -> None:
        """Take a client's answer of this phase, or raise the WireError that says why it does not count.

        client: who it is by the word of the channel that the message came by, not by its own.
        """
        expected = self._expected()
        if client not in expected:
            raise ContentError(f"client {client} has no part in this phase: it is none of the round, or dropped out")
        if client in self.answered:
            raise ContentError(f"client {client} has answered this phase already: drop this message")
        (self._advertised, self._shared, self._masked, self._unmasked)[self.phase](client, message)

    def advance(self) -> dict[int, bytes]:
        """End a phase and return what opens the next one, by client, or raise SecureSumError if too few are left."""
        if self.phase >= Phase.UNMASK:
            raise InputError(f"the round is at {self.phase.name}, from which finish() goes on")
        self._check_enough()
        terms, phase = self.terms, self.phase
        members = self.answered
        self.phase = Phase(phase + 1)
        if phase == Phase.MASK:
            request = messages.write(Kind.SURVIVORS, terms, EVERYBODY, messages.write_set(members, terms.clients))
            return dict.fromkeys(members, request)
        who = messages.write_set(members, terms.clients)
        if phase == Phase.ADVERTISE:
            keys = [key for member in members for key in self._keys[member]]
            return dict.fromkeys(members, messages.write(Kind.KEYS, terms, EVERYBODY, who, *keys))
        return {
            member: messages.write(
                Kind.INBOX, terms, member, who, *(self._sealed[peer][member] for peer in members if peer != member)
            )
            for member in members
        }

    def finish(self) -> NDArray[np.uint64]:
        """Lift the masks and return the sum [length] of the vectors of `included`, modulo 2^ring_bits."""
        if self.phase != Phase.UNMASK:
            raise InputError(f"the round is at {self.phase.name}, which comes before its end; see advance()")
        self._check_enough()
        terms = self.terms
        # Any of those who told will do, as many as the threshold; the same for all secrets, so that weights are too.
        tellers = self.answered[: terms.threshold]
        weights = shamir.weights_at_zero([teller + 1 for teller in tellers])
        total = self._total
        for i, member in enumerate(sorted(self._sealed)):
            value = shamir.combine([self._told[teller][i] for teller in tellers], weights)
            secret = value.to_bytes(SHARE_BYTES, "little")[:KEY_BYTES]
            if member in self._stayed:
                self._check_secret(member, value, seed_digest(terms, member, secret) == self._seed_digests[member])
                total = total - own_mask(terms, member, secret)
            else:
                self._check_secret(member, value, primitives.public_of(secret) == self._keys[member][1])
                # What those who stayed added for the one who vanished: the other end of each mask, which cancels it.
                for other in self._stayed:
                    total = total + pair_mask(terms, member, other, secret, self._keys[other][1])
        self.phase = Phase.DONE
        return terms.ring.reduced(total).astype(np.uint64)

    # ------------------------------------------------------------------------------------- what comes, by phase

    def _advertised(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.ADVERTISED, self.terms, client)
        messages.check_length(body, 2 * KEY_BYTES)
        channel_key, mask_key = messages.split(body, KEY_BYTES)
        for key in (channel_key, mask_key):
            primitives.agree(primitives.new_secret(), key)  # one that nobody can agree with would stop everybody
        taken = {key for pair in self._keys.values() for key in pair}
        if channel_key == mask_key or {channel_key, mask_key} & taken:
            raise ContentError(f"client {client} sent a public key that is in use already: drop this message")
        self._keys[client] = (channel_key, mask_key)

    def _shared(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.SHARES, self.terms, client)
        peers = [member for member in sorted(self._keys) if member != client]
        messages.check_length(body, KEY_BYTES + len(peers) * SEALED_BYTES)
        self._seed_digests[client] = bytes(body[:KEY_BYTES])
        self._sealed[client] = dict(zip(peers, messages.split(body[KEY_BYTES:], SEALED_BYTES), strict=True))

    def _masked(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.MASKED, self.terms, client)
        self._total = self._total + self.terms.ring.unpack(body, self.terms.length)
        self._stayed.add(client)

    def _unmasked(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.UNMASKED, self.terms, client)
        messages.check_length(body, len(self._sealed) * SHARE_BYTES)
        self._told[client] = messages.read_shares(body)

    # -------------------------------------------------------------------------------------------------- checks

    def _expected(self) -> set[int]:
        """Who may answer in this phase: all who answered in the one before."""
        if self.phase == Phase.DONE:
            raise InputError("the round is over; start a new one")
        everybody = set(range(self.terms.clients))
        return (everybody, set(self._keys), set(self._sealed), self._stayed)[self.phase]

    def _check_enough(self) -> None:
        if len(self.answered) < self.terms.threshold:
            raise SecureSumError(
                f"{len(self.answered)} of {self.terms.clients} clients answered {self.phase.name}, "
                f"{self.terms.threshold} are needed: no vector was revealed, nor any sum; start a new round, or "
                "agree on a lower threshold (above half)"
            )

    def _check_secret(self, member: int, value: int, known: bool) -> None:
        if value >> (8 * KEY_BYTES) or not known:
            raise SecureSumError(
                f"the shares of client {member}'s secret do not give it back: somebody told a wrong one, and which is "
                "not known; no sum was revealed: start a new round"
            )
