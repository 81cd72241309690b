"""What counts of a round: whose updates, once each, with which weight, and when there are enough."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedmpdd.errors import RunError
from fedmpdd.mqtt import gatherer as gathering
from fedmpdd.mqtt.gatherer import Counted, Gatherer, weights_of
from fedmpdd.mqtt.messages import Contribution, pack_update
from fedmpdd.mqtt.terms import Terms
from fedmpdd.uplink.arrivals import Arrivals
from tests.mqtt.trainings import MODEL, SIGNS, D, make_terms, payload, update

FLOATS = {"name": "mpdd", "m": 4, "bits": 32}
ASYNCHRONOUS = Arrivals(enough=2, max_age=2, decay=0.5)


def opened(terms: Terms, round_number: int = 0) -> Gatherer:
    gatherer = Gatherer(terms)
    gatherer.open(round_number)
    return gatherer


def send(gatherer: Gatherer, round_number: int, clients: Sequence[int]) -> None:
    for client in clients:
        gatherer.receive(client, update(gatherer.terms, MODEL, round_number, client))


def everybody(**changes: Any) -> Terms:
    return make_terms(per_round=6, **changes)


def who(counted: Counted) -> list[tuple[int, int]]:
    return [tuple(one) for one in counted.contributions]  # type: ignore[misc]


# ------------------------------------------------------------------------------------------- synchronous rounds


@pytest.mark.parametrize("keys", ["derived", "shared", "partitioned"])
def test_all_who_were_asked_count_in_the_order_of_their_numbers(keys: Any) -> None:
    terms = make_terms(keys=keys, codec=SIGNS)
    for number in range(4):
        asked = terms.sample(number).tolist()
        gatherer = opened(terms, number)
        send(gatherer, number, asked[::-1])
        counted = gatherer.wait()
        assert who(counted) == [(client, 0) for client in asked]
        assert counted.nbytes == 4 * (2 + terms.session.frame_bytes())
        for client, one in zip(asked, counted.updates, strict=True):
            assert one.key == terms.key(number, client)
        assert weights_of(counted.contributions, terms) is None


def test_a_round_waits_for_the_last_of_its_clients() -> None:
    gatherer = opened(everybody())
    waits, counts = threading.Event(), []

    def gather() -> None:
        counts.append(gatherer.wait(heartbeat=waits.set))

    thread = threading.Thread(target=gather)
    thread.start()
    send(gatherer, 0, [4, 0, 2, 1, 5])
    assert waits.wait(20)  # it woke up, and there were not enough
    assert not counts
    assert gatherer.missing() == [3]
    send(gatherer, 0, [3])
    thread.join(20)
    assert who(counts[0]) == [(client, 0) for client in range(6)]


def test_two_threads_deliver_the_same_clients_and_each_counts_once() -> None:
    gatherer = opened(make_terms(clients=64, per_round=64, codec=SIGNS))
    begin = threading.Barrier(2)

    def deliver(clients: Sequence[int]) -> None:
        begin.wait(20)
        send(gatherer, 0, clients)

    threads = [threading.Thread(target=deliver, args=(order,)) for order in (range(64), range(63, -1, -1))]
    for thread in threads:
        thread.start()
    counted = gatherer.wait()
    for thread in threads:
        thread.join(20)
    assert who(counted) == [(client, 0) for client in range(64)]
    assert gatherer.duplicates == 64


def test_a_duplicate_changes_nothing_before_or_after_its_round() -> None:
    terms = everybody(arrivals=Arrivals(max_age=2))
    gatherer = opened(terms)
    send(gatherer, 0, [0])
    gatherer.receive(0, pack_update(0, payload(terms, 2 * MODEL, 0, 0)))  # another content: the first one counts
    send(gatherer, 0, range(1, 6))
    first = gatherer.wait()
    assert first.updates[0] == terms.session.unpack(payload(terms, MODEL, 0, 0), 0, 0)
    send(gatherer, 0, [0])  # the round is over, and the next has not begun
    for number in (1, 2):
        gatherer.open(number)
        send(gatherer, 0, [0, 3])
        send(gatherer, number, range(6))
        assert who(gatherer.wait()) == [(client, 0) for client in range(6)]
    assert gatherer.duplicates == 1 + 1 + 4
    assert not gatherer.drops


# ------------------------------------------------------------------------------------------ asynchronous rounds


def test_enough_updates_end_a_round_and_late_ones_count_in_the_next_for_less() -> None:
    terms = everybody(arrivals=ASYNCHRONOUS)
    gatherer = opened(terms)
    send(gatherer, 0, [5, 2])
    assert who(gatherer.wait()) == [(2, 0), (5, 0)]
    gatherer.open(1)
    send(gatherer, 0, [3])
    send(gatherer, 1, [3])
    counted = gatherer.wait()
    assert who(counted) == [(3, 0), (3, 1)]
    assert [one.key for one in counted.updates] == [terms.key(1, 3), terms.key(0, 3)]
    assert weights_of(counted.contributions, terms) == [1.0, 0.5]
    assert weights_of(counted.contributions, terms, [10.0, 20.0]) == [10.0, 10.0]
    gatherer.open(2)
    send(gatherer, 0, [2, 3, 4])  # 2 and 3 have counted already
    send(gatherer, 1, [3, 1])
    counted = gatherer.wait()
    assert who(counted) == [(1, 1), (4, 2)]
    assert weights_of(counted.contributions, terms) == [0.5, 0.25]
    assert gatherer.duplicates == 3


def test_an_update_between_two_rounds_grows_older_with_the_rounds() -> None:
    terms = everybody(arrivals=ASYNCHRONOUS)
    gatherer = opened(terms)
    send(gatherer, 0, [0, 1])
    gatherer.wait()
    send(gatherer, 0, [4])
    gatherer.open(1)
    send(gatherer, 1, [0])
    assert who(gatherer.wait()) == [(0, 0), (4, 1)]
    gatherer.open(2)
    send(gatherer, 0, [4])
    assert gatherer.duplicates == 1


def test_an_update_that_is_too_late_does_not_count() -> None:
    gatherer = opened(everybody(arrivals=ASYNCHRONOUS), 5)
    send(gatherer, 2, [0])
    send(gatherer, 3, [1])
    send(gatherer, 5, [2])
    assert who(gatherer.wait()) == [(1, 2), (2, 0)]
    assert gatherer.drops == {"its update is too late": 1}
    synchronous = opened(everybody(), 5)
    send(synchronous, 4, [0])
    assert synchronous.drops == {"its update is too late": 1}


def test_the_rounds_of_a_resume_go_on_from_what_counted_before() -> None:
    terms = everybody(arrivals=ASYNCHRONOUS)
    gatherer = Gatherer(terms)
    gatherer.remember([Contribution(0), Contribution(1)])  # of round 3
    gatherer.remember([Contribution(2), Contribution(3, 1)])  # of round 4
    gatherer.open(5)
    send(gatherer, 3, [0, 1, 3, 4])
    send(gatherer, 4, [2, 3])
    assert gatherer.duplicates == 4
    assert who(gatherer.wait()) == [(3, 1), (4, 2)]


def test_time_that_is_up_ends_a_round_with_those_who_came() -> None:
    gatherer = opened(everybody(arrivals=Arrivals(wait=0.01)))
    send(gatherer, 0, [1, 4])
    assert who(gatherer.wait()) == [(1, 0), (4, 0)]


def test_time_that_is_up_does_not_end_a_round_to_which_nobody_came() -> None:
    gatherer = opened(make_terms(clients=2, per_round=2, arrivals=Arrivals(wait=0.001)))
    beats = []

    def heartbeat() -> None:
        beats.append(1)
        if len(beats) == 2:  # the time was up at the first
            send(gatherer, 0, [1])

    assert who(gatherer.wait(heartbeat)) == [(1, 0)]
    assert len(beats) == 2


def test_who_waits_for_nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time a round wakes up for news, and once a second, not a thousand times."""
    gatherer = opened(make_terms(clients=2, per_round=2, arrivals=Arrivals(wait=0.001)))
    naps: list[float] = []

    def nap(seconds: float) -> bool:
        naps.append(seconds)
        if len(naps) == 4:
            send(gatherer, 0, [1])
        return True

    monkeypatch.setattr(gatherer._news, "wait", nap)
    monkeypatch.setattr("fedmpdd.mqtt.gatherer.time.monotonic", iter(range(100)).__next__)
    gatherer.wait()
    assert naps[1:] == [1.0] * 3


# ------------------------------------------------------------------------------------------- what does not count


def test_what_cannot_count_is_dropped_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    terms = make_terms(clients=6, per_round=4, rounds=50)
    asked = terms.sample(7).tolist()
    outsider = next(client for client in range(6) if client not in asked)
    gatherer = opened(terms, 7)
    good = update(terms, MODEL, 7, asked[0])
    wrong = {
        "to come": (asked[0], pack_update(8, good[2:])),
        "to come, 32768": (asked[0], pack_update(7 + 2**15, good[2:])),
        "too late": (asked[0], pack_update(6, good[2:])),
        "not asked": (outsider, good),
        "not asked in that": (6, good),
        "not asked in": (2**32 - 1, good),
        "7 bytes, expected 6|bytes, expected": (asked[0], good + b"\0"),
        "another codec or model": (asked[0], good[:-1]),
        "two of its round": (asked[0], b"\1"),
        "an update has 0 bytes": (asked[0], b""),
    }
    for words, (client, data) in wrong.items():
        caplog.clear()
        gatherer.receive(client, data)
        assert caplog.records, words
        assert f"client {client}" in caplog.text
        assert any(part in caplog.text for part in words.split("|"))
    assert sum(gatherer.drops.values()) == len(wrong)
    assert gatherer.missing() == asked
    send(gatherer, 7, asked)
    assert who(gatherer.wait()) == [(client, 0) for client in asked]


def test_a_round_of_the_past_is_not_before_the_first() -> None:
    gatherer = opened(everybody(arrivals=ASYNCHRONOUS), 1)
    gatherer.receive(0, pack_update(2**16 - 1, bytes(6)))
    assert gatherer.drops == {"its update is too late": 1}


def test_rounds_beyond_two_bytes_are_told_apart() -> None:
    terms = everybody(arrivals=ASYNCHRONOUS, rounds=2**20)
    gatherer = opened(terms, 2**16)
    send(gatherer, 2**16, [1])
    send(gatherer, 2**16 - 1, [0])
    counted = gatherer.wait()
    assert who(counted) == [(0, 1), (1, 0)]
    assert [one.key for one in counted.updates] == [terms.key(2**16 - 1, 0), terms.key(2**16, 1)]


def test_nan_and_giants_do_not_count_and_the_round_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    terms = everybody(codec=FLOATS)
    gatherer = opened(terms)
    send(gatherer, 0, [0, 1, 2])
    gatherer.receive(3, pack_update(0, np.full(4, np.nan, "<f4").tobytes()))
    gatherer.receive(4, pack_update(0, np.full(4, 1e30, "<f4").tobytes()))
    gatherer.receive(5, pack_update(0, np.full(4, 9e4, "<f4").tobytes()))
    counted = gatherer.wait()
    assert who(counted) == [(0, 0), (1, 0), (2, 0)]
    assert counted.nbytes == 3 * 18
    assert sum(gatherer.drops.values()) == 3
    for words in ("client 3: ", "above max_value", "times larger than the median"):
        assert words in caplog.text


def test_a_round_of_nothing_but_nonsense_counts_nobody() -> None:
    gatherer = opened(everybody(codec=FLOATS))
    for client in range(6):
        gatherer.receive(client, pack_update(0, np.full(4, np.inf, "<f4").tobytes()))
    assert gatherer.wait() == Counted((), [], 0)


def test_the_log_of_one_reason_ends_after_a_few_lines_of_a_round(caplog: pytest.LogCaptureFixture) -> None:
    gatherer = opened(everybody())
    with caplog.at_level(logging.WARNING, "fedmpdd"):
        for number in range(2):
            gatherer.open(number)
            for length in range(100):
                gatherer.receive(0, pack_update(number, bytes(7 + length)))  # each of another length
            assert len(caplog.records) == 5 * (number + 1)
    assert gatherer.drops == {"its frame has … bytes": 200}


def test_one_update_of_many_that_were_asked_is_no_reason_to_step() -> None:
    """Screening judges a round by itself: whoever comes alone is not compared with anybody."""
    gatherer = opened(everybody(arrivals=Arrivals(enough=1)))
    send(gatherer, 0, [3])
    assert who(gatherer.wait()) == []
    assert gatherer.drops == {"it answered alone of …": 1}


def test_before_the_first_round_nothing_is_taken() -> None:
    gatherer = Gatherer(everybody())
    send(gatherer, 0, range(6))
    gatherer.open(0)
    assert gatherer.missing() == list(range(6))


def test_a_codec_that_grows_takes_late_updates_as_long_as_it_has_their_length() -> None:
    codec = {"name": "peaks", "m": 2, "group": 16, "grows_to": 8, "grows_after": 3}
    terms = everybody(codec=codec, arrivals=ASYNCHRONOUS)
    sizes = [terms.session.frame_bytes(number) for number in range(8)]
    grown = next(number for number in range(1, 8) if sizes[number] != sizes[number - 1])
    gatherer = opened(terms, grown)
    send(gatherer, grown - 1, [0])
    assert gatherer.drops == {"its update is late": 1}
    send(gatherer, grown, [0, 1])
    assert who(gatherer.wait()) == [(0, 0), (1, 0)]


# ------------------------------------------------------------------------------------------ asking, and giving up


def test_those_whose_update_is_missing_are_asked_for_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "ASK_AGAIN", 0.0)
    terms = make_terms(clients=2, per_round=2, arrivals=Arrivals(wait=1e-3))
    asked: list[list[int]] = []

    def ask(clients: list[int]) -> str:
        asked.append(clients)
        send(gatherer, 0, [1])
        return ""

    gatherer = Gatherer(terms, ask)
    gatherer.open(0)
    assert who(gatherer.wait()) == [(1, 0)]
    assert asked == [[0, 1]]


def test_a_round_that_waits_for_long_says_who_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody asked for more than warnings."""
    monkeypatch.setattr(gathering, "ASK_AGAIN", 0.0)
    calls: list[int] = []

    def ask(clients: list[int]) -> str:
        calls.append(len(clients))
        if len(calls) == 3:
            send(gatherer, 0, [0, 1])
        return "; 1 of them are not connected: 0"

    gatherer = Gatherer(make_terms(clients=2, per_round=2), ask)
    gatherer.open(0)
    with caplog.at_level("WARNING", "fedmpdd"):
        gatherer.wait()
    line = "round 0: 0 of 2 updates came; asking 2 clients again: 0, 1; 1 of them are not connected: 0"
    assert [record.getMessage() for record in caplog.records] == [line]


def test_a_connection_that_ends_for_good_ends_the_wait() -> None:
    gatherer = opened(everybody())
    send(gatherer, 0, [0])
    thread = threading.Thread(target=gatherer.fail, args=("the broker refuses",))
    thread.start()
    with pytest.raises(RunError, match="the broker refuses"):
        gatherer.wait()
    thread.join(20)


def test_a_heartbeat_may_end_the_wait() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(everybody(arrivals=Arrivals(wait=1e-3))).wait(stop)


def test_a_model_of_another_length_is_seen_by_the_length_of_its_updates() -> None:
    gatherer = opened(everybody(codec={"name": "fedsgd"}))
    gatherer.receive(0, pack_update(0, np.zeros(D + 1, "<f4").tobytes()))
    assert gatherer.missing() == list(range(6))
