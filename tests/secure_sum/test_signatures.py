"""Rounds with signatures: sums as exact, one more phase, and everything that is signed signed for one purpose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import (
    Identity,
    MemoryLedger,
    Phase,
    Roster,
    SecureClient,
    SecureServer,
    Terms,
    bytes_down,
    bytes_up,
    primitives,
    read_terms,
    secure_sum,
)
from fedmpdd.secure_sum.client import survivors_text
from tests.secure_sum.rounds import Round, identities_of, some_vectors, sum_of, terms_of
from tests.secure_sum.test_messages import DOCUMENT

LEAVING = [None, Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.CONFIRM]


@settings(max_examples=20)
@given(st.data(), st.integers(2, 8))
def test_the_sum_is_exact_whoever_drops_out_up_to_the_limit(data: st.DataObject, clients: int) -> None:
    threshold = data.draw(st.integers(clients // 2 + 1, clients))
    leavers = data.draw(st.lists(st.integers(0, clients - 1), unique=True, max_size=clients - threshold))
    drop_after = {i: data.draw(st.sampled_from(LEAVING)) for i in leavers}
    vectors = some_vectors(clients, 7, 32, seed=clients)
    result = secure_sum(vectors, threshold, 32, drop_after, signed=True)
    late = (Phase.MASK, Phase.CONFIRM, Phase.DONE)
    assert result.included == tuple(i for i in range(clients) if drop_after.get(i, Phase.DONE) in late)
    assert result.total.tolist() == sum_of(vectors, result.included, 32)


@pytest.mark.parametrize("phase", LEAVING)
def test_one_more_drop_out_stops_the_round(phase: Phase | None) -> None:
    vectors = some_vectors(7, 3, 32)
    secure_sum(vectors, drop_after=dict.fromkeys(range(2), phase), signed=True)
    with pytest.raises(SecureSumError, match="no vector was revealed"):
        secure_sum(vectors, drop_after=dict.fromkeys(range(3), phase), signed=True)


def test_bytes_are_counted_and_known_beforehand() -> None:
    result = secure_sum(some_vectors(9, 33, 20), ring_bits=20, signed=True)
    terms = terms_of(9, 33, ring_bits=20, signed=True)
    assert {tuple(row) for row in result.up.tolist()} == {bytes_up(terms)} == {(144, 800, 99, 80, 313)}
    down = (52, 18 + 9 * 128, 18 + 8 * 94, 18, 18 + 7 * 64)  # seven signatures are the threshold
    assert {tuple(row) for row in result.down.tolist()} == {bytes_down(terms)} == {down}


def test_terms_say_it_in_a_byte_that_was_zero() -> None:
    plain, signed = terms_of(9), terms_of(9, signed=True)
    differing = [k for k in range(36) if plain.to_bytes()[k] != signed.to_bytes()[k]]
    assert differing == [29]
    assert signed.to_bytes()[29] == 1
    assert read_terms(SecureServer(signed, identities_of(9)[0].roster).open()) == signed  # type: ignore[union-attr]
    with pytest.raises(ContentError, match="never writes"):
        Terms.from_bytes(plain.to_bytes()[:29] + b"\2" + plain.to_bytes()[30:])
    with pytest.raises(InputError, match="expected True or False"):
        terms_of(9, signed=2)
    with pytest.raises(InputError, match="its colluders surround a client, and no signature shows it"):
        terms_of(9, signed=True, neighbours=4)


def test_a_roster_names_every_client_once() -> None:
    keys = [primitives.verify_key_of(primitives.new_secret()) for _ in range(4)]
    assert Roster.of(dict(enumerate(keys))) == Roster.of(keys)
    assert Roster.of(keys).digest != Roster.of(keys[::-1]).digest
    for wrong, words in (
        ([*keys[:3], keys[0]], "one verify key"),
        ([*keys[:3], b"short"], "32 bytes"),
        ({0: keys[0], 2: keys[1]}, "expected 0, 1, 2"),
    ):
        with pytest.raises(InputError, match=words):
            Roster.of(wrong)
    terms = terms_of(3, signed=True)
    with pytest.raises(InputError, match="of 4 clients and the round of 3"):
        SecureServer(terms, Roster.of(keys))
    for arguments in ((terms, None), (terms_of(4), Roster.of(keys))):
        with pytest.raises(InputError, match="pass both, or neither"):
            SecureServer(*arguments)


def test_a_client_signs_as_itself_and_its_key_is_nowhere_else() -> None:
    terms = terms_of(4, signed=True)
    first, second = identities_of(4)[:2]
    assert first is not None
    with pytest.raises(InputError, match="another verify key for client 1"):
        SecureClient(terms, 1, MemoryLedger(), identity=first)
    client = SecureClient(terms, 0, MemoryLedger(), identity=first)
    assert first.signing_key.hex() not in client.state().decode()
    assert first.signing_key.hex() not in repr(first)
    assert repr(first.signing_key) not in repr(first)
    with pytest.raises(SecureSumError, match="no identity to sign with"):
        SecureClient.from_state(client.state(), MemoryLedger())
    with pytest.raises(InputError, match="another verify key"):
        SecureClient.from_state(client.state(), MemoryLedger(), identity=second)


def test_clients_with_different_rosters_believe_nothing_of_each_other() -> None:
    """A roster that the server named to one of them alone."""
    this = Round(terms_of(4, signed=True), until=Phase.SHARE)
    first = this.identities[0]
    assert first is not None
    other = Roster((*first.roster.verify_keys[:3], primitives.verify_key_of(primitives.new_secret())))
    this.clients[0]._identity = Identity(first.signing_key, other)
    with pytest.raises(ContentError, match="did not sign these keys"):
        this.answer(0, Phase.SHARE, this.opening[Phase.SHARE][0])


def test_a_signature_is_good_for_one_purpose_round_client_and_set() -> None:
    identity = identities_of(4)[0]
    assert identity is not None
    terms, roster, view = terms_of(4, signed=True), identity.roster, bytes(32)
    text = survivors_text(terms, view, range(4), (0, 1, 2))
    signature = identity.sign(b"survivors", terms, 0, text)
    assert roster.is_signed(signature, b"survivors", terms, 0, text)
    later = terms_of(4, round=4, signed=True)
    for purpose, round_terms, client, content in (
        (b"advertised", terms, 0, text),
        (b"survivors", later, 0, text),
        (b"survivors", terms, 1, text),
        (b"survivors", terms, 0, survivors_text(terms, view, range(4), (0, 1, 3))),
        (b"survivors", terms, 0, survivors_text(terms, view, range(3), (0, 1, 2))),
        (b"survivors", terms, 0, survivors_text(terms, b"\1" * 32, range(4), (0, 1, 2))),
    ):
        assert not roster.is_signed(signature, purpose, round_terms, client, content)


def test_a_phase_that_the_round_has_not_cannot_be_left_after() -> None:
    with pytest.raises(InputError, match="drop_after says CONFIRM"):
        secure_sum(np.zeros((4, 3), np.uint64), drop_after={1: Phase.CONFIRM})


def test_known_answers_are_those_of_the_document() -> None:
    """Terms, roster and both signatures of client 2, whose signing keys are `00 …`, `01 …`, … 32 times."""
    terms = Terms(bytes(range(16)), 7, 5, 4, 4, 32, signed=True)
    secrets = [bytes([i]) * 32 for i in range(5)]
    roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets])
    identity = Identity(secrets[2], roster)
    keys = primitives.public_of(bytes(range(1, 33))) + primitives.public_of(bytes(range(65, 97)))
    answers = [
        terms.digest,
        roster.digest,
        identity.sign(b"advertised", terms, 2, keys),
        identity.sign(b"survivors", terms, 2, survivors_text(terms, bytes(32), range(5), (0, 1, 2, 4))),
    ]
    for answer in answers:
        assert f"`{answer.hex()}`" in DOCUMENT
