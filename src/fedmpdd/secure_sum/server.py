"""The server of a secure sum: it collects answers, passes on what it cannot read, and in the end lifts the masks."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import messages, primitives, shamir
from fedmpdd.secure_sum.client import pair_mask, seed_digest, self_mask, survivors_text
from fedmpdd.secure_sum.messages import EVERYBODY, SEALED_BYTES, Kind, Phase
from fedmpdd.secure_sum.primitives import KEY_BYTES, SIGNATURE_BYTES
from fedmpdd.secure_sum.ring import Words
from fedmpdd.secure_sum.shamir import SHARE_BYTES
from fedmpdd.secure_sum.signatures import Roster
from fedmpdd.secure_sum.terms import Terms


class SecureServer:
    """One round: `open`; then, phase by phase, `receive` what comes and `advance`; in the end `finish`.

    When to stop waiting for a client is the caller's to say. Who has not answered when a phase ends has dropped out.

    roster: the verify keys of all clients, in rounds with signatures. The server needs them to turn wrong signatures
        away, which would make every other client leave; clients do not rely on its word.
    """

    def __init__(self, terms: Terms, roster: Roster | None = None) -> None:
        if terms.signed != (roster is not None):
            raise InputError(
                "terms with signatures need the roster of verify keys, and terms without have none: pass both, or "
                "neither (Terms(…, signed=True), SecureServer(terms, roster))"
            )
        if roster is not None:
            roster.check_size(terms)
        self.terms = terms
        self._roster = roster
        self.phase = Phase.ADVERTISE
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # U1: channel and mask key of those who advertised
        self._key_signatures: dict[int, bytes] = {}  # of these; empty in rounds without
        self._view = b""  # stands for the message with all keys
        self._sealed: dict[int, dict[int, bytes]] = {}  # U2: what those who shared sent, by receiver
        self._seed_digests: dict[int, bytes] = {}
        self._total: Words = np.zeros(terms.length, terms.ring.dtype)
        self._stayed: set[int] = set()  # U3: whose vectors are in the total
        self._lifting: dict[int, dict[int, int]] = {}  # U4: what lifts the masks, a share of each of U2
        self._confirmations: dict[int, bytes] = {}  # in rounds with signatures: who signed U3, and the signatures
        self._probe = primitives.new_secret()  # what keys agree on with it tells whether two are the same
        self._keys_in_use: set[bytes] = set()
        self._holders: dict[int, list[int]] = {}  # of whom they were asked for, where it is not everybody

    @property
    def answered(self) -> tuple[int, ...]:
        """Who has answered in this phase."""
        return tuple(sorted(self._answers))

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
        if client not in self._expected():
            raise ContentError(f"client {client} has no part in this phase: it is none of the round, or dropped out")
        if client in self._answers:
            raise ContentError(f"client {client} has answered this phase already: drop this message")
        take = {
            Phase.ADVERTISE: self._advertised,
            Phase.SHARE: self._shared,
            Phase.MASK: self._masked,
            Phase.CONFIRM: self._confirm,
            Phase.UNMASK: self._unmasked,
        }
        take[self.phase](client, message)

    def advance(self) -> dict[int, bytes]:
        """End a phase and return what opens the next one, by client, or raise SecureSumError if too few are left."""
        if self.phase in (Phase.UNMASK, Phase.DONE):
            raise InputError(f"the round is at {self.phase.name}, from which finish() goes on")
        self._check_enough()
        openings = {
            Phase.ADVERTISE: self._open_share,
            Phase.SHARE: self._open_mask,
            Phase.MASK: self._tell_survivors,
            Phase.CONFIRM: self._tell_confirmations,
        }
        messages_down = openings[self.phase](self.answered)
        self.phase = messages.phase_after(self.terms, self.phase)
        return messages_down

    def _open_share(self, members: tuple[int, ...]) -> dict[int, bytes]:
        terms, who = self.terms, messages.write_set(members, self.terms.clients)
        if terms.neighbours:
            return {
                member: messages.write(Kind.KEYS, terms, member, who, *self._keys_for(member)) for member in members
            }
        to_all = messages.write(Kind.KEYS, terms, EVERYBODY, who, *self._keys_for(members[0]))
        self._view = primitives.digest(b"keys", to_all)
        return dict.fromkeys(members, to_all)

    def _open_mask(self, members: tuple[int, ...]) -> dict[int, bytes]:
        terms, who = self.terms, messages.write_set(members, self.terms.clients)
        return {member: messages.write(Kind.INBOX, terms, member, who, *self._sealed_for(member)) for member in members}

    def _tell_survivors(self, members: tuple[int, ...]) -> dict[int, bytes]:
        who = messages.write_set(members, self.terms.clients)
        return dict.fromkeys(members, messages.write(Kind.SURVIVORS, self.terms, EVERYBODY, who))

    def _tell_confirmations(self, members: tuple[int, ...]) -> dict[int, bytes]:
        signers = members[: self.terms.threshold]  # as many as convince a client; more are so many bytes
        who = messages.write_set(signers, self.terms.clients)
        signatures = [self._confirmations[signer] for signer in signers]
        return dict.fromkeys(members, messages.write(Kind.CONFIRMATIONS, self.terms, EVERYBODY, who, *signatures))

    def finish(self) -> NDArray[np.uint64]:
        """Lift the masks and return the sum [length] of the vectors of `included`, modulo 2^ring_bits."""
        if self.phase != Phase.UNMASK:
            raise InputError(f"the round is at {self.phase.name}, which comes before its end; see advance()")
        self._check_enough()
        terms = self.terms
        weights: dict[tuple[int, ...], list[int]] = {}  # where everybody holds all shares, the same for all secrets
        total = self._total
        for member in sorted(self._sealed):
            # Any of those who told will do, as many as the threshold.
            tellers = tuple(self._holders_in(member, self._lifting)[: terms.share_threshold])
            if tellers not in weights:
                weights[tellers] = shamir.weights_at_zero([teller + 1 for teller in tellers])
            value = shamir.combine([self._lifting[teller][member] for teller in tellers], weights[tellers])
            secret = value.to_bytes(SHARE_BYTES, "little")[:KEY_BYTES]
            if member in self._stayed:
                self._check_secret(member, value, seed_digest(terms, member, secret) == self._seed_digests[member])
                total = total - self_mask(terms, member, secret)
            else:
                self._check_secret(member, value, primitives.public_of(secret) == self._keys[member][1])
                # What those who stayed added for the one who vanished: the other end of each mask, which cancels it.
                for other in self._holders_in(member, self._stayed):
                    total = total + pair_mask(terms, member, other, secret, self._keys[other][1])
        self.phase = Phase.DONE
        return terms.ring.reduced(total).astype(np.uint64)

    # ------------------------------------------------------------------------------------- what comes, by phase

    def _advertised(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.ADVERTISED, self.terms, client)
        messages.check_length(body, messages.advertised_bytes(self.terms))
        channel_key, mask_key = messages.split(body[: 2 * KEY_BYTES], KEY_BYTES)
        signature = bytes(body[2 * KEY_BYTES :])
        fingerprints = set()
        for key in (channel_key, mask_key):
            primitives.check_canonical(key)
            # One that nobody can agree with would stop everybody. What is agreed on is the same for two keys that
            # differ by a point of small order: they are one key too.
            fingerprints.add(primitives.agree(self._probe, key))
        if len(fingerprints) < 2 or fingerprints & self._keys_in_use:
            raise ContentError(f"client {client} sent a public key that is in use already: drop this message")
        self._check_signature(client, signature, b"advertised", channel_key + mask_key)
        self._keys[client] = (channel_key, mask_key)
        self._key_signatures[client] = signature
        self._keys_in_use |= fingerprints

    def _shared(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.SHARES, self.terms, client)
        peers = self._peers(client, self._keys)
        messages.check_length(body, KEY_BYTES + len(peers) * SEALED_BYTES)
        self._seed_digests[client] = bytes(body[:KEY_BYTES])
        self._sealed[client] = dict(zip(peers, messages.split(body[KEY_BYTES:], SEALED_BYTES), strict=True))

    def _masked(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.MASKED, self.terms, client)
        self._total = self._total + self.terms.ring.unpack(body, self.terms.length)
        self._stayed.add(client)

    def _confirm(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.CONFIRMED, self.terms, client)
        messages.check_length(body, SIGNATURE_BYTES)
        text = survivors_text(self.terms, self._view, self._sealed, self._stayed)
        self._check_signature(client, bytes(body), b"survivors", text)
        self._confirmations[client] = bytes(body)

    def _check_signature(self, client: int, signature: bytes, purpose: bytes, text: bytes) -> None:
        if self._roster is not None and not self._roster.is_signed(signature, purpose, self.terms, client, text):
            raise ContentError(
                f"the signature that came from client {client} is not of what it should have signed, or not by the key "
                "that the roster has for it: drop this message"
            )

    def _unmasked(self, client: int, message: bytes) -> None:
        body = messages.read(message, Kind.UNMASKED, self.terms, client)
        of_whom = self._holders_in(client, self._sealed)
        messages.check_length(body, len(of_whom) * SHARE_BYTES)
        self._lifting[client] = dict(zip(of_whom, messages.read_shares(body), strict=True))

    # ----------------------------------------------------------------------------------------- who talks to whom

    def _holders_in(self, client: int, members: Collection[int]) -> list[int]:
        """Who of these holds shares of a client's secrets, in order; it holds shares of theirs."""
        if not self.terms.neighbours:
            return sorted(members)
        if client not in self._holders:
            self._holders[client] = self.terms.holders(client)
        return [holder for holder in self._holders[client] if holder in members]

    def _keys_for(self, client: int) -> list[bytes]:
        holders = self._holders_in(client, self._keys)
        return [part for holder in holders for part in (*self._keys[holder], self._key_signatures[holder])]

    def _sealed_for(self, client: int) -> list[bytes]:
        return [self._sealed[peer][client] for peer in self._peers(client, self._sealed)]

    def _peers(self, client: int, members: Collection[int]) -> list[int]:
        return [member for member in self._holders_in(client, members) if member != client]

    # -------------------------------------------------------------------------------------------------- checks

    @property
    def _answers(self) -> Collection[int]:
        """Who has answered in this phase, in no order, and found in no time."""
        answers: dict[Phase, Collection[int]] = {
            Phase.ADVERTISE: self._keys,
            Phase.SHARE: self._sealed,
            Phase.MASK: self._stayed,
            Phase.CONFIRM: self._confirmations,
        }
        return answers.get(self.phase, self._lifting)

    def _expected(self) -> Collection[int]:
        """Who may answer in this phase: all who answered in the one before."""
        if self.phase == Phase.DONE:
            raise InputError("the round is over; start a new one")
        expected: dict[Phase, Collection[int]] = {
            Phase.ADVERTISE: range(self.terms.clients),
            Phase.SHARE: self._keys,
            Phase.MASK: self._sealed,
            Phase.CONFIRM: self._stayed,
            Phase.UNMASK: self._confirmations if self.terms.signed else self._stayed,
        }
        return expected[self.phase]

    def _check_enough(self) -> None:
        answered, needed = self._answers, self.terms.share_threshold
        # With neighbours the last phase needs no crowd: whom the sum is of is settled, and each secret has its holders.
        crowd = self.terms.threshold if self.phase != Phase.UNMASK or not self.terms.neighbours else 0
        if len(answered) < crowd:
            raise SecureSumError(
                f"{len(answered)} of {self.terms.clients} clients answered {self.phase.name}, "
                f"{self.terms.threshold} are needed: no vector was revealed, nor any sum; start a new round, or "
                "agree on a lower threshold (above half)"
            )
        secrets_of = (
            answered if self.phase in (Phase.ADVERTISE, Phase.SHARE) else self._sealed
        )  # whose masks may have to be lifted
        for member in sorted(secrets_of) if self.terms.neighbours else ():
            if (there := len(self._holders_in(member, answered))) < needed:
                raise SecureSumError(
                    f"{there} of the {self.terms.neighbours + 1} who hold shares of client {member}'s secrets answered "
                    f"{self.phase.name}, {needed} are needed: no vector was revealed, nor any sum; start a new round, "
                    "or agree on more neighbours"
                )

    def _check_secret(self, member: int, value: int, known: bool) -> None:
        if value >> (8 * KEY_BYTES) or not known:
            raise SecureSumError(
                f"the shares of client {member}'s secret do not give it back: somebody told a wrong one, and which is "
                "not known; no sum was revealed: start a new round"
            )
