"""Bare frames: the payload alone, under the keys that a local run has, and every check that is left is made."""

import hmac
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd import MPDD, BareSession, Key, Session, WireError, derive_seed
from fedmpdd.codecs import NO_KEY, QSGD, Codec, FedSGD, Peaks, RandK
from fedmpdd.errors import CodecError, ContentError, FrameLengthError, InputError, KeyRangeError
from fedmpdd.wire.bare import WAYS, AssignedKeys
from tests.codecs.table import CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

GROWING = Peaks(2, 16, grows_to=8, grows_after=3)
SECRET = bytes(range(16))
LATER = 12  # a round in which codecs that begin as another one are themselves


def frame_of(session: BareSession, round_number: int, client: int) -> bytes:
    update = session.codec_at(round_number).encode(gaussian(1, session.d), [session.key(round_number, client)])[0]
    return session.pack(update, round_number, client)


# -------------------------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize(("codec", "length"), [(Peaks(7), 9), (MPDD(50, bits=1, family="hadamard"), 11)])
def test_the_smallest_updates_fit_a_radio_frame(codec: Codec, length: int) -> None:
    session = BareSession(codec, 13_426, 1)
    assert len(frame_of(session, 4, 2)) == session.frame_bytes() == length
    assert Session(codec, 13_426, sends_seed=False).frame_bytes == length + 8


@pytest.mark.parametrize("keys", WAYS)
@pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)
def test_every_codec_goes_through_bare_frames(codec: Codec, keys: AssignedKeys) -> None:
    """And what stands in a compact frame between tag and checksum is the bare frame."""
    session = BareSession(codec, D, 7, keys=keys)
    codec = session.codec_at(LATER)
    compact = Session(codec, D, sends_seed=False)
    for client in (0, 3):
        key = session.key(LATER, client)
        update = codec.encode(gaussian(1, D, seed=client), [key])[0]
        frame = session.pack(update, LATER, client)
        assert len(frame) == session.frame_bytes(LATER) == codec.bytes_per_update(D)
        assert session.unpack(frame, LATER, client) == update
        assert update.key == (key if codec.needs_key else NO_KEY)
        assert compact.pack(update)[4:-4] == frame


@pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)
@settings(max_examples=40)
@given(data=st.data())
def test_any_bytes_are_refused_or_an_update_that_packs_to_them(codec: Codec, data: st.DataObject) -> None:
    """Of the right length, whatever they are; what is accepted decodes to finite numbers."""
    session = BareSession(codec, D, 7)
    size = session.frame_bytes(LATER)
    frame = bytearray(frame_of(session, LATER, 1) if data.draw(st.booleans()) else size)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), max_size=12)):
        frame[at] = value
    try:
        update = session.unpack(frame, LATER, 1)
    except ContentError:
        return
    assert session.pack(update, LATER, 1) == frame
    assert np.isfinite(update.codec.decode_mean([update])).all()


@given(st.binary(min_size=9, max_size=9))
def test_nine_bytes_of_noise_are_peaks_unless_a_spare_bit_is_set(noise: bytes) -> None:
    """There is nothing else to see it by: the page says so."""
    session = BareSession(Peaks(7), 2_000, 7)
    wrong = noise[-1] >= 128 or (noise[0] == 0 and any(noise))
    if wrong:
        with pytest.raises(ContentError):
            session.unpack(noise, 0, 0)
    else:
        assert session.pack(session.unpack(noise, 0, 0), 0, 0) == noise


@pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)
def test_every_other_length_is_refused(codec: Codec) -> None:
    session = BareSession(codec, D, 7)
    frame = frame_of(session, LATER, 1)
    for length in {*range(len(frame)), *range(len(frame) + 1, len(frame) + 20), 10 * len(frame)} - {len(frame)}:
        with pytest.raises(FrameLengthError, match=f"has {length} bytes where round 12"):
            session.unpack((frame * 10 + bytes(20))[:length], LATER, 1)


def test_a_long_frame_costs_nothing() -> None:
    session, long = BareSession(MPDD(50, bits=1), 2_000, 7), memoryview(bytes(2**24))
    tracemalloc.start()
    with pytest.raises(FrameLengthError):
        session.unpack(long, 0, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_updates_have_memory_of_their_own() -> None:
    session = BareSession(MPDD(9), 40, 7)
    frame = bytearray(frame_of(session, 0, 0))
    update = session.unpack(memoryview(frame), 0, 0)
    expected = bytes(frame)
    frame[:] = bytes(len(frame))
    assert session.pack(update, 0, 0) == expected


def test_peaks_that_grow_have_the_length_of_their_round() -> None:
    session = BareSession(GROWING, D, 7)
    lengths = [session.frame_bytes(k) for k in range(8)]
    assert lengths == [GROWING.at_round(k).bytes_per_update(D) for k in range(8)] == [3, 3, 3, 4, 4, 4, 6, 6]
    for k in range(8):
        assert len(frame_of(session, k, 5)) == lengths[k]
    with pytest.raises(FrameLengthError, match=r"has 3 bytes where round 3 .* makes it 4"):
        session.unpack(frame_of(session, 2, 5), 3, 5)
    with pytest.raises(CodecError, match="round 3 of this session is for"):
        session.pack(session.unpack(frame_of(session, 2, 5), 2, 5), 3, 5)


# ---------------------------------------------------------------------------------------------------------- keys


def test_a_frame_of_another_client_round_or_session_is_not_noticed() -> None:
    """What a bare frame gives up: the same payload is an update under any key."""
    session = BareSession(Peaks(7), 2_000, 7)
    frame = frame_of(session, 3, 5)
    keys = {session.unpack(frame, k, client).key for k, client in ((3, 5), (4, 5), (3, 6))}
    assert len(keys | {BareSession(Peaks(7), 2_000, 8).unpack(frame, 3, 5).key}) == 4


def test_an_update_that_was_encoded_with_another_key_is_not_sent() -> None:
    session = BareSession(MPDD(5), 40, 7)
    update = MPDD(5).encode(gaussian(1, 40), [session.key(3, 5)])[0]
    for k, client in ((3, 6), (4, 5)):
        with pytest.raises(KeyRangeError, match=r"encode with session\.key"):
            session.pack(update, k, client)
    with pytest.raises(CodecError, match="d = 41; round 0 of this session is for"):
        session.pack(MPDD(5).encode(gaussian(1, 41), [session.key(0, 5)])[0], 0, 5)


def test_keys_follow_from_seed_round_and_client() -> None:
    derived, shared, partitioned = (BareSession(MPDD(5), 40, 99, keys=keys) for keys in WAYS)
    assert derived.key(3, 2**40) == Key(derive_seed(99, 3, 2**40))
    seed = derive_seed(99, 3, 2**64 - 1)
    assert shared.key(3, 0) == shared.key(3, 17) == Key(seed)
    assert partitioned.key(3, 17) == Key(seed, 17)


@pytest.mark.parametrize(
    ("keys", "client", "words"),
    [
        ("derived", -1, "out of range"),
        ("derived", 2**64 - 2, "the two above are the server's"),
        ("shared", 2**64 - 1, "the two above are the server's"),
        ("derived", 1.0, "must be integers"),
        ("partitioned", 2**32, "slot 4294967296 is out of range"),
        ("partitioned", 2**31, "a seed has 2"),
    ],
)
def test_clients_that_there_cannot_be(keys: AssignedKeys, client: Any, words: str) -> None:
    session = BareSession(MPDD(5), 40, 99, keys=keys)
    with pytest.raises(InputError, match=words):
        session.key(0, client)
    with pytest.raises(InputError, match=words):
        session.unpack(bytes(20), 0, client)


@pytest.mark.parametrize("bad", [-1, 2**32, "1", None, 0.5])
def test_rounds_that_there_cannot_be(bad: Any) -> None:
    session = BareSession(GROWING, D, 99)
    for call in (session.frame_bytes, session.codec_at, lambda k: session.key(k, 0)):
        with pytest.raises(KeyRangeError, match="round"):
            call(bad)


def test_what_decoding_needs_no_key_for_may_be_encoded_with_any() -> None:
    """Rounding or noise that hides something is better drawn with a seed that nobody knows."""
    session = BareSession(QSGD(bits=4), D, 7)
    update = QSGD(bits=4).encode(gaussian(1, D), [123456])[0]
    assert session.unpack(session.pack(update, 0, 0), 0, 0) == update


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((MPDD, 40, 1), "is a class"),
        ((MPDD(5), 40.0, 1), "expected an integer"),
        ((MPDD(50, family="hadamard"), 40, 1), "must not exceed"),
        ((MPDD(5), 40, 2**64), "out of range"),
    ],
)
def test_sessions_that_there_cannot_be(arguments: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        BareSession(*arguments)


def test_keys_that_are_sent_have_no_place_in_a_bare_frame() -> None:
    with pytest.raises(CodecError, match="keys = 'sent': a bare frame carries no key"):
        BareSession(MPDD(5), 40, 1, keys="sent")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- secrets


def test_the_seed_of_a_secret_follows_the_spec() -> None:
    header = b"FMPD\x01\x0d\x01\x08" + (2_000).to_bytes(8, "little") + (7).to_bytes(4, "little") + bytes(12)
    for way, keys in enumerate(WAYS):
        session = BareSession.from_secret(Peaks(7), 2_000, SECRET, "site 4", keys=keys)
        message = b"fedmpdd bare 1\0" + header + bytes([way]) + b"site 4"
        assert session.seed == int.from_bytes(hmac.digest(SECRET, message, "sha256")[:8], "little")
        assert session.keys == keys


def test_one_secret_gives_every_use_of_it_other_seeds() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"codec": Peaks(6)},
        {"codec": Peaks(7, family="rademacher")},
        {"d": 2_001},
        {"secret": bytes(16)},
        {"training": "second"},
        {"keys": "shared"},
        {"keys": "partitioned"},
    ]
    usual: dict[str, Any] = {"codec": Peaks(7), "d": 2_000, "secret": SECRET, "training": "first"}
    assert len({BareSession.from_secret(**(usual | changed)).seed for changed in changes}) == len(changes)


@pytest.mark.parametrize("secret", [b"", b"password", "a text of more than sixteen letters", 7])
def test_secrets_that_can_be_guessed_are_refused(secret: Any) -> None:
    with pytest.raises(KeyRangeError, match="at least 16 bytes"):
        BareSession.from_secret(Peaks(7), 2_000, secret, "first")


# --------------------------------------------------------------------------------------------- beside a local run


@pytest.mark.parametrize("keys", WAYS)
@pytest.mark.parametrize("codec", [MPDD(8, bits=1, family="hadamard"), RandK(5), FedSGD()], ids=label)
def test_a_round_of_bare_frames_is_a_round_of_compact_ones(codec: Codec, keys: AssignedKeys) -> None:
    """Which frames carry the updates changes no bit of the estimate."""
    session, compact = BareSession(codec, D, 7, keys=keys), Session(codec, D, sends_seed=False)
    assigned = [session.key(0, client) for client in range(4)]
    updates = codec.encode(gaussian(4, D), assigned)
    bare = [session.unpack(session.pack(update, 0, i), 0, i) for i, update in enumerate(updates)]
    others = [compact.unpack(compact.pack(update), update.key if codec.needs_key else None) for update in updates]
    assert codec.decode_mean(bare).tobytes() == codec.decode_mean(others).tobytes()


def test_refusals_are_of_the_package() -> None:
    session = BareSession(Peaks(7), 2_000, 7)
    for frame in (b"", bytes(8), bytes(8) + b"\xff", bytes(10)):
        with pytest.raises(WireError):
            session.unpack(frame, 0, 0)
