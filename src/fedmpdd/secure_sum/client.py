"""The client of a secure sum: a call a phase, each turns what the server sent into an answer."""

import json
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fedmpdd.documents import parse_json
from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import messages, primitives, shamir
from fedmpdd.secure_sum.checks import is_whole
from fedmpdd.secure_sum.ledger import Ledger, MemoryLedger
from fedmpdd.secure_sum.messages import EVERYBODY, SEALED_BYTES, Kind, Phase
from fedmpdd.secure_sum.neighbours import enough_neighbours
from fedmpdd.secure_sum.primitives import KEY_BYTES, SIGNATURE_BYTES
from fedmpdd.secure_sum.ring import Words
from fedmpdd.secure_sum.signatures import Identity
from fedmpdd.secure_sum.terms import Terms, client_ids, threshold_against

# With three, one client that tells the server all it knows leaves two to tell apart; with two it leaves one.
FEWEST_CLIENTS = 3

_MOST_STATE = 2**26  # bytes: keys and shares of 32,768 clients in hexadecimal digits are a quarter of it


def seed_digest(terms: Terms, client: int, seed: bytes) -> bytes:
    """Return what a client says of its seed beforehand, so that wrong shares of it are found out."""
    return primitives.digest(b"seed", terms.digest, client_ids(client, client), seed)


def self_mask(terms: Terms, client: int, seed: bytes) -> Words:
    """PRG(b_i): the mask that a client's own seed makes."""
    key = primitives.derive(seed, b"own mask", terms.digest, client_ids(client, client))
    return terms.ring.mask(key, terms.length)


def pair_mask(terms: Terms, client: int, other: int, secret: bytes, public: bytes) -> Words:
    """PRG(s_ij), with the sign that client i adds it: plus where j > i, minus where j < i, so that both cancel."""
    pair = client_ids(min(client, other), max(client, other))
    key = primitives.derive(primitives.agree(secret, public), b"pair mask", terms.digest, pair)
    mask = terms.ring.mask(key, terms.length)
    return mask if other > client else -mask


def survivors_text(terms: Terms, view: bytes, shared: Collection[int], stayed: Collection[int]) -> bytes:
    """What clients sign of who stayed; with it by which keys, and out of whom, so that all were told the same."""
    return view + messages.write_set(shared, terms.clients) + messages.write_set(stayed, terms.clients)


class SecureClient:
    """One client in one round. The order of the calls is that of the phases, and each answers once.

    It answers no message of another round, none twice, none that names too few clients; and it tells, of each of the
    others, either a share of the seed or a share of the key, never both. What it refuses, and why, is a SecureSumError
    or a WireError; it has then told nothing, and a right message is still answered.

    Args:
        terms: what the server's opening message says (`read_terms`).
        client: this client's number in the round.
        ledger: what this client has answered so far: `FileLedger(path)`, or in simulations `MemoryLedger()`. Whatever
            is answered is written there first, so that no process of this client answers it again.
        fewest_clients: how many clients, this one counted and colluders not, a sum must be of. Three is the
            fewest with which one colluder that this client does not know of still leaves two to tell apart; without
            noise a sum of three hides little, so that larger crowds should insist on more.
        colluders: how many clients may be in league with the server. Terms that do not protect from so many are
            refused: too few neighbours, a crowd below `fewest_clients` without them, or with signatures a threshold
            of (n + colluders)/2 or less. None: none are counted, and how many neighbours there are is left to the
            server.
        identity: the client's signing key and everybody's verify keys. With it the client insists on signatures.

    Example:
        >>> client = SecureClient(read_terms(opening), 3, FileLedger("rounds.json"), fewest_clients=20, colluders=5)
        >>> server.receive(3, client.advertise())
    """

    def __init__(
        self,
        terms: Terms,
        client: int,
        ledger: Ledger,
        *,
        fewest_clients: int = FEWEST_CLIENTS,
        colluders: int | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.terms = terms
        self.client = client
        self._ledger = _checked_ledger(ledger)
        self._fewest_clients = fewest_clients
        self._colluders = colluders
        self._identity = identity
        self._check_terms()
        ledger.check(terms, Phase.ADVERTISE)
        self.phase = Phase.ADVERTISE
        self._channel_secret = primitives.new_secret()
        self._mask_secret = primitives.new_secret()  # s_i^SK
        self._seed = primitives.new_secret()  # b_i
        self._mask_keys: dict[int, bytes] = {}  # s_j^PK, of those who advertised
        self._channel_keys: dict[int, bytes] = {}
        self._present: list[int] = []  # who is there still, as far as this client was told
        self._view = b""  # stands for all that everybody was told of who is there, and by which keys
        self._shares: dict[int, list[int]] = {}  # of b_j and s_j^SK, of those who shared
        self._survivors: list[int] = []  # U3, where this client has signed it

    def answer(self, message: bytes, values: NDArray[np.uint64] | None = None) -> bytes:
        """Answer what the server sent, in whatever phase this client is.

        Args:
            message: what opens the phase. What opened the round was read already, as `terms`.
            values: the vector [length], which is needed in the phase MASK alone.

        Returns:
            The client's message of the phase.

        """
        if self.phase == Phase.ADVERTISE:
            return self.advertise()
        if self.phase == Phase.SHARE:
            return self.share(message)
        if self.phase == Phase.CONFIRM:
            return self.confirm(message)
        if self.phase == Phase.UNMASK:
            return self.unmask(message)
        if values is None:
            raise InputError("this client is at MASK, and no vector came to mask; pass values=…")
        return self.mask(message, values)

    def advertise(self) -> bytes:
        """Send two public keys, one to talk to the others by and one to agree on masks."""
        self._expect(Phase.ADVERTISE)
        keys = self._public_keys()
        return self._answer(Kind.ADVERTISED, keys, self._signature(b"advertised", keys))

    def share(self, keys: bytes) -> bytes:
        """Share the seed and the mask key among all who will hold them, for each under its own lock."""
        self._expect(Phase.SHARE)
        terms = self.terms
        body = messages.read(keys, Kind.KEYS, terms, self.client if terms.neighbours else EVERYBODY)
        present, body = messages.read_set(body, terms.clients)
        members = self._holders_in(present)
        size = messages.advertised_bytes(terms)
        messages.check_length(body, len(members) * size)
        self._need(present, members, "sent keys")
        bodies = dict(zip(members, messages.split(body, size), strict=True))
        channel_keys, mask_keys = self._checked_keys(bodies)
        self._channel_keys, self._mask_keys, self._present = channel_keys, mask_keys, present
        self._view = primitives.digest(
            b"keys", messages.write_set(present, terms.clients) if terms.neighbours else keys
        )
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
        return self._answer(Kind.SHARES, seed_digest(terms, self.client, self._seed), *sealed)

    def mask(self, inbox: bytes, values: NDArray[np.uint64]) -> bytes:
        """Send the vector [length] under its own mask and one for each of the holders who shared."""
        self._expect(Phase.MASK)
        terms = self.terms
        body = messages.read(inbox, Kind.INBOX, terms, self.client)
        present, body = messages.read_set(body, terms.clients)
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
        total = total + self_mask(terms, self.client, self._seed)
        for peer in peers:
            total += pair_mask(terms, self.client, peer, self._mask_secret, self._mask_keys[peer])
        self._shares |= received
        self._present = present
        return self._answer(Kind.MASKED, terms.ring.pack(total))

    def confirm(self, survivors: bytes) -> bytes:
        """Sign who stayed, as this client was told, together with all that it was told before. Tell no share yet."""
        self._expect(Phase.CONFIRM)
        self._survivors = self._read_survivors(survivors)
        return self._answer(Kind.CONFIRMED, self._signature(b"survivors", self._survivors_text()))

    def unmask(self, message: bytes) -> bytes:
        """Tell a share of the seed of each who stayed, and of the key of each who vanished after sharing.

        message: who stayed; in rounds with signatures, whose signatures of it there are, and these.
        """
        self._expect(Phase.UNMASK)
        if self.terms.signed:
            self._check_confirmations(message)
            stayed = set(self._survivors)
        else:
            stayed = set(self._read_survivors(message))
        shares = [self._shares[member][0 if member in stayed else 1] for member in sorted(self._shares)]
        answer = self._answer(Kind.UNMASKED, messages.write_shares(shares))
        self._shares = {}
        self._channel_secret = self._mask_secret = self._seed = b""
        return answer

    # -------------------------------------------------------------------------------------- between processes

    def state(self) -> bytes:
        """Return everything the client knows, secrets included, for a process that ends between two phases.

        The signing key is not part of it. Keep it where nobody else reads it, and replace it after every phase: an
        older one is refused, since the ledger knows what was answered since.
        """
        return json.dumps(
            {
                "terms": messages.write_terms(self.terms).hex(),
                "client": self.client,
                "fewest_clients": self._fewest_clients,
                "friends": self._colluders,  # the name that it has had in states from the first release on
                "phase": int(self.phase),
                "secrets": [self._channel_secret.hex(), self._mask_secret.hex(), self._seed.hex()],
                "present": self._present,
                "survivors": self._survivors,
                "view": self._view.hex(),
                "keys": {n: [key.hex(), self._mask_keys[n].hex()] for n, key in self._channel_keys.items()},
                "shares": {n: messages.write_shares(pair).hex() for n, pair in self._shares.items()},
            }
        ).encode()

    @classmethod
    def from_state(cls, state: bytes, ledger: Ledger, *, identity: Identity | None = None) -> "SecureClient":
        """Return the client whose `state` this was, with the ledger (and the identity) that it had.

        What it insists on is part of the state.
        """
        try:
            kept = parse_json(state, largest=_MOST_STATE)
            terms = messages.read_terms(bytes.fromhex(kept["terms"]))
            client = cls(
                terms,
                kept["client"],
                MemoryLedger(),  # its own says that the round has begun
                fewest_clients=kept["fewest_clients"],
                colluders=kept["friends"],
                identity=identity,
            )
            client.phase = Phase(kept["phase"])
            client._channel_secret, client._mask_secret, client._seed = map(bytes.fromhex, kept["secrets"])
            client._present = [int(member) for member in kept["present"]]
            client._survivors = [int(member) for member in kept["survivors"]]
            client._view = bytes.fromhex(kept["view"])
            client._channel_keys = {int(n): bytes.fromhex(pair[0]) for n, pair in kept["keys"].items()}
            client._mask_keys = {int(n): bytes.fromhex(pair[1]) for n, pair in kept["keys"].items()}
            client._shares = {int(n): messages.read_shares(bytes.fromhex(pair)) for n, pair in kept["shares"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(f"this is not the state of a client of a secure sum: {error}; start a new round") from None
        client._ledger = _checked_ledger(ledger)
        if client.phase != Phase.DONE:
            ledger.check(terms, client.phase)
        return client

    # -------------------------------------------------------------------------------------------------- checks

    def _check_terms(self) -> None:
        terms, client, fewest, colluders = self.terms, self.client, self._fewest_clients, self._colluders
        for name, value, least, most in (
            ("client", client, 0, terms.clients - 1),
            ("fewest_clients", fewest, 2, None),
            ("colluders", 0 if colluders is None else colluders, 0, None),
        ):
            if not is_whole(value, least, most):
                upto = "on" if most is None else f"to {most}"
                raise InputError(f"{name} = {value!r}: expected a number from {least} {upto}")
        self._check_crowd(terms.threshold, "may be all that are left by these terms")
        if colluders is not None and terms.neighbours:
            fewest = enough_neighbours(terms.clients, terms.clients - terms.threshold, colluders, failure=1.0)
            if not 0 < fewest <= terms.neighbours:
                raise SecureSumError(
                    f"the terms say {terms.neighbours} neighbours, and with {colluders} of {terms.clients} clients in "
                    f"league with the server it takes {fewest or 'everybody'}: nothing is told"
                )
        if self._identity is not None:
            self._identity.check(terms, client)
        elif terms.signed:
            raise SecureSumError(
                "the terms ask for signatures, and this client was given no identity to sign with: pass identity=…"
            )
        if terms.signed and terms.threshold < (least := threshold_against(terms.clients, colluders or 0)):
            raise SecureSumError(
                f"the terms say a threshold of {terms.threshold}, and with {colluders} of {terms.clients} clients in "
                f"league with the server it takes {least}, or two sets of survivors could both be signed: nothing is "
                "told"
            )

    def _check_crowd(self, crowd: int, did: str) -> None:
        honest = crowd - (self._colluders or 0)
        if honest < self._fewest_clients:
            colluders = f", {self._colluders} of them in league with the server," if self._colluders else ""
            raise SecureSumError(
                f"{crowd} clients{colluders} {did}, and this client insists on {self._fewest_clients} in a sum that it "
                "is in: nothing is told; ask more clients, or lower what it insists on (fewest_clients)"
            )

    def _checked_keys(self, bodies: dict[int, bytes]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the channel and mask keys of what clients are said to have advertised, or raise ContentError."""
        pairs = {member: (body[:KEY_BYTES], body[KEY_BYTES : 2 * KEY_BYTES]) for member, body in bodies.items()}
        pieces = [key for pair in pairs.values() for key in pair]
        for key in pieces:
            primitives.check_canonical(key)
        if len(set(pieces)) != len(pieces):
            raise ContentError("two public keys are the same; every client makes its own: leave this round")
        if b"".join(pairs[self.client]) != self._public_keys():
            raise ContentError("the server passed on other keys than this client sent: leave this round")
        for member, body in bodies.items():
            self._check_signature(member, body[2 * KEY_BYTES :], b"advertised", body[: 2 * KEY_BYTES], "these keys")
        return {member: pair[0] for member, pair in pairs.items()}, {member: pair[1] for member, pair in pairs.items()}

    def _read_survivors(self, message: bytes) -> list[int]:
        """Return who stayed, by the word of the server, or raise where this client must not go on."""
        body = messages.read(message, Kind.SURVIVORS, self.terms, EVERYBODY)
        stayed, rest = messages.read_set(body, self.terms.clients)
        messages.check_length(rest, 0)
        if unknown := sorted(set(stayed) - set(self._present)):
            raise ContentError(f"client {unknown[0]} is said to have stayed, but never shared: leave this round")
        self._need(stayed, self._holders_in(stayed), "stayed")
        return stayed

    def _check_confirmations(self, message: bytes) -> None:
        """Raise unless as many as the threshold signed the very set that this client signed."""
        terms = self.terms
        body = messages.read(message, Kind.CONFIRMATIONS, terms, EVERYBODY)
        signers, body = messages.read_set(body, terms.clients)
        messages.check_length(body, len(signers) * SIGNATURE_BYTES)
        if unknown := sorted(set(signers) - set(self._survivors)):
            raise ContentError(
                f"client {unknown[0]} is said to have signed who stayed, but did not stay: leave this round"
            )
        if len(signers) < terms.threshold:
            raise SecureSumError(
                f"{len(signers)} clients signed who stayed, and the terms say at least {terms.threshold}: nothing more "
                "is told; start a new round when more clients are there"
            )
        text = self._survivors_text()
        for signer, signature in zip(signers, messages.split(body, SIGNATURE_BYTES), strict=True):
            self._check_signature(
                signer, signature, b"survivors", text, "that this client's set of survivors is its own"
            )

    def _check_signature(self, client: int, signature: bytes, purpose: bytes, text: bytes, what: str) -> None:
        if self._identity is None:
            return
        if not self._identity.roster.is_signed(signature, purpose, self.terms, client, text):
            raise ContentError(
                f"client {client} did not sign {what}, in this round and by the roster that this client has: the "
                "server, or whoever stands between, made it up; leave this round"
            )

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
        self._check_crowd(len(present), did)
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

    def _signature(self, purpose: bytes, text: bytes) -> bytes:
        """This client's signature, or nothing in rounds without."""
        if self._identity is None:
            return b""
        return self._identity.sign(purpose, self.terms, self.client, text)

    def _survivors_text(self) -> bytes:
        return survivors_text(self.terms, self._view, self._present, self._survivors)

    def _public_keys(self) -> bytes:
        return primitives.public_of(self._channel_secret) + primitives.public_of(self._mask_secret)

    def _lock(self, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """The key and context of what one client sends another; they open nothing if the two were told other keys."""
        peer = receiver if sender == self.client else sender
        context = self.terms.digest + self._view_with(peer) + client_ids(sender, receiver)
        agreed = primitives.agree(self._channel_secret, self._channel_keys[peer])
        return primitives.derive(agreed, b"channel", context), context

    def _view_with(self, peer: int) -> bytes:
        """What both ends of a channel were told. Who is told the keys of neighbours alone shares no more than two."""
        if not self.terms.neighbours:
            return self._view
        both = sorted((self.client, peer))
        keys = [one[member] for member in both for one in (self._channel_keys, self._mask_keys)]
        return primitives.digest(b"both ends", self._view, *keys)

    def _answer(self, kind: Kind, *parts: bytes) -> bytes:
        """Return the answer of this phase, which is on record before anybody can see it, and go on to the next."""
        self._ledger.take(self.terms, self.phase)
        self.phase = messages.phase_after(self.terms, self.phase)
        return messages.write(kind, self.terms, self.client, *parts)


def _checked_ledger(ledger: Ledger) -> Ledger:
    if not isinstance(ledger, Ledger):
        raise InputError(
            f"ledger = {ledger!r}: expected a FileLedger, or in simulations a MemoryLedger, where this client writes "
            "down what it has answered: the same one as long as it lives"
        )
    return ledger
