"""The sum is exact, drop-outs are survived up to the limit, and beyond it, or asked for more, nobody tells anything."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import (
    MemoryLedger,
    Phase,
    SecureClient,
    Terms,
    bytes_down,
    bytes_up,
    default_threshold,
    primitives,
    secure_sum,
)
from fedmpdd.secure_sum.messages import HEADER_BYTES, Kind, phases_of, write, write_set
from tests.secure_sum.rounds import Round, some_vectors, sum_of, terms_of

# ------------------------------------------------------------------------------------------------- exact sums


@settings(max_examples=25)
@given(st.data(), st.integers(2, 9), st.integers(1, 40), st.integers(16, 64))
def test_the_sum_is_exact_whoever_drops_out_up_to_the_limit(
    data: st.DataObject, clients: int, length: int, bits: int
) -> None:
    threshold = data.draw(st.integers(clients // 2 + 1, clients))
    leavers = data.draw(st.lists(st.integers(0, clients - 1), unique=True, max_size=clients - threshold))
    drop_after = {i: data.draw(st.sampled_from([None, Phase.ADVERTISE, Phase.SHARE, Phase.MASK])) for i in leavers}
    vectors = some_vectors(clients, length, bits, seed=clients)
    result = secure_sum(vectors, threshold, bits, drop_after)
    # Who leaves after its masked vector came is in the sum; who leaves before is not.
    assert result.included == tuple(i for i in range(clients) if drop_after.get(i, Phase.DONE) in (2, Phase.DONE))
    assert result.total.tolist() == sum_of(vectors, result.included, bits)
    assert result.total.dtype == np.uint64


def test_a_larger_round_with_a_third_of_the_clients_gone() -> None:
    vectors = some_vectors(30, 100, 32)
    drop_after: dict[int, Phase | None] = {0: None, 29: Phase.ADVERTISE, 7: Phase.SHARE, 8: Phase.SHARE, 9: Phase.MASK}
    drop_after |= dict.fromkeys(range(20, 24), Phase.SHARE)
    result = secure_sum(vectors, drop_after=drop_after)
    assert len(drop_after) == 30 - default_threshold(30)
    assert result.total.tolist() == sum_of(vectors, result.included, 32)


@pytest.mark.parametrize("phase", [None, Phase.ADVERTISE, Phase.SHARE, Phase.MASK])
@pytest.mark.parametrize("clients", [2, 3, 6, 7])
def test_one_more_drop_out_stops_the_round(clients: int, phase: Phase | None) -> None:
    most = clients - default_threshold(clients)
    vectors = some_vectors(clients, 3, 32)
    secure_sum(vectors, drop_after=dict.fromkeys(range(most), phase))
    with pytest.raises(SecureSumError, match=r"no vector was revealed"):
        secure_sum(vectors, drop_after=dict.fromkeys(range(most + 1), phase))


def test_bytes_are_counted_and_known_beforehand() -> None:
    result = secure_sum(some_vectors(9, 33, 20), ring_bits=20)
    terms = terms_of(9, 33, ring_bits=20)
    assert {tuple(row) for row in result.up.tolist()} == {bytes_up(terms)} == {(80, 800, 16 + 83, 313)}
    assert {tuple(row) for row in result.down.tolist()} == {bytes_down(terms)} == {(52, 594, 770, 18)}


# ------------------------------------------------------------------------------------------ clients that refuse


def survivors(terms: Terms, *members: int) -> bytes:
    return write(Kind.SURVIVORS, terms, 0xFFFF, write_set(members, terms.clients))


def test_a_client_tells_of_each_peer_one_kind_of_share_and_only_once() -> None:
    terms = terms_of(4, threshold=3)
    this = Round(terms, until=Phase.UNMASK)
    client = this.clients[0]
    kept = client._shares.copy()
    told = client.unmask(survivors(terms, 0, 1, 2))[HEADER_BYTES:]
    shares = [int.from_bytes(told[k : k + 33], "little") for k in range(0, len(told), 33)]
    assert shares == [kept[0][0], kept[1][0], kept[2][0], kept[3][1]]
    for again in (survivors(terms, 0, 1, 2), survivors(terms, 0, 1, 3), survivors(terms, 0, 1, 2, 3)):
        with pytest.raises(SecureSumError, match="answered once"):
            client.unmask(again)
    assert client._seed == client._mask_secret == b""


def test_a_client_refuses_sets_that_are_too_small_or_leave_it_out_or_name_strangers() -> None:
    terms = terms_of(5, threshold=3)
    this = Round(terms, until=Phase.ADVERTISE)
    for i in range(4):  # client 4 never comes
        this.server.receive(i, this.clients[i].advertise())
    keys = this.server.advance()
    for i in range(4):
        this.server.receive(i, this.clients[i].share(keys[i]))
    inbox = this.server.advance()
    client = this.clients[0]
    client.mask(inbox[0], this.vectors[0])
    with pytest.raises(SecureSumError, match="2 clients stayed"):
        client.unmask(survivors(terms, 0, 1))
    with pytest.raises(SecureSumError, match="does not count this client"):
        client.unmask(survivors(terms, 1, 2, 3))
    with pytest.raises(ContentError, match="client 4 is said to have stayed, but never shared"):
        client.unmask(survivors(terms, 0, 1, 2, 4))
    client.unmask(survivors(terms, 0, 1, 2))  # what was refused told nothing, so that the right one is answered
    with pytest.raises(SecureSumError, match="2 clients shared"):
        this.clients[1].mask(write(Kind.INBOX, terms, 1, write_set([0, 1], 5), bytes(94)), this.vectors[1])
    with pytest.raises(ContentError, match="client 4 is said to have shared, but sent no keys"):
        this.clients[1].mask(write(Kind.INBOX, terms, 1, write_set([0, 1, 4], 5), bytes(188)), this.vectors[1])


def test_a_client_refuses_too_few_keys_changed_keys_and_keys_that_others_were_not_told() -> None:
    terms = terms_of(3)
    this = Round(terms, until=Phase.SHARE)
    message = this.opening[Phase.SHARE][0]
    own = HEADER_BYTES + 1
    with pytest.raises(SecureSumError, match="2 clients sent keys"):
        this.clients[0].share(write(Kind.KEYS, terms, 0xFFFF, write_set([0, 1], 3), message[own : own + 128]))
    with pytest.raises(ContentError, match="other keys than this client sent"):
        this.clients[1].share(message[: own + 64] + message[own + 96 : own + 128] + bytes(32) + message[own + 128 :])
    with pytest.raises(ContentError, match="are the same"):
        this.clients[0].share(message[: own + 128] + message[own + 64 : own + 128])
    # A key of client 2's that client 0 alone is told of: what client 1 sent does not open any more.
    theirs = primitives.public_of(primitives.new_secret())
    for i in range(3):
        changed = message[: own + 128] + theirs + message[own + 160 :] if i == 0 else message
        this.server.receive(i, this.clients[i].share(changed))
    inbox = this.server.advance()
    with pytest.raises(ContentError, match="client 1 sent does not open"):
        this.clients[0].mask(inbox[0], this.vectors[0])


def test_phases_are_answered_in_order_and_rounds_once() -> None:
    ledger = MemoryLedger()
    SecureClient(terms_of(3, round=2), 0, ledger).advertise()
    client = SecureClient(terms_of(3), 0, ledger)
    with pytest.raises(SecureSumError, match="MASK was asked"):
        client.mask(b"", np.zeros(5, np.uint64))
    client.advertise()
    with pytest.raises(SecureSumError, match="ADVERTISE was asked"):
        client.advertise()
    for last in (2, 3):
        with pytest.raises(SecureSumError, match="summed once"):
            SecureClient(terms_of(3, round=last), 0, ledger)


def restored(this: Round, i: int, state: bytes) -> SecureClient:
    return SecureClient.from_state(state, this.ledgers[i], identity=this.identities[i])


@pytest.mark.parametrize(
    ("clients", "neighbours", "signed"),
    [(3, 0, False), (6, 2, False), (4, 0, True)],
    ids=["all", "neighbours", "signatures"],
)
def test_a_client_that_keeps_its_state_on_disk_goes_on_where_it_was(
    clients: int, neighbours: int, signed: bool
) -> None:
    terms = terms_of(clients, neighbours=neighbours, signed=signed)
    everybody = tuple(range(clients))
    vectors = some_vectors(clients, 5, 32)
    this = Round(terms, vectors, until=Phase.ADVERTISE)
    for phase in phases_of(terms):
        this.clients = [restored(this, i, client.state()) for i, client in enumerate(this.clients)]
        this.play(phase)
    assert this.server.finish().tolist() == sum_of(vectors, everybody, 32)
    with pytest.raises(SecureSumError, match="answered once"):
        restored(this, 0, this.clients[0].state()).unmask(survivors(terms, *everybody))
    whole = json.loads(this.clients[0].state())
    for state in (b"", b"{}", b"[]", b"\xff", json.dumps({**whole, "phase": 9}).encode()):
        with pytest.raises(InputError, match="not the state"):
            SecureClient.from_state(state, MemoryLedger(), identity=this.identities[0])


def test_a_state_of_many_brackets_is_no_state() -> None:
    with pytest.raises(InputError, match="not the state"):
        SecureClient.from_state(b"[" * 100_000, MemoryLedger())
