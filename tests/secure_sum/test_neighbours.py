"""Sums in which a client shares its secrets with a few others: as exact, and enough others to be as safe."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fedmpdd.errors import ContentError, InputError, SecureSumError
from fedmpdd.secure_sum import Phase, SecureClient, Terms, bytes_down, bytes_up, enough_neighbours, secure_sum
from fedmpdd.secure_sum.client import own_mask, pair_mask
from fedmpdd.secure_sum.messages import HEADER_BYTES
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
    """Who stands next to client 0, of 20 others, in 2,000 rounds; a false alarm comes with probability 1e-9."""
    counts = np.zeros(21)
    for k in range(2_000):
        counts[terms_of(21, neighbours=2, round=k).holders(0)] += 1
    assert counts[0] == 2_000
    # Two different ones a round: their counts vary a little less than those of single draws, which only calms alarms.
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


@settings(max_examples=25)
@given(st.data(), st.integers(4, 14))
def test_the_sum_is_exact_or_there_is_none(data: st.DataObject, clients: int) -> None:
    neighbours = 2 * data.draw(st.integers(1, (clients - 2) // 2))
    leavers = data.draw(st.lists(st.integers(0, clients - 1), unique=True, max_size=clients // 2))
    drop_after = {i: data.draw(st.sampled_from([None, Phase.ADVERTISE, Phase.SHARE, Phase.MASK])) for i in leavers}
    vectors = some_vectors(clients, 3, 32, seed=clients)
    try:
        result = secure_sum(vectors, clients // 2 + 1, 32, drop_after, neighbours)
    except SecureSumError:
        assert leavers
    else:
        assert result.included == tuple(i for i in range(clients) if drop_after.get(i, Phase.DONE) in (2, Phase.DONE))
        assert result.total.tolist() == sum_of(vectors, result.included, 32)


def test_a_round_of_many_survives_what_it_should() -> None:
    """The neighbours that 0.2 drop-outs need; that they do not suffice has probability 2^-30."""
    clients, gone = 200, 40
    neighbours = enough_neighbours(clients, 0.2, 0.1)
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
    this = Round(terms, until=Phase.ADVERTISE)
    others = [holder for holder in terms.holders(5) if holder != 5]
    leaving = others[:3]  # client 5 and one more are left, of five, of whom three are needed
    last = -1 if phase is None else int(phase)
    for at in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK)[: last + 2]:
        for i, message in this.opening[at].items():
            if i not in leaving or at <= last:
                this.server.receive(i, this.answer(i, at, message))
        if at <= last:
            this.opening[Phase(at + 1)] = this.server.advance()
    on = this.server.finish if phase == Phase.MASK else this.server.advance
    with pytest.raises(SecureSumError, match=r"2 of the 5 who hold shares of client \d+'s secrets .* no vector was"):
        on()


def test_bytes_are_counted_and_known_beforehand() -> None:
    result = secure_sum(some_vectors(30, 33, 20), ring_bits=20, neighbours=8)
    terms = terms_of(30, 33, ring_bits=20, neighbours=8)
    assert {tuple(row) for row in result.up.tolist()} == {bytes_up(terms)} == {(80, 48 + 8 * 94, 16 + 83, 16 + 9 * 33)}
    assert {tuple(row) for row in result.down.tolist()} == {bytes_down(terms)}
    assert bytes_down(terms) == (52, 20 + 9 * 64, 20 + 8 * 94, 20)


# ------------------------------------------------------------------------------------------ clients that refuse


def test_what_two_were_told_differently_does_not_open() -> None:
    terms = terms_of(7, neighbours=2)
    this = Round(terms, until=Phase.SHARE)
    victim = 0
    peer = next(holder for holder in terms.holders(victim) if holder != victim)
    stranger = SecureClient(terms, peer).advertise()[HEADER_BYTES:]
    for i, message in this.opening[Phase.SHARE].items():
        if i == victim:
            at = HEADER_BYTES + 1 + 64 * terms.holders(victim).index(peer)
            message = message[:at] + stranger + message[at + 64 :]
        this.server.receive(i, this.answer(i, Phase.SHARE, message))
    inbox = this.server.advance()
    with pytest.raises(ContentError, match=f"client {peer} sent does not open"):
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
    with pytest.raises(SecureSumError, match="2 neighbours sent keys"):
        this.clients[0].share(this.server.advance()[0])


def test_a_client_that_keeps_its_state_on_disk_goes_on_where_it_was() -> None:
    terms = terms_of(6, neighbours=2)
    vectors = some_vectors(6, 5, 32)
    this = Round(terms, vectors, until=Phase.ADVERTISE)
    for phase in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK):
        this.clients = [SecureClient.from_state(client.state()) for client in this.clients]
        this.answers(phase)
        for i, message in this.sent[phase].items():
            this.server.receive(i, message)
        if phase < Phase.UNMASK:
            this.opening[Phase(phase + 1)] = this.server.advance()
    assert this.server.finish().tolist() == sum_of(vectors, tuple(range(6)), 32)


# ------------------------------------------------------------------------------------------ what the server sees


def without_own_masks(this: Round) -> NDArray[np.uint32]:
    """What is left of all vectors when the server has the seeds: what it learns of those who stay."""
    terms = this.terms
    rows = [this.masked(i) - own_mask(terms, i, this.clients[i]._seed) for i in range(terms.clients)]
    return np.stack(rows).astype(np.uint32)


def test_all_but_one_of_a_circle_look_uniform_and_all_give_the_sum() -> None:
    """Five clients who talk to two each, 100 rounds; three chi-square tests, a false alarm each with 1e-9."""
    rounds = [
        Round(terms_of(5, 64, neighbours=2, round=k), np.full((5, 64), 77, np.uint64), until=Phase.UNMASK)
        for k in range(100)
    ]
    seen = np.stack([without_own_masks(this) for this in rounds])
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
    friends, piece = (order[0], order[4]), tuple(order[1:4])
    rows = without_own_masks(this)
    found = np.sum([rows[i] for i in piece], axis=0, dtype=np.uint32)
    for friend in friends:  # they know the masks that they agreed on with their neighbours
        for other in (i for i in piece if friend in terms.holders(i)):
            client = this.clients[friend]
            found += pair_mask(terms, friend, other, client._mask_secret, client._mask_keys[other]).astype(np.uint32)
    assert found.tolist() == sum_of(vectors, piece, 32)


# ---------------------------------------------------------------------------------------------------- how many


def promises(clients: int, neighbours: int, dropouts: float, colluding: float) -> tuple[float, float]:
    """How likely a round fails, and somebody is less hidden, by scipy's distribution."""
    gone, friends = int(dropouts * clients), int(colluding * clients)
    half = neighbours // 2
    fails = clients * stats.hypergeom.sf(half - 1, clients - 1, gone, neighbours)
    opened = clients * stats.hypergeom.sf(half, clients - 1, friends, neighbours)
    return fails, opened + clients * stats.hypergeom.sf(half - 1, clients, gone + friends, half)


@pytest.mark.parametrize(
    ("clients", "dropouts", "colluding", "expected"),
    [(100, 0.1, 0.1, 32), (1_000, 0.1, 0.1, 54), (3_000, 0.1, 0.1, 60), (3_000, 0.3, 0.3, 326), (50, 0.3, 0.3, 0)],
)
def test_as_few_as_keep_both_promises(clients: int, dropouts: float, colluding: float, expected: int) -> None:
    found = enough_neighbours(clients, dropouts, colluding)
    assert found == expected
    fails, seen = promises(clients, found or clients // 2 * 2 - 2, dropouts, colluding)
    kept = fails <= 2**-30 and seen <= 2**-40
    assert kept == (found > 0)
    if found:
        fails, seen = promises(clients, found - 2, dropouts, colluding)
        assert fails > 2**-30 or seen > 2**-40


def test_promises_are_those_of_random_circles() -> None:
    """Promises that are broken often enough to count: 3,000 circles, six deviations, a false alarm in 10^9."""
    clients, neighbours, gone = 40, 6, 8
    circles = (terms_of(clients, neighbours=neighbours, round=k) for k in range(3_000))
    broken = sum(sum(holder < gone for holder in circle.holders(clients - 1)) >= 3 for circle in circles)
    likely = stats.hypergeom.sf(2, clients - 1, gone, neighbours)
    assert abs(broken - 3_000 * likely) < 6 * np.sqrt(3_000 * likely * (1 - likely))


@pytest.mark.parametrize(("dropouts", "colluding"), [(0.5, 0.0), (-0.1, 0.0), (0.1, 0.5), (0.1, float("nan"))])
def test_shares_of_clients_are_below_half(dropouts: float, colluding: float) -> None:
    with pytest.raises(InputError, match="expected a share of the clients"):
        enough_neighbours(100, dropouts, colluding)
