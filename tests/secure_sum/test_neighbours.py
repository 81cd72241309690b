"""Sums in which a client shares its secrets with a few others: as exact, and enough others to be as safe."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import (
    MemoryLedger,
    Phase,
    SecureClient,
    Terms,
    bytes_down,
    bytes_up,
    enough_neighbours,
    primitives,
    secure_sum,
    shamir,
)
from fedmpdd.secure_sum.client import pair_mask, self_mask
from fedmpdd.secure_sum.messages import HEADER_BYTES, SEALED_BYTES, Kind, write, write_set
from fedmpdd.secure_sum.neighbours import broken_promises
from tests.secure_sum.rounds import Round, some_vectors, sum_of, terms_of

# --------------------------------------------------------------------------------------------------- the circle


@given(st.integers(4, 60), st.data())
def test_who_holds_my_shares_is_whose_shares_i_hold(clients: int, data: st.DataObject) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 2) // 2))
    terms = terms_of(clients, neighbours=neighbours, round=data.draw(st.integers(0, 9)))
    holders = [terms.holders(client) for client in range(clients)]
    for client, mine in enumerate(holders):
        assert mine == sorted(set(mine))
        assert len(mine) == terms.most_holders == neighbours + 1
        assert client in mine
        assert all(client in holders[other] for other in mine)


def test_the_order_is_another_in_every_round_and_run() -> None:
    circles = {tuple(Terms(bytes([run] * 16), k, 50, 1, neighbours=4).holders(7)) for run in range(5) for k in range(5)}
    assert len(circles) == 25


def test_all_places_are_alike() -> None:
    """Who stands next to client 0, of 20 others, in 2,000 rounds, always the same ones: it passes or it does not."""
    counts = np.zeros(21)
    for k in range(2_000):
        counts[terms_of(21, neighbours=2, round=k).holders(0)] += 1
    assert counts[0] == 2_000
    assert stats.chisquare(counts[1:]).pvalue > 1e-9


@pytest.mark.parametrize("neighbours", [-2, 3, 8, 10, True, 2.0])
def test_neighbours_are_an_even_number_of_others(neighbours: int) -> None:
    with pytest.raises(InputError, match="expected an even number below 8"):
        terms_of(9, neighbours=neighbours)


def test_terms_of_everybody_are_what_they_were() -> None:
    terms = terms_of(9)
    assert terms.to_bytes()[29:32] == bytes(3)
    assert terms_of(9, neighbours=6).to_bytes()[29:32] == b"\0\6\0"
    assert terms.digest != terms_of(9, neighbours=6).digest


# ------------------------------------------------------------------------------------------------- exact sums


PHASES = (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK)
Leaving = dict[int, Phase | None]


def play(terms: Terms, vectors: NDArray[np.uint64], drop_after: Leaving) -> Round:
    """A round that some leave after a phase, None if they never come; SecureSumError if it stops."""
    this = Round(terms, vectors, until=Phase.ADVERTISE)
    for phase in PHASES:
        for i, message in this.opening[phase].items():
            last = drop_after.get(i, Phase.DONE)
            if last is not None and phase <= last:
                this.server.receive(i, this.answer(i, phase, message))
        if phase < Phase.UNMASK:
            this.opening[Phase(phase + 1)] = this.server.advance()
    this.total = this.server.finish()
    return this


def comes_to_its_end(terms: Terms, drop_after: Leaving) -> bool:
    """Whether the rules of the page let it."""
    answered = [
        {i for i in range(terms.clients) if (last := drop_after.get(i, Phase.DONE)) is not None and phase <= last}
        for phase in PHASES
    ]
    of_whom = [answered[0], answered[1], answered[1], answered[1]]
    return all(len(there) >= terms.threshold for there in answered[:3]) and all(
        len(there.intersection(terms.holders(i))) > terms.neighbours // 2
        for there, secrets in zip(answered, of_whom, strict=True)
        for i in secrets
    )


@settings(max_examples=60)
@given(st.data(), st.integers(4, 14))
def test_the_sum_is_exact_where_there_should_be_one_and_else_there_is_none(data: st.DataObject, clients: int) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 2) // 2))
    leavers = data.draw(st.lists(st.integers(0, clients - 1), unique=True, max_size=clients // 2))
    drop_after: Leaving = {i: data.draw(st.sampled_from([None, *PHASES[:3]])) for i in leavers}
    vectors = some_vectors(clients, 3, 32, seed=clients)
    terms = terms_of(clients, 3, threshold=clients // 2 + 1, neighbours=neighbours, round=data.draw(st.integers(0, 99)))
    if not comes_to_its_end(terms, drop_after):
        with pytest.raises(SecureSumError):
            play(terms, vectors, drop_after)
        return
    this = play(terms, vectors, drop_after)
    included = tuple(i for i in range(clients) if drop_after.get(i, Phase.DONE) in (Phase.MASK, Phase.DONE))
    assert this.server.included == included
    assert this.total.tolist() == sum_of(vectors, included, 32)


def test_a_round_of_many_survives_what_it_should() -> None:
    """The neighbours that a fifth gone need; that they do not suffice has probability 2^-30."""
    clients, gone = 200, 40
    neighbours = enough_neighbours(clients, gone, 20)
    assert 0 < neighbours < 80
    generator = np.random.default_rng(1)
    phases = [None, Phase.ADVERTISE, Phase.SHARE, Phase.MASK]
    leavers = generator.permutation(clients)[:gone].tolist()
    drop_after = {i: phases[number % 4] for number, i in enumerate(leavers)}
    vectors = some_vectors(clients, 8, 32)
    result = secure_sum(vectors, clients - gone, 32, drop_after, neighbours)
    assert result.total.tolist() == sum_of(vectors, result.included, 32)


@pytest.mark.parametrize("phase", [None, Phase.ADVERTISE, Phase.SHARE, Phase.MASK])
def test_too_few_of_those_who_hold_somebodys_shares_stop_the_round(phase: Phase | None) -> None:
    terms = terms_of(12, neighbours=4)
    others = [holder for holder in terms.holders(5) if holder != 5]
    leaving: Leaving = dict.fromkeys(
        others[:3], phase
    )  # client 5 and one more are left, of five, of whom three are needed
    at = "ADVERTISE" if phase is None else Phase(phase + 1).name
    words = rf"2 of the 5 who hold shares of client \d+'s secrets answered {at}, 3 are needed: no vector was"
    with pytest.raises(SecureSumError, match=words):
        play(terms, some_vectors(12, 5, 32), leaving)


def test_the_secrets_of_who_vanished_need_holders_too() -> None:
    terms = terms_of(12, neighbours=4)
    circle = terms._circle[0].tolist()
    # The one in the middle and both ends of its stretch: of the middle one's five holders two are left, of all others
    # three or more.
    leaving: Leaving = dict.fromkeys([circle[3], circle[5], circle[7]], Phase.SHARE)
    with pytest.raises(SecureSumError, match=f"2 of the 5 who hold shares of client {circle[5]}'s"):
        play(terms, some_vectors(12, 5, 32), leaving)
    del leaving[circle[7]]
    play(terms, some_vectors(12, 5, 32), leaving)


def test_who_stays_silent_in_the_end_is_missed_only_by_its_neighbours() -> None:
    """Whom the sum is of is settled by then, so that no crowd is needed, and none is promised to be missing."""
    terms = terms_of(12, neighbours=4, threshold=10)
    circle, vectors = terms._circle[0].tolist(), some_vectors(12, 5, 32)
    silent: Leaving = dict.fromkeys([circle[0], circle[4], circle[8]], Phase.MASK)
    assert play(terms, vectors, silent).total.tolist() == sum_of(vectors, tuple(range(12)), 32)


@pytest.mark.parametrize("neighbours", [0, 6])
def test_as_many_shares_as_are_needed_give_a_secret_back_and_one_less_does_not(neighbours: int) -> None:
    terms = terms_of(11, neighbours=neighbours)
    this = Round(terms, until=Phase.UNMASK)
    needed = terms.share_threshold
    assert needed == (4 if neighbours else 8)
    holders = terms.holders(2)
    for which, secret in enumerate((this.clients[2]._seed, this.clients[2]._mask_secret)):
        for count in (needed, needed - 1):
            points = holders[:count]
            shares = [this.clients[i]._shares[2][which] for i in points]
            found = shamir.combine(shares, shamir.weights_at_zero([i + 1 for i in points]))
            assert (found == int.from_bytes(secret, "little")) == (count == needed)


def test_bytes_are_counted_and_known_beforehand() -> None:
    result = secure_sum(some_vectors(30, 33, 20), ring_bits=20, neighbours=8)
    terms = terms_of(30, 33, ring_bits=20, neighbours=8)
    assert {tuple(row) for row in result.up.tolist()} == {bytes_up(terms)} == {(80, 48 + 8 * 94, 16 + 83, 16 + 9 * 33)}
    assert {tuple(row) for row in result.down.tolist()} == {bytes_down(terms)}
    assert bytes_down(terms) == (52, 20 + 9 * 64, 20 + 8 * 94, 20)


# ------------------------------------------------------------------------------------------ clients that refuse


@pytest.mark.parametrize("told", ["channel key", "mask key", "who is there"])
def test_what_two_were_told_differently_does_not_open(told: str) -> None:
    terms = terms_of(7, neighbours=2, threshold=4)
    this = Round(terms, until=Phase.SHARE)
    victim = 0
    peer = next(holder for holder in terms.holders(victim) if holder != victim)
    for i, message in this.opening[Phase.SHARE].items():
        if i == victim and told == "who is there":
            away = next(other for other in range(7) if other not in terms.holders(victim))
            there = write_set(set(range(7)) - {away}, 7)
            message = message[:HEADER_BYTES] + there + message[HEADER_BYTES + 1 :]
        elif i == victim:
            at = HEADER_BYTES + 1 + 64 * terms.holders(victim).index(peer) + (32 if told == "mask key" else 0)
            message = message[:at] + primitives.public_of(primitives.new_secret()) + message[at + 32 :]
        this.server.receive(i, this.answer(i, Phase.SHARE, message))
    inbox = this.server.advance()
    with pytest.raises(
        ContentError, match=f"client {peer} sent does not open|is said to have shared, but sent no keys"
    ):
        this.clients[victim].mask(inbox[victim], this.vectors[victim])
    with pytest.raises(ContentError, match=f"client {victim} sent does not open"):
        this.clients[peer].mask(inbox[peer], this.vectors[peer])


def test_a_client_without_enough_neighbours_tells_nothing() -> None:
    terms = terms_of(9, neighbours=4, threshold=5)
    this = Round(terms, until=Phase.ADVERTISE)
    away = [holder for holder in terms.holders(0) if holder != 0][:3]
    this.answers(Phase.ADVERTISE)
    for i in set(range(9)) - set(away):
        this.server.receive(i, this.sent[Phase.ADVERTISE][i])
    with pytest.raises(SecureSumError, match="who hold shares"):
        this.server.advance()
    this.server._check_enough = lambda: None  # type: ignore[method-assign]
    with pytest.raises(SecureSumError, match="2 who hold this client's shares sent keys"):
        this.clients[0].share(this.server.advance()[0])


def test_a_client_looks_at_its_neighbours_and_at_all_others_in_every_phase() -> None:
    terms = terms_of(9, neighbours=4, threshold=5)
    mine = terms.holders(0)
    stranger = next(i for i in range(9) if i not in mine)
    this = Round(terms, until=Phase.ADVERTISE)
    for phase in PHASES[:2]:
        for i, message in this.opening[phase].items():
            if i != stranger:  # who never comes
                this.server.receive(i, this.answer(i, phase, message))
        this.opening[Phase(phase + 1)] = this.server.advance()
    client = SecureClient.from_state(this.clients[0].state(), this.ledgers[0])
    few = set(range(9)) - {stranger} - set([holder for holder in mine if holder != 0][:3])
    everybody = write_set(range(9), 9)
    with pytest.raises(SecureSumError, match="2 who hold this client's shares shared"):
        client.mask(write(Kind.INBOX, terms, 0, write_set(few, 9), bytes(SEALED_BYTES)), this.vectors[0])
    with pytest.raises(ContentError, match=f"client {stranger} is said to have shared"):
        client.mask(write(Kind.INBOX, terms, 0, everybody, bytes(4 * SEALED_BYTES)), this.vectors[0])
    client.mask(this.opening[Phase.MASK][0], this.vectors[0])
    client = SecureClient.from_state(client.state(), this.ledgers[0])
    with pytest.raises(SecureSumError, match="2 who hold this client's shares stayed"):
        client.unmask(write(Kind.SURVIVORS, terms, 0xFFFF, write_set(few, 9)))
    with pytest.raises(ContentError, match=f"client {stranger} is said to have stayed"):
        client.unmask(write(Kind.SURVIVORS, terms, 0xFFFF, everybody))
    client.unmask(write(Kind.SURVIVORS, terms, 0xFFFF, write_set(set(range(9)) - {stranger}, 9)))


def test_who_shared_not_is_not_taken_for_one_who_stayed() -> None:
    terms = terms_of(9, neighbours=4, threshold=5)
    stranger = next(i for i in range(9) if i not in terms.holders(0))
    this = Round(terms, until=Phase.SHARE)
    for i, message in this.opening[Phase.SHARE].items():
        if i != stranger:
            this.server.receive(i, this.answer(i, Phase.SHARE, message))
    client = this.clients[0]
    client.mask(this.server.advance()[0], this.vectors[0])
    with pytest.raises(ContentError, match=f"client {stranger} is said to have stayed, but never shared"):
        client.unmask(write(Kind.SURVIVORS, terms, 0xFFFF, write_set(range(9), 9)))


def test_a_client_may_refuse_to_have_few_neighbours() -> None:
    terms = terms_of(100, neighbours=22, threshold=90)
    SecureClient(terms, 0, MemoryLedger())
    SecureClient(terms, 0, MemoryLedger(), colluders=0)
    with pytest.raises(SecureSumError, match="with 10 of 100 clients in league with the server it takes 32"):
        SecureClient(terms, 0, MemoryLedger(), colluders=10)
    # What the terms let go counts as gone, whatever the server meant the neighbours for.
    with pytest.raises(SecureSumError, match="it takes"):
        SecureClient(terms_of(60, neighbours=2), 0, MemoryLedger(), colluders=0)
    with pytest.raises(SecureSumError, match="it takes everybody"):
        SecureClient(terms_of(100, neighbours=98, threshold=90), 0, MemoryLedger(), colluders=60)


# ------------------------------------------------------------------------------------------ what the server sees


def without_self_masks(this: Round) -> NDArray[np.uint32]:
    """What is left of all vectors when the server has the seeds: what it learns of those who stay."""
    terms = this.terms
    rows = [this.masked(i) - self_mask(terms, i, this.clients[i]._seed) for i in range(terms.clients)]
    return np.stack(rows).astype(np.uint32)


def test_all_but_one_of_a_circle_look_uniform_and_all_give_the_sum() -> None:
    """Five clients who talk to two each, 100 rounds; three chi-square tests, a false alarm each with 1e-9."""
    rounds = [
        Round(terms_of(5, 64, neighbours=2, round=k), np.full((5, 64), 77, np.uint64), until=Phase.UNMASK)
        for k in range(100)
    ]
    seen = np.stack([without_self_masks(this) for this in rounds])
    for members in ([0], [0, 1, 2], [0, 1, 2, 3]):
        octets = seen[:, members].sum(axis=1, dtype=np.uint32).view(np.uint8).ravel()
        assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > 1e-9
    assert (seen.sum(axis=1, dtype=np.uint32) == 5 * 77).all()


def test_a_circle_that_is_cut_gives_away_the_sums_of_its_pieces() -> None:
    """Why there must be enough neighbours: with two, two that are gone or in league are a cut on each side."""
    terms = terms_of(8, 6, neighbours=2)
    vectors = some_vectors(8, 6, 32)
    this = Round(terms, vectors, until=Phase.UNMASK)
    order = [0]
    while len(order) < 8:
        order.append(next(holder for holder in terms.holders(order[-1]) if holder not in order))
    colluders, piece = (order[0], order[4]), tuple(order[1:4])
    rows = without_self_masks(this)
    found = np.sum([rows[i] for i in piece], axis=0, dtype=np.uint32)
    for colluder in colluders:  # they know the masks that they agreed on with their neighbours
        for other in (i for i in piece if colluder in terms.holders(i)):
            client = this.clients[colluder]
            found += pair_mask(terms, colluder, other, client._mask_secret, client._mask_keys[other]).astype(np.uint32)
    assert found.tolist() == sum_of(vectors, piece, 32)


# ---------------------------------------------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("clients", "gone", "colluders", "expected"),
    [(100, 10, 10, 32), (1_000, 100, 100, 54), (3_000, 300, 300, 60), (3_000, 900, 900, 326), (50, 15, 15, 0)],
)
def test_as_few_as_keep_both_promises(clients: int, gone: int, colluders: int, expected: int) -> None:
    assert enough_neighbours(clients, gone, colluders) == expected
    lost, seen = broken_promises(clients, expected or clients // 2 * 2 - 2, gone, colluders)
    assert (lost <= 2**-30 and seen <= 2**-40) == (expected > 0)
    if expected:
        lost, seen = broken_promises(clients, expected - 2, gone, colluders)
        assert lost > 2**-30 or seen > 2**-40


def test_bounds_are_sums_of_hypergeometric_tails() -> None:
    lost, seen = broken_promises(1_000, 40, 100, 50)
    assert lost == pytest.approx(1_000 * stats.hypergeom.sf(19, 999, 100, 40), rel=1e-9, abs=0)
    opened, cut = stats.hypergeom.sf(20, 999, 50, 40), stats.hypergeom.pmf(20, 1_000, 150, 20)
    assert seen == pytest.approx(1_000 * (opened + cut), rel=1e-9, abs=0)
    assert broken_promises(1_000, 40, 150, 0)[1] == pytest.approx(1_000 * cut, rel=1e-9, abs=0)


def pieces(terms: Terms, left: set[int]) -> int:
    """Into how many pieces those fall apart who are left, if only neighbours hold together."""
    count, todo = 0, set(left)
    while todo:
        count, reached = count + 1, [todo.pop()]
        while reached:
            near = todo.intersection(terms.holders(reached.pop()))
            todo -= near
            reached.extend(near)
    return count


def test_promises_are_broken_no_more_often_than_the_bounds_say() -> None:
    """Too few neighbours, so that it happens, in 2,000 circles, always the same ones: it passes or it does not."""
    clients, neighbours, gone, colluders, circles = 40, 6, 4, 4, 2_000
    away, league = set(range(gone)), set(range(gone, gone + colluders))
    honest = set(range(gone + colluders, clients))
    failed = opened = cut = 0
    for k in range(circles):
        terms = terms_of(clients, neighbours=neighbours, round=k)
        around = [set(terms.holders(i)) - {i} for i in range(clients)]
        # A secret comes back if four of seven holders are there, and of one who vanished its own share is not.
        failed += any(len(around[i] - away) + (i not in away) < 4 for i in range(clients))
        opened += any(len(around[i] & league) >= 4 for i in honest)
        cut += pieces(terms, honest) > 1
    lost, seen = broken_promises(clients, neighbours, gone, colluders)
    assert 0.02 * lost < failed / circles <= lost < 0.5
    assert opened > 0
    assert cut > 0
    assert 0.02 * seen < (opened + cut) / circles <= seen < 0.5


@pytest.mark.parametrize(("gone", "colluders"), [(-1, 0), (101, 0), (1, -1), (1.5, 0), (0, True)])
def test_clients_are_counted_in_whole_numbers(gone: int, colluders: int) -> None:
    with pytest.raises(InputError, match="expected how many"):
        enough_neighbours(100, gone, colluders)
