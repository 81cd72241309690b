"""Servers that do not follow the protocol: what they get, what honest clients do, and what signatures change.

Where rounds without signatures are known not to protect, the attack is played to its end and succeeds. The same attack
on a round with signatures must end with an error of the victim's, before it tells a share.
"""

import json
from collections.abc import Collection, Mapping

import numpy as np
import pytest

from fedmpdd.errors import ContentError, InputError, SecureSumError, SessionMismatchError, WireError
from fedmpdd.secure_sum import (
    Identity,
    MemoryLedger,
    Phase,
    Roster,
    SecureClient,
    SecureServer,
    Terms,
    primitives,
    shamir,
    threshold_against,
)
from fedmpdd.secure_sum.client import pair_mask, self_mask, survivors_text
from fedmpdd.secure_sum.messages import HEADER_BYTES, Kind, advertised_bytes, split, write, write_set
from fedmpdd.secure_sum.ring import Words
from fedmpdd.secure_sum.shamir import SHARE_BYTES
from tests.secure_sum.rounds import Round, identities_of, some_vectors, sum_of, terms_of

BOTH = pytest.mark.parametrize("signed", [False, True], ids=["plain", "signed"])
LENGTH = 5


# ------------------------------------------------------------------------------------------- lies about the keys


class Impostor(SecureServer):
    """A server that plays all clients but one, and believes its own signatures."""

    def _check_signature(self, client: int, signature: bytes, purpose: bytes, text: bytes) -> None:
        pass


def alone_among_impostors(terms: Terms, victim: SecureClient, vector: np.ndarray) -> list[int]:
    """Sum a victim's vector with those of clients that the server made up, and take theirs, zeros, off again."""
    secrets = [primitives.new_secret() for _ in range(terms.clients)]
    roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets])
    fakes = {
        i: SecureClient(terms, i, MemoryLedger(), identity=Identity(secrets[i], roster) if terms.signed else None)
        for i in range(1, terms.clients)
    }
    server = Impostor(terms, roster if terms.signed else None)
    everybody = {0: victim, **fakes}
    for i, client in everybody.items():
        server.receive(i, client.advertise())
    for i, message in server.advance().items():
        server.receive(i, everybody[i].share(message))
    for i, message in server.advance().items():
        server.receive(i, everybody[i].mask(message, vector if i == 0 else np.zeros_like(vector)))
    for i, message in server.advance().items():
        server.receive(i, everybody[i].unmask(message))
    return [int(value) for value in server.finish()]


def test_a_server_in_everybody_elses_place_gets_the_vector_unless_keys_are_signed() -> None:
    vector = some_vectors(1, LENGTH, 32)[0]
    plain = terms_of(5)
    assert alone_among_impostors(plain, SecureClient(plain, 0, MemoryLedger()), vector) == vector.tolist()
    signed = terms_of(5, signed=True)
    victim = SecureClient(signed, 0, MemoryLedger(), identity=identities_of(5)[0])
    with pytest.raises(ContentError, match="client 1 did not sign these keys"):
        alone_among_impostors(signed, victim, vector)
    assert victim.phase == Phase.SHARE  # it has told its public keys, and nothing else


@pytest.mark.parametrize("which", [0, 1], ids=["channel key", "mask key"])
def test_a_single_key_of_the_servers_own_is_noticed(which: int) -> None:
    this = Round(terms_of(4, signed=True), until=Phase.SHARE)
    start = HEADER_BYTES + 1 + 2 * advertised_bytes(this.terms) + 32 * which
    message = this.opening[Phase.SHARE][0]
    changed = message[:start] + primitives.public_of(primitives.new_secret()) + message[start + 32 :]
    for i in (0, 1, 3):
        with pytest.raises(ContentError, match="client 2 did not sign these keys"):
            this.answer(i, Phase.SHARE, changed)
    with pytest.raises(ContentError, match="other keys than this client sent"):
        this.answer(2, Phase.SHARE, changed)


def spellings(key: bytes) -> list[bytes]:
    """Other bytes that X25519 takes for the same key; the last only where the key is below 19."""
    value = int.from_bytes(key, "little")
    others = [value + 2**255] + ([value + 2**255 - 19] if value < 19 else [])
    return [other.to_bytes(32, "little") for other in others]


@BOTH
def test_a_key_that_was_passed_off_as_two_is_noticed_also_in_another_spelling(signed: bool) -> None:
    this = Round(terms_of(4, signed=signed), until=Phase.SHARE)
    size = advertised_bytes(this.terms)
    head, message = HEADER_BYTES + 1, this.opening[Phase.SHARE][0]
    pieces = split(memoryview(message)[head:], size)
    same = pieces[1]
    flipped = spellings(same[:32])[0] + spellings(same[32:64])[0] + same[64:]
    secret = primitives.new_secret()
    assert primitives.agree(secret, flipped[:32]) == primitives.agree(secret, same[:32])
    for copy, words in ((same, "are the same"), (flipped, "another spelling")):
        with pytest.raises(ContentError, match=words):
            this.answer(0, Phase.SHARE, message[:head] + b"".join([*pieces[:2], copy, pieces[3]]))
    few = write(Kind.KEYS, this.terms, 0xFFFF, write_set([0, 1], 4), *pieces[:2])
    with pytest.raises(SecureSumError, match="2 clients sent keys"):  # keys that were dropped
        this.answer(0, Phase.SHARE, few)
    this.answer(0, Phase.SHARE, message)  # what was refused told nothing


# -------------------------------------------------------------------------------------------- lies about survivors


def confirmations(terms: Terms, signatures: dict[int, bytes]) -> bytes:
    who = write_set(signatures, terms.clients)
    return write(Kind.CONFIRMATIONS, terms, 0xFFFF, who, *(signatures[i] for i in sorted(signatures)))


class SplitView:
    """Everybody masks; then the server tells each honest client a set of survivors of its own choice.

    Its colluders, the last so many clients, tell it all their shares and sign whatever it likes.
    """

    def __init__(self, terms: Terms, stories: Mapping[int, Collection[int]], colluders: int = 0) -> None:
        self.terms, self.stories = terms, {i: tuple(sorted(story)) for i, story in stories.items()}
        self.vectors = some_vectors(terms.clients, terms.length, 32, seed=9)
        self.round = Round(terms, self.vectors, until=Phase.MASK)
        self.round.answers(Phase.MASK)
        self.league = range(terms.clients - colluders, terms.clients)
        self.refused: dict[int, Exception] = {}
        self.shares: dict[tuple[int, int], dict[int, int]] = {}  # of (client, 0 for seed or 1 for key), by teller
        for colluder in self.league:
            for client, pair in self.round.clients[colluder]._shares.items():
                for kind in (0, 1):
                    self.shares.setdefault((client, kind), {})[colluder] = pair[kind]
        messages = self._confirmed() if terms.signed else {i: self._story(i) for i in stories}
        for i, message in messages.items():
            self._ask(i, message)

    def _story(self, i: int) -> bytes:
        return write(Kind.SURVIVORS, self.terms, 0xFFFF, write_set(self.stories[i], self.terms.clients))

    def _confirmed(self) -> dict[int, bytes]:
        """What opens UNMASK for each: all signatures of its own story that there are, those of colluders included."""
        signed: dict[tuple[int, ...], dict[int, bytes]] = {}
        for i, story in self.stories.items():
            signature = self.round.clients[i].confirm(self._story(i))[HEADER_BYTES:]
            signed.setdefault(story, {})[i] = signature
        for story, signatures in signed.items():
            for colluder in self.league:
                identity, client = self.round.identities[colluder], self.round.clients[colluder]
                assert identity is not None
                text = survivors_text(self.terms, client._view, range(self.terms.clients), story)
                signatures[colluder] = identity.sign(b"survivors", self.terms, colluder, text)
        return {i: confirmations(self.terms, signed[story]) for i, story in self.stories.items()}

    def _ask(self, i: int, message: bytes) -> None:
        try:
            told = self.round.clients[i].unmask(message)[HEADER_BYTES:]
        except (SecureSumError, WireError) as error:
            self.refused[i] = error
            return
        for client, piece in enumerate(split(memoryview(told), SHARE_BYTES)):
            kind = 0 if client in self.stories[i] else 1
            self.shares.setdefault((client, kind), {})[i] = int.from_bytes(piece, "little")

    def secret(self, client: int, kind: int) -> bytes | None:
        """The seed (0) or the mask key (1) of a client, where the server has enough shares of it."""
        shares = self.shares.get((client, kind), {})
        if len(shares) < self.terms.threshold:
            return None
        tellers = sorted(shares)[: self.terms.threshold]
        value = shamir.combine([shares[i] for i in tellers], shamir.weights_at_zero([i + 1 for i in tellers]))
        return value.to_bytes(33, "little")[:32]

    def pair(self, client: int, other: int, secret: bytes) -> Words:
        return pair_mask(self.terms, client, other, secret, self.round.clients[other]._mask_keys[other])

    def vector_of(self, victim: int) -> list[int] | None:
        """A client's own vector, which both of its secrets lay bare."""
        seed, key = self.secret(victim, 0), self.secret(victim, 1)
        if seed is None or key is None:
            return None
        total = self.round.masked(victim) - self_mask(self.terms, victim, seed)
        for other in range(self.terms.clients):
            if other != victim:
                total = total - self.pair(victim, other, key)
        return [int(value) for value in self.terms.ring.reduced(total)]

    def sum_of_those_with_seeds(self) -> tuple[tuple[int, ...], list[int]] | None:
        """The sum over those whose seeds are known, where the mask keys of all others are."""
        members = [i for i in range(self.terms.clients) if self.secret(i, 0) is not None]
        total = np.zeros(self.terms.length, np.uint32)
        for i in range(self.terms.clients):
            seed, key = self.secret(i, 0), self.secret(i, 1)
            if seed is not None:
                total = total + self.round.masked(i) - self_mask(self.terms, i, seed)
            elif key is None:
                return None
            else:
                for other in members:
                    total = total + self.pair(i, other, key)
        return tuple(members), self.terms.ring.reduced(total).tolist()


def without(*gone: int) -> set[int]:
    return set(range(5)) - set(gone)


SHRUNK = {0: without(2, 3), 1: without(2, 4), 2: without(3, 4), 3: without(2, 4), 4: without(3)}


def test_without_signatures_a_split_view_shrinks_the_crowd_below_what_clients_insist_on() -> None:
    """Five clients, three must stay, nobody is in league: the server gets the sum of two. A known limit."""
    attack = SplitView(terms_of(5, threshold=3), SHRUNK)
    assert attack.refused == {}
    assert attack.sum_of_those_with_seeds() == ((0, 1), sum_of(attack.vectors, (0, 1), 32))
    assert all(attack.vector_of(i) is None for i in range(5))  # of a single vector, nothing


def test_with_signatures_a_split_view_gets_no_share_at_all() -> None:
    attack = SplitView(terms_of(5, threshold=3, signed=True), SHRUNK)
    assert sorted(attack.refused) == list(range(5))
    assert all("clients signed who stayed" in str(error) for error in attack.refused.values())
    assert attack.shares == {}
    assert attack.sum_of_those_with_seeds() is None


HALVES = {0: range(5), 1: range(5), 2: (2, 3, 4), 3: (2, 3, 4)}  # to half, client 0 survived; to the others it is gone


@BOTH
def test_a_colluder_of_the_servers_and_two_halves_lay_a_vector_bare_where_the_threshold_is_too_low(
    signed: bool,
) -> None:
    """2·t = n + colluders: signatures alone do not help, and the rule is not stricter than needed."""
    attack = SplitView(terms_of(5, threshold=3, signed=signed), HALVES, colluders=1)
    assert attack.vector_of(0) == attack.vectors[0].tolist()


@BOTH
def test_one_more_and_the_same_server_gets_neither(signed: bool) -> None:
    attack = SplitView(terms_of(5, threshold=4, signed=signed), {**HALVES, 2: range(1, 5), 3: range(1, 5)}, colluders=1)
    assert attack.vector_of(0) is None
    assert attack.sum_of_those_with_seeds() is None
    assert sorted(attack.refused) == ([0, 1, 2, 3] if signed else [])


def test_clients_who_were_told_of_colluders_refuse_a_threshold_that_does_not_protect_from_them() -> None:
    identity = identities_of(5)[0]
    with pytest.raises(SecureSumError, match=r"threshold of 3, and with 1 of 5 clients in league .* it takes 4"):
        SecureClient(
            terms_of(5, threshold=3, signed=True), 0, MemoryLedger(), fewest_clients=2, colluders=1, identity=identity
        )
    SecureClient(terms_of(5, threshold=4, signed=True), 0, MemoryLedger(), colluders=1, identity=identity)


@pytest.mark.parametrize("clients", [3, 4, 5, 6, 9, 10])
def test_the_threshold_is_the_least_with_which_no_two_sets_can_be_signed(clients: int) -> None:
    """Counted out: honest clients are divided in two, colluders sign for both halves."""
    for colluders in range(clients):
        honest = clients - colluders
        largest = max(min(half + colluders, honest - half + colluders) for half in range(honest + 1))
        assert threshold_against(clients, colluders) == max(largest + 1, clients // 2 + 1)


# ------------------------------------------------------------------------------------------------ lies about crowds


@BOTH
def test_a_crowd_of_two_is_refused_before_anything_is_sent(signed: bool) -> None:
    def take_part(terms: Terms, **insisting: int) -> SecureClient:
        identity = identities_of(terms.clients)[0] if signed else None
        return SecureClient(terms, 0, MemoryLedger(), identity=identity, **insisting)

    with pytest.raises(SecureSumError, match=r"2 clients may be all .* insists on 3"):
        take_part(terms_of(2, signed=signed))
    with pytest.raises(SecureSumError, match=r"2 clients may be all .* insists on 3"):
        take_part(terms_of(3, threshold=2, signed=signed))  # three are asked, but two are enough
    with pytest.raises(SecureSumError, match="4 clients, 2 of them in league with the server, may be all"):
        take_part(terms_of(5, threshold=4, signed=signed), colluders=2)
    with pytest.raises(SecureSumError, match="insists on 50"):
        take_part(terms_of(60, signed=signed), fewest_clients=50)
    take_part(terms_of(60, signed=signed), fewest_clients=40, colluders=1)
    for wrong in ({"fewest_clients": 1}, {"fewest_clients": 2.5}, {"colluders": -1}, {"colluders": True}):
        with pytest.raises(InputError, match="expected a number from"):
            take_part(terms_of(60, signed=signed), **wrong)


@BOTH
@pytest.mark.parametrize("phase", [Phase.SHARE, Phase.MASK, Phase.UNMASK])
def test_the_crowd_is_counted_again_in_every_phase(phase: Phase, signed: bool) -> None:
    """What a client insists on is in its state, and holds whatever the terms let it begin with."""
    first = Phase.CONFIRM if signed and phase == Phase.UNMASK else phase
    this = Round(terms_of(5, threshold=3, signed=signed), until=first)
    kept = json.loads(this.clients[0].state())
    assert kept["fewest_clients"] == 2
    this.clients[0]._fewest_clients, this.clients[0]._colluders = 4, 2
    with pytest.raises(SecureSumError, match=r"5 clients, 2 of them in league with the server, .* insists on 4"):
        this.answer(0, first, this.opening[first][0])
    this.clients[0]._colluders = 1
    this.answer(0, first, this.opening[first][0])


def test_a_set_that_shrinks_below_the_threshold_is_refused_in_each_phase() -> None:
    this = Round(terms_of(5, threshold=4, signed=True), until=Phase.CONFIRM)
    client, everybody = this.clients[0], this.opening[Phase.CONFIRM][0]
    with pytest.raises(SecureSumError, match="3 clients stayed, and the terms say at least 4"):
        client.confirm(write(Kind.SURVIVORS, this.terms, 0xFFFF, write_set([0, 1, 2], 5)))
    this.answers(Phase.CONFIRM)
    signatures = {i: message[HEADER_BYTES:] for i, message in this.sent[Phase.CONFIRM].items()}
    with pytest.raises(SecureSumError, match="3 clients signed who stayed, and the terms say at least 4"):
        client.unmask(confirmations(this.terms, {i: signatures[i] for i in (0, 1, 2)}))
    with pytest.raises(ContentError, match="kind 6 came where CONFIRMATIONS"):
        client.unmask(everybody)  # as if there were no signatures
    client.unmask(confirmations(this.terms, {i: signatures[i] for i in (0, 1, 2, 4)}))


def test_who_signs_one_set_tells_no_shares_for_another() -> None:
    """The server shows client 0 a smaller set, and then the signatures of those who were told the larger one."""
    this = Round(terms_of(5, threshold=3, signed=True), until=Phase.CONFIRM)
    client = this.clients[0]
    client.confirm(write(Kind.SURVIVORS, this.terms, 0xFFFF, write_set([0, 1, 2], 5)))
    signatures = {i: this.answer(i, Phase.CONFIRM, this.opening[Phase.CONFIRM][i])[HEADER_BYTES:] for i in (1, 2, 3, 4)}
    with pytest.raises(ContentError, match="client 3 is said to have signed who stayed, but did not stay"):
        client.unmask(confirmations(this.terms, signatures))
    mine = {0: client._signature(b"survivors", client._survivors_text())}
    with pytest.raises(ContentError, match="client 1 did not sign that this client's set of survivors is its own"):
        client.unmask(confirmations(this.terms, {**mine, 1: signatures[1], 2: signatures[2]}))


# ----------------------------------------------------------------------------------------------- replays and forgery


@BOTH
def test_an_old_round_is_not_played_again_by_a_process_that_was_restarted(signed: bool) -> None:
    terms = terms_of(4, signed=signed)
    this = Round(terms)
    for i in range(4):
        with pytest.raises(SecureSumError, match="summed once"):
            SecureClient(terms, i, this.ledgers[i], identity=this.identities[i])
    later = Round(terms_of(4, round=4, signed=signed), until=Phase.SHARE)
    with pytest.raises(SessionMismatchError):
        later.answer(0, Phase.SHARE, this.opening[Phase.SHARE][0])


def test_keys_and_signatures_of_another_round_are_refused() -> None:
    """Whose mask key the server rebuilt in a round that it left: to play it again would lift its masks."""
    old = Round(terms_of(4, round=2, signed=True), until=Phase.SHARE)
    this = Round(terms_of(4, signed=True), until=Phase.SHARE)
    size, head = advertised_bytes(this.terms), HEADER_BYTES + 1
    message = this.opening[Phase.SHARE][0]
    replayed = old.sent[Phase.ADVERTISE][2][HEADER_BYTES:]
    with pytest.raises(ContentError, match="client 2 did not sign these keys, in this round"):
        this.answer(0, Phase.SHARE, message[: head + 2 * size] + replayed + message[head + 3 * size :])
    before, now = (Round(terms_of(4, round=k, signed=True), until=Phase.CONFIRM) for k in (2, 3))
    for this in (before, now):
        this.answers(Phase.CONFIRM)
    mixed = {**now.sent[Phase.CONFIRM], 1: before.sent[Phase.CONFIRM][1]}
    message = confirmations(now.terms, {i: each[HEADER_BYTES:] for i, each in mixed.items()})
    with pytest.raises(ContentError, match="client 1 did not sign that"):
        now.clients[0].unmask(message)


def test_forged_signatures_are_refused_by_clients_and_by_an_honest_server() -> None:
    this = Round(terms_of(4, signed=True), until=Phase.CONFIRM)
    this.answers(Phase.CONFIRM)
    good = {i: message[HEADER_BYTES:] for i, message in this.sent[Phase.CONFIRM].items()}
    forged = [bytes(64), good[2], good[1][:-1] + bytes([good[1][-1] ^ 1]), b"\xff" * 64]
    for signature in forged:
        with pytest.raises(ContentError, match="client 1 did not sign"):
            this.clients[0].unmask(confirmations(this.terms, {**good, 1: signature}))
        with pytest.raises(ContentError, match="signature that came from client 1"):
            this.server.receive(1, write(Kind.CONFIRMED, this.terms, 1, signature))
    this.clients[0].unmask(confirmations(this.terms, good))
    server, advertised = SecureServer(this.terms, identities_of(4)[0].roster), this.sent[Phase.ADVERTISE]  # type: ignore[union-attr]
    with pytest.raises(ContentError, match="signature that came from client 1"):
        server.receive(1, advertised[1][:-64] + advertised[2][-64:])


def test_a_server_that_leaves_signatures_out_is_refused_by_who_insists_on_them() -> None:
    with pytest.raises(SecureSumError, match="insists on them"):
        SecureClient(terms_of(4), 0, MemoryLedger(), identity=identities_of(4)[0])
    with pytest.raises(SecureSumError, match="no identity to sign with"):
        SecureClient(terms_of(4, signed=True), 0, MemoryLedger())


@BOTH
def test_shares_are_told_once_also_by_a_client_that_was_set_back(signed: bool) -> None:
    """Asked twice, once with a client among the living and once without, it would tell both of its shares."""
    this = Round(terms_of(5, threshold=3, signed=signed), until=Phase.UNMASK)
    before = this.clients[0].state()
    this.answer(0, Phase.UNMASK, this.opening[Phase.UNMASK][0])
    others = write(Kind.SURVIVORS, this.terms, 0xFFFF, write_set([0, 1, 2, 3], 5))
    for message in (this.opening[Phase.UNMASK][0], others):
        with pytest.raises(SecureSumError, match="answered once"):
            this.clients[0].unmask(message)
    with pytest.raises(SecureSumError, match="an older state of the client came back"):
        SecureClient.from_state(before, this.ledgers[0], identity=this.identities[0])


@BOTH
def test_two_copies_of_a_client_do_not_mask_two_vectors_with_one_mask(signed: bool) -> None:
    """The difference of the two answers would be that of the vectors."""
    this = Round(terms_of(4, signed=signed), until=Phase.MASK)
    copies = [
        SecureClient.from_state(this.clients[0].state(), this.ledgers[0], identity=this.identities[0]) for _ in range(2)
    ]
    copies[0].mask(this.opening[Phase.MASK][0], this.vectors[0])
    with pytest.raises(SecureSumError, match="3 phases of round 3 were answered"):
        copies[1].mask(this.opening[Phase.MASK][0], this.vectors[0] + np.uint64(1))
