"""Frames: their bytes are those of docs/wire-format.md, and nothing else is believed."""

import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmpdd
from fedmpdd import MPDD, Key, Limits, Session, Update, errors, pack, unpack
from fedmpdd.codecs import QSGD, Codec, LpProj, Peaks
from fedmpdd.codecs.mpdd import BITS
from fedmpdd.errors import (
    ChecksumError,
    CodecError,
    KeyRangeError,
    LimitError,
    MagicError,
    SessionMismatchError,
    WireError,
)
from tests.conftest import gaussian
from tests.frames.make import HERE, SESSION, frames

MALFORMED = sorted(HERE.glob("*.bin"))


def test_self_contained_frame_byte_by_byte() -> None:
    update = MPDD(m=50, bits=1, family="hadamard").encode(gaussian(1, 300), [Key(0x1122334455667788, 5)])[0]
    scale, bits = update.arrays
    body = (
        b"FMPD\x01\x01\x01\x01"
        + (300).to_bytes(8, "little")
        + (50).to_bytes(4, "little")
        + (5).to_bytes(4, "little")
        + bytes.fromhex("8877665544332211")
        + struct.pack("<f", scale[0])
        + bits.tobytes()
    )
    assert pack(update) == body + zlib.crc32(body).to_bytes(4, "little")


def test_compact_frame_is_the_payload_and_the_same_checksum() -> None:
    update = MPDD(m=50, bits=1).encode(gaussian(1, 300), [99])[0]
    whole = pack(update)
    assigned = Session(update.codec, 300, sends_seed=False).pack(update)
    sent = Session(update.codec, 300, sends_seed=True).pack(update)
    assert assigned[0] == sent[0] == 0xF1
    assert assigned[4:] == whole[32:]
    assert sent[4:] == (99).to_bytes(8, "little") + whole[32:]
    assert len(assigned) == 19  # fifty one-bit scalars


@st.composite
def updates(draw: st.DrawFn) -> Update:
    family = draw(st.sampled_from(["rademacher", "hadamard"]))
    d = draw(st.integers(1, 5_000))
    m = draw(st.integers(1, min(d, 300) if family == "hadamard" else 300))
    codec = MPDD(m=m, bits=draw(st.sampled_from(BITS)), family=family)
    key = Key(draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 10_000)))
    gradient = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((1, d)) * 10.0 ** draw(
        st.integers(-30, 25)
    )
    return codec.encode(gradient.astype(np.float32), [key])[0]


@given(updates())
def test_round_trip(update: Update) -> None:
    frame = pack(update)
    again = unpack(frame)
    assert again == update
    assert pack(again) == frame
    session = Session(update.codec, update.d, sends_seed=False)
    assert session.unpack(session.pack(update), update.key) == update


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(WireError):
        unpack(noise)
    with pytest.raises(WireError):
        unpack(b"FMPD\x01\x01" + noise)
    with pytest.raises(WireError):
        SESSION.unpack(noise)


@given(updates(), st.data())
def test_any_changed_bit_is_noticed(update: Update, data: st.DataObject) -> None:
    frame = bytearray(pack(update))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(WireError):
        unpack(frame)


def test_frames_may_come_in_any_buffer_and_updates_own_their_memory() -> None:
    update = MPDD(m=9).encode(gaussian(1, 40), [1])[0]
    buffer = bytearray(pack(update))
    read = unpack(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert read == update == unpack(np.frombuffer(pack(update), dtype=np.uint8).data)


# ------------------------------------------------------------------------------------------ malformed frames


@pytest.mark.parametrize("path", MALFORMED, ids=lambda path: path.stem)
def test_malformed_frames_raise_their_own_exception(path: Path) -> None:
    expected = getattr(errors, path.name.split(".")[1])
    read = SESSION.unpack if path.name.startswith("compact-") else unpack
    with pytest.raises(expected) as caught:
        read(path.read_bytes())
    assert type(caught.value) is expected
    assert len(str(caught.value)) > 20


def test_the_directory_is_what_its_script_writes() -> None:
    assert {path.stem: path.read_bytes() for path in MALFORMED} == frames()


def test_every_wire_exception_has_a_malformed_frame() -> None:
    kinds = {kind.__name__ for kind in WireError.__subclasses__()}
    assert {path.name.split(".")[1] for path in MALFORMED} == kinds


def test_exception_tree_is_the_one_that_is_drawn() -> None:
    drawn = errors.__doc__ or ""
    kinds: list[type[Exception]] = [
        errors.InputError,
        errors.WireError,
        *errors.InputError.__subclasses__(),
        *WireError.__subclasses__(),
    ]
    for kind in kinds:
        assert f"── {kind.__name__}" in drawn
    assert issubclass(WireError, ValueError)
    assert issubclass(errors.InputError, ValueError)


# ---------------------------------------------------------------------------------------------------- limits


def test_what_is_no_update_and_no_frame_is_refused() -> None:
    codec = MPDD(4)
    updates: Any = codec.encode(np.ones((1, 8), np.float32), [1])
    text: Any = "abc"
    session = Session(codec, 8, sends_seed=True)
    for packs in (pack, session.pack):
        with pytest.raises(CodecError, match=r"a frame holds one update, and .* came; pack those of a list one by one"):
            packs(updates)
    for reads in (unpack, session.unpack):
        with pytest.raises(MagicError, match="'abc' came, which is no frame; expected bytes"):
            reads(text)


def test_limits_come_before_allocation() -> None:
    """A frame of 36 bytes that speaks of 67 million scalars and 8 GB of gradient must cost nothing."""
    body = b"FMPD\x01\x01\x00\x20" + struct.pack("<QIIQ", 2**31, 2**26, 0, 1)
    liar = body + zlib.crc32(body).to_bytes(4, "little")
    tracemalloc.start()
    with pytest.raises(LimitError, match=r"raise Limits\.max_d"):
        unpack(liar)
    with pytest.raises(LimitError, match=r"raise Limits\.max_payload"):
        unpack(liar, Limits(max_d=2**31, max_payload=100))
    with pytest.raises(LimitError, match=r"raise Limits\.max_d"):
        unpack(liar, Limits(max_d=10**6))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_work_is_limited_too() -> None:
    """A few megabytes of one-bit scalars can ask for days of additions."""
    codec = MPDD(m=4_096, bits=1)
    frame = pack(codec.encode(gaussian(1, 5_000), [1])[0])
    assert unpack(frame, Limits(max_work=4_096 * 5_000)).d == 5_000
    with pytest.raises(LimitError, match=r"raise Limits\.max_work"):
        unpack(frame, Limits(max_work=4_096 * 5_000 - 1))


def test_a_few_bytes_do_not_name_more_peaks_than_there_is_memory_for() -> None:
    codec = Peaks(32_767, 65_536, "rademacher")  # 2^31 derivatives in 70 kB
    empty = tuple(np.zeros(section.length, dtype=section.dtype) for section in codec.sections(40))
    with pytest.raises(LimitError, match="2,147,418,112 derivatives of d = 40"):
        unpack(pack(Update(codec, 40, Key(1), empty)))


def test_a_server_gets_the_codec_and_d_that_it_expects() -> None:
    codec = MPDD(m=5)
    frame = pack(codec.encode(gaussian(1, 40), [1])[0])
    assert unpack(frame, codec=codec, d=40) == unpack(frame)
    for wrong in ({"codec": MPDD(m=6)}, {"d": 41}, {"codec": codec, "d": 39}):
        with pytest.raises(SessionMismatchError, match="both sides must use the same"):
            unpack(frame, **wrong)


def test_another_codec_is_refused_before_anything_is_copied() -> None:
    """A server that expects 5 scalars is sent four million of them, with whatever else is wrong behind the header."""
    frame = pack(Update(MPDD(m=2**22), 40, Key(1), (np.zeros(2**22, dtype=np.float32),)))
    frames = (frame, frame[:-1], frame[:-1] + b"!")
    tracemalloc.start()
    for expected in ({"codec": MPDD(m=5)}, {"d": 41}):
        for sent in frames:
            with pytest.raises(SessionMismatchError):
                unpack(sent, **expected)
        with pytest.raises(SessionMismatchError):
            unpack(frame, Limits(max_payload=1), **expected)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_frame_that_would_take_days_is_refused() -> None:
    """65 kB of lp-proj ask for a matrix of 2^44 normal numbers."""
    codec = LpProj(2**14)
    body = b"FMPD\x01\x06\x00\x00" + struct.pack("<QIIQ", 2**30, codec.size, 0, 0) + bytes(4 * codec.size)
    with pytest.raises(LimitError, match=r"about 1\.8e\+05 s on one core.* raise Limits\.max_work"):
        unpack(body + zlib.crc32(body).to_bytes(4, "little"))


def test_limits_that_cannot_be_met() -> None:
    for bad in ({"max_d": 0}, {"max_d": 2**41}, {"max_payload": 0}, {"max_work": 0}):
        with pytest.raises(CodecError, match="cannot be met"):
            Limits(**bad)


# --------------------------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize(
    "other",
    [
        Session(MPDD(m=51, bits=1), 300, sends_seed=True),
        Session(MPDD(m=50, bits=4), 300, sends_seed=True),
        Session(MPDD(m=50, bits=1, family="hadamard"), 300, sends_seed=True),
        Session(MPDD(m=50, bits=1), 301, sends_seed=True),
        Session(MPDD(m=50, bits=1), 300, sends_seed=False),
    ],
)
def test_frames_of_another_session_are_refused(other: Session) -> None:
    frame = Session(MPDD(m=50, bits=1), 300, sends_seed=True).pack(MPDD(m=50, bits=1).encode(gaussian(1, 300), [1])[0])
    with pytest.raises(SessionMismatchError, match="same codec, model"):
        other.unpack(frame, None if other.sends_seed else Key(1))


def test_a_frame_for_another_key_fails_its_checksum() -> None:
    codec = MPDD(m=50, bits=1)
    session = Session(codec, 300, sends_seed=False)
    frame = session.pack(codec.encode(gaussian(1, 300), [Key(1, 2)])[0])
    assert session.unpack(frame, Key(1, 2)).key == Key(1, 2)
    for wrong in (Key(1, 3), Key(2, 2)):
        with pytest.raises(ChecksumError, match="another key"):
            session.unpack(frame, wrong)


def test_sessions_refuse_what_they_cannot_carry() -> None:
    codec: Codec = MPDD(m=50)
    sends, assigns = (Session(codec, 300, sends_seed=sends) for sends in (True, False))
    slotted = codec.encode(gaussian(1, 300), [Key(1, 4)])[0]
    with pytest.raises(KeyRangeError, match="sends_seed=False"):
        sends.pack(slotted)
    with pytest.raises(CodecError, match="this session is for"):
        sends.pack(codec.encode(gaussian(1, 301), [1])[0])
    with pytest.raises(KeyRangeError, match="the key that the client was given"):
        assigns.unpack(assigns.pack(slotted))
    with pytest.raises(KeyRangeError, match="frames carry what is needed"):
        sends.unpack(sends.pack(codec.encode(gaussian(1, 300), [1])[0]), 1)
    with pytest.raises(KeyRangeError, match="out of range"):
        assigns.unpack(assigns.pack(slotted), Key(1, -1))
    with pytest.raises(KeyRangeError, match="a seed has 2"):
        assigns.unpack(assigns.pack(slotted), Key(1, 2**32 - 1))
    with pytest.raises(CodecError, match="expected an integer"):
        Session(codec, 300.0, sends_seed=True)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="must not exceed"):
        Session(MPDD(m=50, family="hadamard"), 49, sends_seed=True)


def test_a_key_that_decoding_does_not_need_is_not_in_the_frame() -> None:
    update = QSGD(bits=4).encode(gaussian(1, 300), [Key(0x1122334455667788, 5)])[0]
    assert pack(update)[20:32] == bytes(12)
    session = Session(QSGD(bits=4), 300, sends_seed=True)
    assert session.unpack(session.pack(update)) == update
    assert len(session.pack(update)) == 4 + 4 + 150 + 4
    with pytest.raises(KeyRangeError, match="frames carry what is needed"):
        session.unpack(session.pack(update), Key(0x1122334455667788, 5))


def test_what_the_package_exports() -> None:
    assert all(hasattr(fedmpdd, name) for name in fedmpdd.__all__)
    names = "CODECS MPDD Codec FedmpddError InputError Key Limits Session Update WireError __version__"
    functions = "decode_pieces derive_seed encode_pieces pack partitioned_keys unpack"
    assert {*names.split(), *functions.split()} <= set(fedmpdd.__all__)
