"""The client of a secure sum: four calls, each turns what the server sent into an answer."""

import json
import struct

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import messages, primitives, shamir
from fedmpdd.secure_sum.messages import EVERYBODY, SEALED_BYTES, Kind, Phase
from fedmpdd.secure_sum.neighbours import enough_neighbours
from fedmpdd.secure_sum.primitives import KEY_BYTES
from fedmpdd.secure_sum.ring import Words
from fedmpdd.secure_sum.terms import Terms

PAIR = struct.Struct("<HH")


def seed_digest(terms: Terms, client: int, seed: bytes) -> bytes:
    """Return what a client says of its seed beforehand, so that wrong shares of it are found out."""
    return primitives.digest(b"seed", terms.digest, PAIR.pack(client, client), seed)


def own_mask(terms: Terms, client: int, seed: bytes) -> Words:
    """PRG(b_i): the mask that a client's own seed makes."""
    key = primitives.derive(seed, b"own mask", terms.digest, PAIR.pack(client, client))
    return terms.ring.mask(key, terms.length)


def pair_mask(terms: Terms, client: int, other: int, secret: bytes, public: bytes) -> Words:
    """PRG(s_ij), with the sign that client i adds it: plus where j > i, minus where j < i, so that both cancel."""
    pair = PAIR.pack(min(client, other), max(client, other))
    key = primitives.derive(primitives.agree(secret, public), b"pair mask", terms.digest, pair)
    mask = terms.ring.mask(key, terms.length)
    return mask if other > client else -mask


class SecureClient:
    """One client in one round. The order of the calls is that of the phases, and each answers once.

    It answers no message of another round, none twice, none that names too few clients; and it tells, of each of the
    others, either a share of the seed or a share of the key, never both.

    last_round: the last round of this training that the client took part in; an earlier one, or that one again, is
        refused. Two sums over different clients differ by somebody's vector, so that a vector must not be summed twice.
    friends: how many clients may be in league with the server; terms with too few neighbours to be safe from them, and
        from as many drop-outs as the terms allow, are refused. None: the server's word is taken for it.
    """

    def __init__(self, terms: Terms, client: int, *, last_round: int = -1, friends: int | None = None) -> None:
        if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < terms.clients:
            raise InputError(f"client = {client!r}: expected a number from 0 to {terms.clients - 1}")
        if terms.round <= last_round:
            raise SecureSumError(
                f"round {terms.round} was asked for, but this client has answered round {last_round} already: a vector "
                "is summed once; start a later round"
            )
        if friends is not None and terms.neighbours:
            enough = enough_neighbours(terms.clients, terms.clients - terms.threshold, friends, failure=1.0)
            if not 0 < enough <= terms.neighbours:
                raise SecureSumError(
                    f"the terms say {terms.neighbours} neighbours, and with {friends} of {terms.clients} clients in "
                    f"league with the server it takes {enough or 'everybody'}: nothing is told"
                )
        self.terms = terms
        self.client = client
        self.phase = Phase.ADVERTISE
        self._channel_secret = primitives.new_secret()
        self._mask_secret = primitives.new_secret()  # s_i^SK
        self._seed = primitives.new_secret()  # b_i
        self._mask_keys: dict[int, bytes] = {}  # s_j^PK, of those who advertised
        self._channel_keys: dict[int, bytes] = {}
        self._present: list[int] = []  # who is there still, as far as this client was told
        self._view = b""  # stands for all that everybody was told of who is there, and by which keys
        self._shares: dict[int, list[int]] = {}  # of b_j and s_j^SK, of those who shared

    def advertise(self) -> bytes:
        """Phase 0: send two public keys, one to talk to the others by and one to agree on masks."""
        self._expect(Phase.ADVERTISE)
        self.phase = Phase.SHARE
        return self._write(Kind.ADVERTISED, self._own_keys())

    def share(self, keys: bytes) -> bytes:
        """Phase 1: share the seed and the mask key among all who will hold them, for each under its own lock."""
        self._expect(Phase.SHARE)
        terms = self.terms
        body = messages.read(keys, Kind.KEYS, terms, self.client if terms.neighbours else EVERYBODY)
        present = messages.read_set(body, terms.clients)
        who, body = bytes(body[: messages.set_bytes(terms.clients)]), body[messages.set_bytes(terms.clients) :]
        members = self._holders_in(present)
        messages.check_length(body, len(members) * 2 * KEY_BYTES)
        self._need(present, members, "sent keys")
        pieces = messages.split(body, KEY_BYTES)
        if len(set(pieces)) != len(pieces):
            raise ContentError("two public keys are the same; every client makes its own: leave this round")
        channel_keys = dict(zip(members, pieces[::2], strict=True))
        mask_keys = dict(zip(members, pieces[1::2], strict=True))
        if channel_keys[self.client] + mask_keys[self.client] != self._own_keys():
            raise ContentError("the server passed on other keys than this client sent: leave this round")
        self._channel_keys, self._mask_keys, self._present = channel_keys, mask_keys, present
        self._view = primitives.digest(b"keys", who if terms.neighbours else keys)
        points = [member + 1 for member in members]
        seed_shares, key_shares = (
            shamir.share(int.from_bytes(secret, "little"), terms.share_threshold, points)
            for secret in (self._seed, self._mask_secret)
        )
        sealed = []
        for member, of_seed, of_key in zip(members, seed_shares, key_shares, strict=True):
            if member == self.client:
                self._shares = {member: [of_seed, of_key]}
            else:
                lock, context = self._lock(self.client, member)
                sealed.append(primitives.seal(lock, messages.write_shares([of_seed, of_key]), context))
        self.phase = Phase.MASK
        return self._write(Kind.SHARES, seed_digest(terms, self.client, self._seed), *sealed)

    def mask(self, inbox: bytes, values: NDArray[np.uint64]) -> bytes:
        """Phase 2: send the vector [length] under its own mask and one for each of the holders who shared."""
        self._expect(Phase.MASK)
        terms = self.terms
        body = messages.read(inbox, Kind.INBOX, terms, self.client)
        present = messages.read_set(body, terms.clients)
        body = body[messages.set_bytes(terms.clients) :]
        members = self._holders_in(present)
        peers = [member for member in members if member != self.client]
        messages.check_length(body, len(peers) * SEALED_BYTES)
        self._need(present, members, "shared")
        if unknown := sorted(set(present) - set(self._present)):
            raise ContentError(f"client {unknown[0]} is said to have shared, but sent no keys: leave this round")
        total = terms.ring.words_of(values, terms.length)
        received = {}
        for peer, sealed in zip(peers, messages.split(body, SEALED_BYTES), strict=True):
            lock, context = self._lock(peer, self.client)
            plain = primitives.unseal(lock, sealed, context)
            if plain is None:
                raise ContentError(
                    f"what client {peer} sent does not open: damaged, repeated, or made for other keys than this "
                    "client was told of; leave this round"
                )
            received[peer] = messages.read_shares(plain)
        # y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)
        total = total + own_mask(terms, self.client, self._seed)
        for peer in peers:
            total += pair_mask(terms, self.client, peer, self._mask_secret, self._mask_keys[peer])
        self._shares |= received
        self._present = present
        self.phase = Phase.UNMASK
        return self._write(Kind.MASKED, terms.ring.pack(total))

    def unmask(self, survivors: bytes) -> bytes:
        """Phase 3: tell a share of the seed of each who stayed, and of the key of each who vanished after sharing."""
        self._expect(Phase.UNMASK)
        body = messages.read(survivors, Kind.SURVIVORS, self.terms, EVERYBODY)
        stayed = messages.read_set(body, self.terms.clients)
        messages.check_length(body, messages.set_bytes(self.terms.clients))
        if unknown := sorted(set(stayed) - set(self._present)):
            raise ContentError(f"client {unknown[0]} is said to have stayed, but never shared: leave this round")
        self._need(stayed, self._holders_in(stayed), "stayed")
        told = [self._shares[member][0 if member in stayed else 1] for member in sorted(self._shares)]
        self.phase = Phase.DONE
        self._shares = {}
        self._channel_secret = self._mask_secret = self._seed = b""
        return self._write(Kind.UNMASKED, messages.write_shares(told))

    # -------------------------------------------------------------------------------------- between processes

    def state(self) -> bytes:
        """Return everything the client knows, secrets included, for a process that ends between two phases.

        Keep it where nobody else reads it, replace it after every phase, and never go back to an older one.
        """
        return json.dumps(
            {
                "terms": messages.write_terms(self.terms).hex(),
                "client": self.client,
                "phase": int(self.phase),
                "secrets": [self._channel_secret.hex(), self._mask_secret.hex(), self._seed.hex()],
                "present": self._present,
                "view": self._view.hex(),
                "keys": {n: [key.hex(), self._mask_keys[n].hex()] for n, key in self._channel_keys.items()},
                "shares": {n: messages.write_shares(pair).hex() for n, pair in self._shares.items()},
            }
        ).encode()

    @classmethod
    def from_state(cls, state: bytes) -> "SecureClient":
        """Return the client whose `state` this was."""
        try:
            kept = json.loads(state)
            client = cls(messages.read_terms(bytes.fromhex(kept["terms"])), kept["client"])
            client.phase = Phase(kept["phase"])
            client._channel_secret, client._mask_secret, client._seed = map(bytes.fromhex, kept["secrets"])
            client._present = [int(member) for member in kept["present"]]
            client._view = bytes.fromhex(kept["view"])
            client._channel_keys = {int(n): bytes.fromhex(pair[0]) for n, pair in kept["keys"].items()}
            client._mask_keys = {int(n): bytes.fromhex(pair[1]) for n, pair in kept["keys"].items()}
            client._shares = {int(n): messages.read_shares(bytes.fromhex(pair)) for n, pair in kept["shares"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(f"this is not the state of a client of a secure sum: {error}; start a new round") from None
        return client

    # -------------------------------------------------------------------------------------------------- checks

    def _expect(self, phase: Phase) -> None:
        if self.phase != phase:
            raise SecureSumError(
                f"{phase.name} was asked of a client that is at {self.phase.name}: each phase is answered once, in "
                "order; start a new round"
            )

    def _holders_in(self, present: list[int]) -> list[int]:
        """Who of those present holds shares of this client's secrets: whose shares it holds too, and itself."""
        there = set(present)
        return [holder for holder in self.terms.holders(self.client) if holder in there]

    def _need(self, present: list[int], holders: list[int], did: str) -> None:
        if self.client not in present:
            raise SecureSumError(f"the server does not count this client, {self.client}, among those who {did}")
        if len(present) < self.terms.threshold:
            raise SecureSumError(
                f"{len(present)} clients {did}, and the terms say at least {self.terms.threshold}, so that a sum hides "
                "each of them: nothing more is told; start a new round when more clients are there"
            )
        if len(holders) < self.terms.share_threshold:
            raise SecureSumError(
                f"{len(holders)} who hold this client's shares {did}, and {self.terms.share_threshold} are needed: "
                "nothing more is told; start a new round when more clients are there"
            )

    def _own_keys(self) -> bytes:
        return primitives.public_of(self._channel_secret) + primitives.public_of(self._mask_secret)

    def _lock(self, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """The key and context of what one client sends another; they open nothing if the two were told other keys."""
        peer = receiver if sender == self.client else sender
        context = self.terms.digest + self._view_with(peer) + PAIR.pack(sender, receiver)
        agreed = primitives.agree(self._channel_secret, self._channel_keys[peer])
        return primitives.derive(agreed, b"channel", context), context

    def _view_with(self, peer: int) -> bytes:
        """What both ends of a channel were told. Who is told the keys of neighbours alone shares no more than two."""
        if not self.terms.neighbours:
            return self._view
        both = sorted((self.client, peer))
        keys = [one[member] for member in both for one in (self._channel_keys, self._mask_keys)]
        return primitives.digest(b"both ends", self._view, *keys)

    def _write(self, kind: Kind, *parts: bytes) -> bytes:
        return messages.write(kind, self.terms, self.client, *parts)
