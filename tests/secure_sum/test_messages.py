"""Messages of secure sums: nothing is believed that is garbled, late, repeated, or of somebody else."""

import hashlib
import itertools
import math
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmpdd.errors import (
    ContentError,
    FrameLengthError,
    InputError,
    MagicError,
    SecureSumError,
    SessionMismatchError,
    TruncatedFrameError,
    VersionError,
    WireError,
)
from fedmpdd.secure_sum import (
    MemoryLedger,
    Phase,
    SecureClient,
    SecureServer,
    Terms,
    bytes_down,
    bytes_up,
    default_threshold,
    enough_neighbours,
    primitives,
    read_terms,
    secure_sum,
    threshold_against,
)
from fedmpdd.secure_sum.client import pair_mask, seed_digest, self_mask
from fedmpdd.secure_sum.messages import HEADER_BYTES, Kind, write
from fedmpdd.secure_sum.terms import client_ids
from tests.secure_sum.rounds import Round, terms_of

ALL, FEW = {"clients": 3}, {"clients": 5, "neighbours": 2}


@pytest.mark.parametrize("who", [ALL, FEW], ids=["all", "neighbours"])
@pytest.mark.parametrize("phase", [Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK])
def test_the_server_refuses_what_is_garbled_late_or_of_somebody_else(phase: Phase, who: dict[str, int]) -> None:
    this = Round(terms_of(**who), until=phase)
    this.answers(phase)
    good = this.sent[phase][0]
    refused: list[tuple[bytes, type[WireError]]] = [
        (b"", TruncatedFrameError),
        (good[: HEADER_BYTES - 1], TruncatedFrameError),
        (b"X" + good[1:], MagicError),
        (good[:4] + b"\x02" + good[5:], VersionError),
        (good[:5] + b"\x09" + good[6:], ContentError),
        (good[:8] + bytes(8) + good[16:], SessionMismatchError),
        (good[:-1], FrameLengthError),
        (good + b"\0", FrameLengthError),
        (this.sent[phase][1], ContentError),
        (Round(terms_of(**who, round=2), until=Phase(phase + 1)).sent[phase][0], SessionMismatchError),
    ]
    refused += [(this.sent[earlier][0], ContentError) for earlier in this.sent if earlier < phase]
    for message, error in refused:
        with pytest.raises(error):
            this.server.receive(0, message)
    for stranger in (-1, who["clients"]):
        with pytest.raises(ContentError, match="no part"):
            this.server.receive(stranger, good)
    this.server.receive(0, good)
    with pytest.raises(ContentError, match="already"):
        this.server.receive(0, good)


@pytest.mark.parametrize("who", [ALL, FEW], ids=["all", "neighbours"])
@pytest.mark.parametrize("phase", [Phase.SHARE, Phase.MASK, Phase.UNMASK])
def test_the_client_refuses_what_is_garbled_or_of_another_round(phase: Phase, who: dict[str, int]) -> None:
    this = Round(terms_of(**who), until=phase)
    good = this.opening[phase][0]
    for length in range(len(good)):
        with pytest.raises(WireError):
            this.answer(0, phase, good[:length])
    other = Round(terms_of(**who, round=4), until=phase).opening[phase][0]
    again = Round(terms_of(**who), until=phase).opening[phase][
        0
    ]  # the same terms, so that only secrets tell them apart
    for message, error in ((other, SessionMismatchError), (good + b"\0", FrameLengthError)):
        with pytest.raises(error):
            this.answer(0, phase, message)
    if phase != Phase.UNMASK:  # who survived is no secret, and the same here
        with pytest.raises(ContentError):
            this.answer(0, phase, again)
    this.answer(0, phase, good)


@pytest.mark.parametrize("who", [ALL, FEW], ids=["all", "neighbours"])
def test_any_changed_byte_of_an_inbox_is_noticed(who: dict[str, int]) -> None:
    this = Round(terms_of(**who), until=Phase.MASK)
    good = this.opening[Phase.MASK][0]
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises((WireError, SecureSumError)):
            this.clients[0].mask(bytes(bad), this.vectors[0])


def test_keys_that_hide_nothing_and_keys_in_use_are_refused() -> None:
    terms = terms_of(3)
    server = SecureServer(terms)
    mine = SecureClient(terms, 0, MemoryLedger()).advertise()
    server.receive(0, mine)
    with pytest.raises(ContentError, match="hides nothing"):
        server.receive(1, write(Kind.ADVERTISED, terms, 1, bytes(32), mine[-32:]))
    with pytest.raises(ContentError, match="in use"):
        server.receive(1, write(Kind.ADVERTISED, terms, 1, mine[HEADER_BYTES:]))


def other_spellings(key: bytes) -> dict[str, bytes]:
    """Keys that agree with everybody on the same secrets as this one."""
    value, field = int.from_bytes(key, "little"), 2**255 - 19
    return {
        "another spelling": (value + 2**255).to_bytes(32, "little"),  # the highest bit is ignored
        "in use": pow(value, -1, field).to_bytes(32, "little"),  # the same point plus the one of order two
    }


def test_a_key_that_agrees_on_the_same_secrets_is_the_same_key() -> None:
    terms = terms_of(3)
    server = SecureServer(terms)
    mine = SecureClient(terms, 0, MemoryLedger()).advertise()
    server.receive(0, mine)
    secret, key = primitives.new_secret(), mine[-32:]
    for words, other in other_spellings(key).items():
        assert other != key
        assert primitives.agree(secret, other) == primitives.agree(secret, key)
        for body in (other + primitives.public_of(secret), primitives.public_of(secret) + other):
            with pytest.raises(ContentError, match=words):
                server.receive(1, write(Kind.ADVERTISED, terms, 1, body))
    server.receive(1, SecureClient(terms, 1, MemoryLedger()).advertise())


@pytest.mark.parametrize("beyond", [2**255 - 19, 2**255 - 10, 2**255 + 9, 2**256 - 1])
def test_keys_are_numbers_below_the_field_and_written_in_one_way(beyond: int) -> None:
    primitives.check_canonical((2**255 - 20).to_bytes(32, "little"))
    key = beyond.to_bytes(32, "little")
    this = Round(terms_of(3), until=Phase.SHARE)
    message = this.opening[Phase.SHARE][0]
    with pytest.raises(ContentError, match="another spelling"):
        this.answer(0, Phase.SHARE, message[:-32] + key)
    with pytest.raises(ContentError, match="another spelling"):
        SecureServer(this.terms).receive(0, write(Kind.ADVERTISED, this.terms, 0, key, message[-32:]))


@pytest.mark.parametrize("dropped", [False, True])
def test_a_wrong_share_stops_the_round_instead_of_spoiling_the_sum(dropped: bool) -> None:
    terms = terms_of(4, threshold=3)
    this = Round(terms, until=Phase.MASK)
    this.answers(Phase.MASK)
    stayed = [0, 1, 2] if dropped else [0, 1, 2, 3]
    for i in stayed:
        this.server.receive(i, this.sent[Phase.MASK][i])
    for i, message in this.server.advance().items():
        told = bytearray(this.clients[i].unmask(message))
        if i == 1:
            told[-17] ^= 1  # of the last client's secret: its key where it vanished, else its seed
        this.server.receive(i, bytes(told))
    with pytest.raises(SecureSumError, match="client 3's secret"):
        this.server.finish()


def test_a_share_beyond_the_field_and_stray_bits_are_refused() -> None:
    this = Round(terms_of(3, 3, ring_bits=17), until=Phase.UNMASK)
    with pytest.raises(ContentError, match="beyond the field"):
        this.server.receive(0, write(Kind.UNMASKED, this.terms, 0, b"\xff" * 99))
    with pytest.raises(ContentError, match="behind the last"):
        this.terms.ring.unpack(memoryview(b"\xff" * 7), 3)
    with pytest.raises(ContentError, match="beyond the last"):
        this.clients[0].unmask(write(Kind.SURVIVORS, this.terms, 0xFFFF, b"\xff"))


def test_terms_go_through_bytes_and_nothing_else_is_believed() -> None:
    terms = terms_of(100, 13_426, ring_bits=24)
    good = SecureServer(terms).open()
    assert read_terms(good) == terms
    assert terms.threshold == 67
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x80
        with pytest.raises(WireError):
            read_terms(bytes(bad))
        with pytest.raises(WireError):
            read_terms(good[:at])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 1}, "clients = 1"),
        ({"clients": 4, "threshold": 2}, "more than half"),
        ({"threshold": 6}, "more than half"),
        ({"length": 0}, "length = 0"),
        ({"round": -1}, "round = -1"),
        ({"ring_bits": 15}, "16 to 64"),
        ({"run": b"short"}, "16 bytes"),
    ],
)
def test_terms_that_no_sum_has_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        terms_of(**{"clients": 5, **changes})


def test_calls_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(InputError, match="0 to 2"):
        SecureClient(terms_of(3), 3, MemoryLedger())
    with pytest.raises(InputError, match="one row per client"):
        secure_sum(np.zeros(3, np.uint64))
    with pytest.raises(InputError, match="names client 7"):
        secure_sum(np.zeros((3, 3), np.uint64), drop_after={7: None})
    this = Round(terms_of(3))
    for call in (this.server.advance, this.server.finish, lambda: this.server.receive(0, b"")):
        with pytest.raises(InputError, match=r"DONE|over"):
            call()


@pytest.mark.parametrize(
    ("neighbours", "expected"),
    [
        (0, "7ad9e49be398047c4fa2f43dab7f4fadf05a7bb0e6c4d563924e615310185c7a"),
        (4, "688f3ebfa429e20198ea694bff21d85e48035a31cc63a5658e0d22b24548c834"),
    ],
)
def test_messages_without_signatures_are_byte_for_byte_those_of_the_first_release(
    neighbours: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages of a round that client 3 leaves, with made-up randomness; the hashes are of the code of before."""

    def pretend(name: str) -> None:
        blocks = (hashlib.sha256(f"{name}{k}".encode()).digest() for k in itertools.count())
        rest = bytearray()

        def draw(count: int) -> bytes:
            while len(rest) < count:
                rest.extend(next(blocks))
            taken = bytes(rest[: -(-count // 32) * 32])
            del rest[: len(taken)]
            return taken[:count]

        monkeypatch.setattr(os, "urandom", draw)
        monkeypatch.setattr(random, "_urandom", draw)

    pretend("")
    terms = Terms(bytes(range(16)), 3, 7, 5, 5, 24, neighbours)
    this = Round(terms, np.arange(35, dtype=np.uint64).reshape(7, 5), until=Phase.ADVERTISE)
    transcript = hashlib.sha256()
    for phase in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK, Phase.UNMASK):
        for i, message in this.opening[phase].items():
            transcript.update(message)
            if (phase, i) != (Phase.MASK, 3):
                pretend(f"{i} {phase:d} ")
                answer = this.answer(i, phase, message)
                pretend("server")
                transcript.update(answer)
                this.server.receive(i, answer)
        if phase < Phase.UNMASK:
            this.opening[Phase(phase + 1)] = this.server.advance()
    assert transcript.hexdigest() == expected
    assert this.server.finish().tolist() == [90, 96, 102, 108, 114]


# ---------------------------------------------------------------------------------------------- the document

DOCUMENT = (Path(__file__).parents[2] / "docs" / "secure-sum.md").read_text(encoding="utf-8")


def test_known_answers_are_those_of_the_document() -> None:
    terms = Terms(bytes(range(16)), 7, 5, 4, 4, 32)
    seed, mine, theirs = bytes(range(32)), bytes(range(1, 33)), bytes(range(65, 97))
    public = primitives.public_of(theirs)
    context = terms.digest + bytes(32) + client_ids(1, 3)
    lock = primitives.derive(primitives.agree(mine, public), b"channel", context)
    masks = [self_mask(terms, 2, seed), pair_mask(terms, 1, 3, mine, public)]
    answers = [terms.digest.hex(), seed_digest(terms, 2, seed).hex(), lock.hex()]
    for answer in [*answers, *(" ".join(f"{word:08x}" for word in mask) for mask in masks)]:
        assert f"`{answer}`" in DOCUMENT


def test_the_circle_and_how_many_neighbours_are_enough_are_those_of_the_document() -> None:
    terms = Terms(bytes(range(16)), 7, 12, 4, 9, 32, 4)
    (circle, holders) = re.findall(r"`([\d ]+)`: H\(0\) is ([\d, ]+) \|", DOCUMENT)[0]
    order = [int(client) for client in circle.split()]
    for place, client in enumerate(order):
        around = [order[(place + by) % 12] for by in (-2, -1, 0, 1, 2)]
        assert terms.holders(client) == sorted(around)
    assert terms.holders(0) == [int(client) for client in holders.split(",")]
    shares = [(0.05, 0.05), (0.1, 0.1), (0.2, 0.1), (0.2, 0.2), (0.3, 0.1), (0.3, 0.3)]
    rows = re.findall(r"^\| ([\d,]+)((?: \| \d+){6}) \|$", DOCUMENT, flags=re.MULTILINE)
    assert len(rows) == 6
    for clients, counts in rows:
        n = int(clients.replace(",", ""))
        found = [enough_neighbours(n, math.floor(gone * n), math.floor(colluders * n)) for gone, colluders in shares]
        assert found == [int(count) for count in counts.split("|")[1:]]


def test_the_document_counts_bytes_right() -> None:
    row = r"\| ([\d,]+) \| (all|all, signed|\d+) \| ([\d,]+) \| ([\d, +]+) = [\d,]+ \| ([\d, +]+) = [\d,]+ \|"
    rows = re.findall(row, DOCUMENT)
    assert len(rows) == 12
    for clients, holders, length, up, down in rows:
        n, m = (int(text.replace(",", "")) for text in (clients, length))
        neighbours = int(holders) if holders.isdigit() else 0
        terms = terms_of(n, m, neighbours=neighbours, signed=holders == "all, signed")
        assert up == " + ".join(f"{count:,}" for count in bytes_up(terms))
        assert down == " + ".join(f"{count:,}" for count in bytes_down(terms))
        members = 3 * math.ceil(n / 8)
        beside, beneath = 66 + 127 * n, 6 + 158 * n + members
        if neighbours:
            beside, beneath = 193 + 127 * neighbours, 164 + 158 * neighbours + members
        elif terms.signed:
            beside, beneath = 210 + 127 * n, 22 + 222 * n + 64 * terms.threshold + members + math.ceil(n / 8)
        assert (sum(bytes_up(terms)) - 4 * m, sum(bytes_down(terms))) == (beside, beneath)


def test_the_code_of_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third, _ = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(first, names)
    expected = np.delete(names["scalars"], 3, axis=0).mean(axis=0)
    assert np.abs(names["mean"] - expected).max() < 1e-7
    exec(second, names)
    assert names["server"].included == (0, 1, 2)
    assert names["update"].arrays[0].shape == (400,)
    exec(third, names)
    assert names["server"].answered == (3,)
    assert (tmp_path / "client-3-rounds.json").exists()


def test_the_code_about_mqtt_makes_a_policy_that_insists_on_sums() -> None:
    code = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)[-1]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["policy"].secure
    assert names["secure"].clip == names["policy"].largest_clip


def test_the_document_says_right_from_how_many_colluders_a_threshold_protects() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", DOCUMENT, flags=re.MULTILINE)
    assert len(rows) == 4
    for n, t, colluders, gone in (map(int, row) for row in rows):
        assert t == default_threshold(n) == n - gone
        assert threshold_against(n, colluders) <= t < threshold_against(n, colluders + 1)
