"""A model that follows the server's, whatever comes, in whatever order, and whatever of it is damaged."""

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.errors import ContentError, OrderError, WireError
from fedmpdd.mqtt.follower import SNAPSHOT_EVERY, TAIL, Follower, Lack, model_sha256, model_tag, snapshot
from fedmpdd.mqtt.messages import RoundMessage, pack_parts
from fedmpdd.mqtt.terms import Terms
from fedmpdd.server.step import Schedule, StepRule
from tests.mqtt.trainings import MODEL, SIGNS, ServerOnPaper, is_at, make_terms

ROUNDS = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"server": StepRule("adam"), "schedule": Schedule("linear", rounds=10)},
    "partitioned": {"keys": "partitioned", "codec": SIGNS, "server": StepRule("momentum")},
    "mean": {"keys": "shared", "codec": {**SIGNS, "bits": 32}, "mean_bits": 8},
}
SERVERS = {name: ServerOnPaper(make_terms(**changes)).run(ROUNDS) for name, changes in SETTINGS.items()}
SGD = SERVERS["sgd"]
EVERY = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)


def parts_at(server: ServerOnPaper, number: int) -> list[bytes]:
    """The model of a round with the optimiser's state, as the server publishes it."""
    ran = ServerOnPaper(server.terms).run(number)
    return pack_parts(number, snapshot(ran.replica), server.terms)


def lack_of(follower: Follower) -> Lack:
    """What it says now: a type checker takes a property for what it was before."""
    return follower.lack


@EVERY
def test_rounds_one_after_the_other_lead_to_the_models_of_the_server(server: ServerOnPaper) -> None:
    follower = Follower(server.terms, MODEL)
    assert lack_of(follower) is Lack.ROUND
    for number in range(ROUNDS + 1):
        follower.hear_round(server.packed(number))
        assert lack_of(follower) is Lack.NOTHING
        assert is_at(follower, server.models[number])


@EVERY
@settings(max_examples=40)
@given(data=st.data())
def test_rounds_in_any_order_twice_or_with_models_between_them(server: ServerOnPaper, data: st.DataObject) -> None:
    follower = Follower(server.terms, MODEL if data.draw(st.booleans()) else None)
    snapshots = {number: parts_at(server, number) for number in (0, 3, 5)}
    rounds = data.draw(st.permutations([*range(ROUNDS + 1), *data.draw(st.lists(st.integers(0, ROUNDS)))]))
    models = data.draw(st.lists(st.sampled_from([0, 3, 5])))
    events = data.draw(st.permutations([*((0, one) for one in rounds), *((1, one) for one in [*models, 3])]))
    for is_model, number in events:
        if is_model:
            for part in snapshots[number]:
                follower.hear_part(part)
        else:
            follower.hear_round(server.packed(number))
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, server.models[ROUNDS])


def test_who_missed_rounds_says_which_way_to_catch_up() -> None:
    follower = Follower(SGD.terms, MODEL)
    follower.hear_round(SGD.packed(0))
    follower.hear_round(SGD.packed(5))
    assert lack_of(follower) is Lack.TAIL
    follower.hear_round(SGD.packed(2))
    follower.hear_round(SGD.packed(1))
    assert lack_of(follower) is Lack.TAIL
    follower.hear_round(SGD.packed(4))
    follower.hear_round(SGD.packed(3))
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, SGD.models[5])


def test_a_tail_that_is_longer_than_the_model_is_not_asked_for() -> None:
    terms = make_terms(codec={"name": "fedsgd"})
    server = ServerOnPaper(terms).run(2)
    follower = Follower(terms, MODEL)
    follower.hear_round(server.packed(2))
    assert lack_of(follower) is Lack.MODEL


def test_who_is_farther_behind_than_the_tail_goes_asks_for_a_model() -> None:
    terms = make_terms(rounds=1000)
    follower = Follower(terms, MODEL)
    for number, lack in ((TAIL, Lack.TAIL), (TAIL + 1, Lack.MODEL)):
        message = SGD.messages[0]._replace(round=number)
        follower.hear_round(message._replace(bundle=b"x" * 10).pack(terms))
        assert lack_of(follower) is lack
    assert SNAPSHOT_EVERY < TAIL


def test_who_has_no_model_asks_for_one_and_then_for_what_came_since() -> None:
    follower = Follower(SGD.terms)
    assert lack_of(follower) is Lack.ROUND
    follower.hear_round(SGD.packed(6))
    assert lack_of(follower) is Lack.MODEL
    for part in parts_at(SGD, 4):
        follower.hear_part(part)
    assert lack_of(follower) is Lack.TAIL
    follower.hear_round(SGD.packed(5))
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, SGD.models[6])


def test_whose_tail_turns_out_too_short_asks_for_a_model_and_then_for_the_tail_again() -> None:
    follower = Follower(SGD.terms, MODEL)
    follower.hear_round(SGD.packed(5))
    assert lack_of(follower) is Lack.TAIL
    follower.give_up_tail()
    assert lack_of(follower) is Lack.MODEL
    for part in parts_at(SGD, 2):
        follower.hear_part(part)
    assert lack_of(follower) is Lack.TAIL  # which reaches back to the model that the broker has
    for number in (3, 4):
        follower.hear_round(SGD.packed(number))
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, SGD.models[5])


def test_a_model_of_the_past_takes_nobody_back() -> None:
    follower = Follower(SGD.terms, MODEL)
    for number in range(ROUNDS + 1):
        follower.hear_round(SGD.packed(number))
    for part in parts_at(SGD, 4):
        follower.hear_part(part)
    follower.hear_round(SGD.packed(2))
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, SGD.models[ROUNDS])


LARGE = ServerOnPaper(make_terms(shapes=((60_000,),), codec={"name": "peaks", "m": 4}, model_sha256="00" * 32))


def large_parts(terms: Terms, number: int) -> tuple[np.ndarray[Any, np.dtype[np.float32]], list[bytes]]:
    flat = np.random.default_rng(number).standard_normal(terms.d).astype(np.float32)
    return flat, pack_parts(number, snapshot(terms.replica(flat, number)), terms)


@settings(max_examples=30)
@given(data=st.data())
def test_parts_of_two_models_are_not_mixed(data: st.DataObject) -> None:
    """A server publishes the parts of a new model while those of the old one are read: in order, some of them."""
    terms = LARGE.terms
    _, old = large_parts(terms, 32)
    flat, new = large_parts(terms, 64)
    assert len(new) == 3
    follower = Follower(terms)
    follower.hear_round(RoundMessage(64, model_tag(flat), b"anything").pack(terms))
    stale = data.draw(st.lists(st.sampled_from(old), max_size=2))
    for part in [*stale, *data.draw(st.permutations(new)), *stale]:
        follower.hear_part(part)
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, flat)


def test_a_damaged_part_is_refused_and_whole_ones_are_taken_later() -> None:
    terms = LARGE.terms
    flat, parts = large_parts(terms, 64)
    follower = Follower(terms)
    follower.hear_round(RoundMessage(64, model_tag(flat), b"anything").pack(terms))
    damaged = bytearray(parts[1])
    damaged[-1] ^= 1
    follower.hear_part(parts[0])
    follower.hear_part(bytes(damaged))
    with pytest.raises(ContentError, match="damaged"):
        follower.hear_part(parts[2])
    assert lack_of(follower) is Lack.MODEL
    for part in parts:
        follower.hear_part(part)
    assert is_at(follower, flat)


def test_another_model_than_the_servers_is_given_up_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower(SGD.terms, MODEL)
    follower.hear_round(SGD.packed(0))
    wrong = SGD.messages[0]._replace(model_tag=b"none")
    with caplog.at_level(logging.WARNING, "fedmpdd"):
        follower.hear_round(wrong.pack(SGD.terms))
    assert "round 1: the model here has hash" in caplog.text
    assert "asking for a whole one" in caplog.text
    assert lack_of(follower) is Lack.MODEL
    for part in parts_at(SGD, 2):
        follower.hear_part(part)
    follower.hear_round(SGD.packed(3))
    assert is_at(follower, SGD.models[3])


def test_a_round_that_is_damaged_where_only_the_step_can_see_it() -> None:
    """A bundle that is given whole is read when it is applied; the follower stays where it was, and asks again."""
    follower = Follower(SGD.terms, MODEL)
    follower.hear_round(SGD.packed(0))
    with pytest.raises(WireError):
        follower.hear_round(SGD.messages[0]._replace(bundle=b"\1\2\3").pack(SGD.terms))
    assert lack_of(follower) is Lack.TAIL
    follower.hear_round(SGD.packed(1))
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, SGD.models[1])


def test_a_training_that_is_over_stays_so_whatever_the_tail_says() -> None:
    follower = Follower(SGD.terms, MODEL)
    over = SGD.messages[-1]._replace(is_over=True)
    follower.hear_round(over.pack(SGD.terms))
    for number in range(1, ROUNDS + 1):  # the last of the tail is the message before it was over
        follower.hear_round(SGD.packed(number))
    assert lack_of(follower) is Lack.NOTHING
    assert follower.newest == over


def test_the_initial_model_must_be_that_of_the_terms() -> None:
    with pytest.raises(OrderError, match="let the client ask for the model"):
        Follower(SGD.terms, MODEL + 1)


def test_what_somebody_does_to_a_model_that_was_given_out_does_no_harm() -> None:
    initial = MODEL.copy()
    follower = Follower(SGD.terms, initial)
    initial[:] = 7
    follower.hear_round(SGD.packed(0))
    follower.hear_round(SGD.packed(1))
    assert is_at(follower, SGD.models[1])


def test_messages_of_another_training_change_nothing() -> None:
    other = ServerOnPaper(make_terms(seed=1)).run(2)
    follower = Follower(SGD.terms, MODEL)
    follower.hear_round(SGD.packed(0))
    for data in (other.packed(1), b"", b"x" * 40):
        with pytest.raises(WireError):
            follower.hear_round(data)
    for data in (parts_at(other, 2)[0], b"", b"x" * 100):
        with pytest.raises(WireError):
            follower.hear_part(data)
    assert lack_of(follower) is Lack.NOTHING
    assert is_at(follower, MODEL)


def test_a_model_without_the_optimisers_state_is_refused() -> None:
    adam = SERVERS["adam"].terms
    sgd_like = make_terms().replica(MODEL.copy(), 3)
    follower = Follower(adam)
    with pytest.raises(ContentError, match="model and optimiser are 3"):
        follower.hear_part(pack_parts(3, snapshot(sgd_like), adam)[0])


def test_what_waits_for_a_model_is_bounded() -> None:
    terms = make_terms(rounds=10_000)
    follower = Follower(terms)
    for number in range(1, 1000):
        follower.hear_round(SGD.messages[0]._replace(round=number, bundle=b"x").pack(terms))
    assert len(follower._waiting) <= TAIL + SNAPSHOT_EVERY + 1


def test_the_hash_of_a_model_is_that_of_the_journal() -> None:
    from fedmpdd.simulation.replay import model_sha256 as of_tensor

    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert model_sha256(MODEL) == of_tensor(torch.from_numpy(MODEL.copy()))
    assert bytes.fromhex(model_sha256(MODEL)).startswith(model_tag(MODEL))
