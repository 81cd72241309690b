"""Messages byte by byte: what is packed is read, in one way only, and everything else is an error of the wire."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.codecs import Codec
from fedmpdd.errors import (
    ContentError,
    FrameLengthError,
    SessionMismatchError,
    TruncatedFrameError,
    VersionError,
    WireError,
)
from fedmpdd.mqtt.follower import snapshot
from fedmpdd.mqtt.messages import (
    PART_BYTES,
    Contribution,
    RoundMessage,
    join_parts,
    mark_clients,
    marked_clients,
    pack_contributions,
    pack_parts,
    pack_update,
    read_contributions,
    read_part,
    split_update,
)
from fedmpdd.mqtt.terms import Terms
from fedmpdd.uplink.arrivals import Arrivals
from fedmpdd.wire.bundle import Bundle, unpack_bundle
from tests.mqtt.trainings import MODEL, SIGNS, ServerOnPaper, make_terms

LATE = Arrivals(enough=2, max_age=3, decay=0.5)
HEAD = 16
NOTHING, WHOLE, PAYLOADS, MEAN = range(4)
CASES: dict[str, tuple[dict[str, Any], int]] = {  # terms, and how the bundle is to be given
    "derived": ({}, PAYLOADS),
    "shared": ({"keys": "shared"}, PAYLOADS),
    "partitioned": ({"keys": "partitioned", "codec": SIGNS}, PAYLOADS),
    "everybody": ({"per_round": 6}, PAYLOADS),
    "mean": ({"keys": "shared", "codec": {**SIGNS, "bits": 32}, "mean_bits": 8}, MEAN),
    "synchronous beside late": ({"arrivals": LATE}, PAYLOADS),
    "late": ({"arrivals": LATE}, PAYLOADS),
    "no key": ({"codec": {"name": "topk", "k": 3}}, PAYLOADS),
    "growing": ({"codec": {"name": "peaks", "m": 2, "group": 16, "grows_to": 4, "grows_after": 2}}, PAYLOADS),
    "many": ({"clients": 64, "per_round": 21}, PAYLOADS),
}


def make_example(name: str) -> tuple[Terms, RoundMessage]:
    """The message of round 4: before it everybody answered, and now all but one that were asked."""
    terms = make_terms(**CASES[name][0])
    contributions = [Contribution(int(one)) for one in terms.sample(3)[:-1]]
    if name == "late":
        contributions = sorted([*contributions, *(Contribution(int(one), 2) for one in terms.sample(1)[:2])])
    return terms, ServerOnPaper(terms).run(3).step(contributions)


EXAMPLES = {name: make_example(name) for name in CASES}
EXAMPLES["first"] = (EXAMPLES["derived"][0], ServerOnPaper(EXAMPLES["derived"][0]).first_message())
EXAMPLES["nobody"] = (EXAMPLES["derived"][0], RoundMessage(4, b"abcd", Bundle().pack()))
ALL = pytest.mark.parametrize(("terms", "message"), EXAMPLES.values(), ids=EXAMPLES)


# ----------------------------------------------------------------------------------------------------- updates


@given(now=st.integers(0, 2**32 - 1), age=st.integers(0, 2**16 - 1), payload=st.binary(max_size=20))
def test_the_age_of_an_update_is_told_by_two_bytes(now: int, age: int, payload: bytes) -> None:
    packed = pack_update((now - age) % 2**32, payload)
    assert len(packed) == 2 + len(payload)
    assert split_update(packed, now) == (age, payload)


@pytest.mark.parametrize("data", [b"", b"\0"])
def test_an_update_without_a_round_is_none(data: bytes) -> None:
    with pytest.raises(TruncatedFrameError, match="expected two of its round"):
        split_update(data, 5)


# ------------------------------------------------------------------------------------------------------ rounds


@ALL
def test_a_round_is_read_as_it_was_packed(terms: Terms, message: RoundMessage) -> None:
    for changed in (message, message._replace(start=255), message._replace(is_over=True)):
        assert RoundMessage.unpack(changed.pack(terms), terms) == changed
    later = message._replace(start=256 + 7)
    assert RoundMessage.unpack(later.pack(terms), terms).start == 7


@pytest.mark.parametrize("name", CASES)
def test_a_round_costs_its_payloads_and_a_mark_for_each_who_was_asked(name: str) -> None:
    terms, message = EXAMPLES[name]
    data = message.pack(terms)
    codec = terms.bundle_codec(3)
    assert isinstance(codec, Codec)
    size = codec.bytes_per_update(terms.d)
    kind = CASES[name][1]
    assert data[1] & 15 == kind
    listed = 4 + 5 * len(message.contributions) if name == "late" else -(-terms.per_round // 8)
    assert len(data) == HEAD + listed + size * (1 if kind == MEAN else len(message.contributions))


def test_a_bundle_that_does_not_follow_from_who_contributed_is_given_whole() -> None:
    terms, message = EXAMPLES["derived"]
    for bundle in (b"anything", b"", message.bundle, EXAMPLES["late"][1].bundle):
        other = message._replace(bundle=bundle, contributions=message.contributions[:1])
        data = other.pack(terms)
        assert data[1] & 15 == WHOLE
        assert RoundMessage.unpack(data, terms) == other


@settings(max_examples=30)
@given(data=st.data())
def test_rounds_of_any_clients_and_ages_are_read(data: st.DataObject) -> None:
    keys = data.draw(st.sampled_from(["derived", "shared"]))
    most = data.draw(st.integers(0, 3)) if keys == "derived" else 0
    clients = data.draw(st.integers(1, 12))
    terms = make_terms(
        clients=clients,
        per_round=data.draw(st.integers(1, clients)),
        keys=keys,
        arrivals=Arrivals(max_age=most),
        sampling_seed=data.draw(st.integers(0, 5)),
    )
    number = data.draw(st.integers(0, 3))
    possible = sorted(
        Contribution(int(one), age) for age in range(min(most, number) + 1) for one in terms.sample(number - age)
    )
    chosen = data.draw(st.sets(st.sampled_from(possible)))
    message = ServerOnPaper(terms).run(number).step(sorted(chosen))
    packed = message.pack(terms)
    assert RoundMessage.unpack(packed, terms) == message
    assert packed[1] & 15 == (PAYLOADS if chosen else WHOLE)
    text = pack_contributions(message.contributions, terms, number)
    assert read_contributions(text, terms, number) == message.contributions


@ALL
def test_no_round_is_read_that_ends_early(terms: Terms, message: RoundMessage) -> None:
    data = message.pack(terms)
    is_whole = data[1] & 15 == WHOLE  # whoever steps along a bundle reads its end: see fedmpdd.wire.bundle
    for end in range(HEAD + 1 if is_whole else len(data)):
        with pytest.raises(WireError):
            RoundMessage.unpack(data[:end], terms)
    if not is_whole:
        with pytest.raises(WireError):
            RoundMessage.unpack(data + b"\0", terms)


@ALL
def test_every_other_bit_is_refused_or_means_something_else(terms: Terms, message: RoundMessage) -> None:
    """What is read packs to the very bytes that were read: no message has two forms."""
    data = message.pack(terms)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            read = RoundMessage.unpack(bytes(changed), terms)
        except WireError:
            continue
        assert read != message
        assert read.pack(terms) == changed


@ALL
@settings(max_examples=30)
@given(data=st.data())
def test_any_bytes_behind_a_head_are_an_error_of_the_wire_or_a_round(
    terms: Terms, message: RoundMessage, data: st.DataObject
) -> None:
    flags = data.draw(st.integers(0, 255))
    number = data.draw(st.one_of(st.integers(0, 6), st.sampled_from([2**31, 2**32 - 2, 2**32 - 1])))
    head = struct.pack("<BBBBI4s4s", 1, flags, 3, 0, number, terms.tag, b"abcd")
    body = data.draw(st.one_of(st.binary(max_size=60), st.just(message.pack(terms)[HEAD:])))
    try:
        read = RoundMessage.unpack(head + body, terms)
    except WireError:
        return
    assert read.pack(terms) == head + body


def test_a_head_that_this_package_never_writes() -> None:
    terms, message = EXAMPLES["derived"]
    data = message.pack(terms)

    def changed(at: int, value: int) -> bytes:
        return data[:at] + bytes([value]) + data[at + 1 :]

    with pytest.raises(VersionError, match="version 2, this package reads 1"):
        RoundMessage.unpack(changed(0, 2), terms)
    for at, value in ((1, 64 | PAYLOADS), (1, 128 | PAYLOADS), (1, 4), (1, 15), (3, 1)):
        with pytest.raises(ContentError, match="never writes"):
            RoundMessage.unpack(changed(at, value), terms)
    with pytest.raises(SessionMismatchError, match="another training"):
        RoundMessage.unpack(changed(8, data[8] ^ 1), terms)
    with pytest.raises(SessionMismatchError, match="read the terms again"):
        RoundMessage.unpack(data, make_terms(lr=0.2))


def test_the_first_round_and_the_others_are_not_taken_for_each_other() -> None:
    terms, message = EXAMPLES["derived"]
    first, later = EXAMPLES["first"][1].pack(terms), message.pack(terms)
    with pytest.raises(ContentError, match="only the first does"):
        RoundMessage.unpack(first[:4] + later[4:8] + first[8:], terms)
    with pytest.raises(ContentError, match="there is none"):
        RoundMessage.unpack(later[:4] + first[4:8] + later[8:], terms)


def test_a_longer_form_than_there_is_does_not_count() -> None:
    terms, message = EXAMPLES["derived"]
    data, contributions = message.pack(terms), message.contributions
    assert message.bundle is not None
    marks = data[HEAD : HEAD + 1]
    listed = struct.pack("<I", len(contributions)) + b"".join(struct.pack("<IB", *one) for one in contributions)
    longer = {
        "a whole bundle": data[:1] + bytes([WHOLE]) + data[2:HEAD] + marks + message.bundle,
        "a list": data[:1] + bytes([16 | PAYLOADS]) + data[2:HEAD] + listed + data[HEAD + 1 :],
    }
    for other in longer.values():
        with pytest.raises(ContentError, match="in a longer way"):
            RoundMessage.unpack(other, terms)


LISTED = {
    "a client that is none": ([(6, 0)], "of no such round"),
    "a round before the first": ([(0, 4)], "of no such round"),
    "too old": ([(0, 3)], "of no such round"),
    "twice": ([(0, 1), (0, 1)], "twice, or out of order"),
    "out of order": ([(1, 1), (0, 1)], "twice, or out of order"),
}


@pytest.mark.parametrize(("entries", "words"), LISTED.values(), ids=LISTED)
def test_a_list_of_clients_is_looked_at(entries: list[tuple[int, int]], words: str) -> None:
    terms = make_terms(arrivals=Arrivals(max_age=2))
    data = struct.pack("<I", len(entries)) + b"".join(struct.pack("<IB", *one) for one in entries)
    head = struct.pack("<BBBBI4s4s", 1, 16 | WHOLE, 0, 0, 4, terms.tag, b"abcd")
    with pytest.raises(ContentError, match=words):
        RoundMessage.unpack(head + data, terms)
    with pytest.raises(ContentError, match=words):
        read_contributions(f"listed {data.hex()}", terms, 3)


def test_a_list_that_is_not_there_costs_no_memory() -> None:
    terms = make_terms()
    head = struct.pack("<BBBBI4s4s", 1, 16 | PAYLOADS, 0, 0, 4, terms.tag, b"abcd")
    for count in (1, 2**20 + 1, 2**32 - 1):
        with pytest.raises(WireError, match="updates count"):
            RoundMessage.unpack(head + struct.pack("<I", count), terms)


# ------------------------------------------------------------------------------- notes of journals, and who is asked


@pytest.mark.parametrize(
    "text", ["", "marked", "listed", "marked zz", "told 00", "listed 00000000 ff", None, 3, "marked 0f00"]
)
def test_a_note_that_does_not_say_who_contributed(text: object) -> None:
    with pytest.raises(WireError):
        read_contributions(text, make_terms(), 2)


@given(number=st.integers(0, 2**32 - 1), clients=st.sets(st.integers(0, 20)))
def test_those_who_are_asked_again_are_marked(number: int, clients: set[int]) -> None:
    data = mark_clients(number, sorted(clients), 21)
    assert len(data) == 4 + 3
    assert marked_clients(data, 21) == (number, frozenset(clients))
    for other in (data[:-1], data + b"\0", b""):
        with pytest.raises(FrameLengthError):
            marked_clients(other, 21)


# --------------------------------------------------------------------------------------------- models in parts


def model_message(terms: Terms) -> bytes:
    return snapshot(terms.replica(np.resize(MODEL, terms.d)))


LARGE = make_terms(shapes=((60_000,),), codec={"name": "peaks", "m": 4})


@pytest.mark.parametrize(("terms", "count"), [(make_terms(), 1), (LARGE, 3)], ids=["small", "large"])
def test_a_model_in_parts_is_put_together(terms: Terms, count: int) -> None:
    message = model_message(terms)
    packed = pack_parts(7, message, terms)
    assert len(packed) == count
    assert max(map(len, packed)) <= PART_BYTES + 44
    parts = [read_part(part, terms) for part in packed]
    assert [(part.round, part.number, part.parts) for part in parts] == [(7, number, count) for number in range(count)]
    assert join_parts(parts) == message


def test_a_part_that_is_none_is_refused() -> None:
    data = pack_parts(7, model_message(LARGE), LARGE)[1]
    for end in range(45):
        with pytest.raises(TruncatedFrameError):
            read_part(data[:end], LARGE)
    with pytest.raises(SessionMismatchError):
        read_part(bytes([data[0] ^ 1]) + data[1:], LARGE)
    with pytest.raises(ContentError):
        read_part(data + b"\0", LARGE)
    for number, parts in ((3, 3), (0, 0), (0, 65_535)):
        with pytest.raises(ContentError):
            read_part(data[:8] + struct.pack("<HH", number, parts) + data[12:], LARGE)


def test_damaged_parts_are_not_put_together() -> None:
    packed = pack_parts(7, model_message(LARGE), LARGE)
    for number in range(3):
        damaged = [bytearray(part) for part in packed]
        damaged[number][-1] ^= 1
        with pytest.raises(ContentError, match="they were damaged"):
            join_parts([read_part(bytes(part), LARGE) for part in damaged])


def test_messages_are_bound_to_all_that_was_agreed_on() -> None:
    """Any change of the terms is another tag. Two of the tags here agree by chance in one of some 10^7 trials."""
    terms = make_terms()
    changes: dict[str, Any] = {
        "seed": 1,
        "clients": 7,
        "per_round": 3,
        "keys": "shared",
        "sampling_seed": 4,
        "rounds": 21,
        "lr": 0.2,
        "codec": SIGNS,
        "shapes": ((250,),),
        "arrivals": LATE,
        "protection": {"clip": 1.0},
        "model_sha256": "00" * 32,
    }
    others = [replace(terms, **{name: value}) for name, value in changes.items()]
    assert len({one.tag for one in [terms, *others]}) == 1 + len(others)


# ------------------------------------------------------------------------------------------------ published vectors


def test_messages_of_the_vectors_are_read() -> None:
    vectors = json.loads((Path(__file__).parents[2] / "docs" / "vectors.json").read_text(encoding="utf-8"))["mqtt"]
    terms = Terms.unpack(vectors["terms"].encode())
    assert terms.tag.hex() == vectors["tag"]
    number = vectors["round"]
    assert terms.sample(number).tolist() == vectors["asked"]
    message = RoundMessage.unpack(bytes.fromhex(vectors["next_round"]), terms)
    assert message.bundle is not None
    bundle = unpack_bundle(message.bundle, terms.session.codec, terms.d)
    for i, vector in enumerate(vectors["updates"]):
        data, client = bytes.fromhex(vector["update"]), vector["client"]
        assert len(data) == 2 + 9
        age, frame = split_update(data, number + 1)
        assert age == 1
        assert terms.session.unpack(frame, number, client) == bundle.updates[i]
        assert message.contributions[i] == Contribution(client)
    assert (message.round, message.start, message.is_over) == (number + 1, 9, False)
    first = RoundMessage.unpack(bytes.fromhex(vectors["first_round"]), terms)
    assert first == RoundMessage(0, message.model_tag)
