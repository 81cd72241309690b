"""Damaged frames, more of them in `make test-all`, against an independent reading of docs/wire-format.md.

`verdict` below knows the format of FedMPDD from the document alone: which exception a frame must raise, or that it is
sound. Every mutated frame must raise exactly that, or decode to the update that packs to the very same bytes. Frames of
the other codecs, among them those that a mutation makes into one, are held to the second half of this: a WireError, or
the same bytes again.
"""

import math
import random
import struct
import tracemalloc
import zlib
from itertools import product

import numpy as np
import pytest

from fedmpdd import CODECS, MPDD, Key, Limits, errors, pack, unpack
from tests.codecs.table import CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

MUTATIONS = (15_000, pytest.param(250_000, marks=pytest.mark.slow))
RIVAL_MUTATIONS = (40_000, pytest.param(100_000, marks=pytest.mark.slow))
RIVALS = [codec for codec in CODECS_UNDER_TEST if codec.code != 1 and codec.self_contained]
RIVAL_NUMBERS = {codec.code for codec in CODECS.values() if codec.self_contained} - {1}
MAX_D, MAX_PAYLOAD = 10_000, 4_096
INTERESTING = [0, 1, 2, 4, 8, 16, 32, 127, 128, 255]


def is_of_a_rival(frame: bytes) -> bool:
    """Whether a reader gets as far as the codec, and it is one that `verdict` does not know."""
    return len(frame) >= 36 and frame[:5] == b"FMPD\x01" and frame[5] in RIVAL_NUMBERS


def verdict(frame: bytes) -> type[Exception] | None:
    """The exception that the spec demands, checks in its order; None for a sound frame."""
    if len(frame) < 36:
        return errors.TruncatedFrameError
    if frame[:4] != b"FMPD":
        return errors.MagicError
    if frame[4] != 1:
        return errors.VersionError
    if frame[5] != 1:
        return errors.UnknownCodecError
    family, bits = frame[6], frame[7]
    d, m, slot, _seed = struct.unpack_from("<QIIQ", frame, 8)
    if not 1 <= m < 2**31:
        return errors.LimitError
    if family > 1 or bits not in (1, 4, 8, 16, 32):
        return errors.UnknownCodecError
    payload = 4 * m if bits == 32 else 4 + math.ceil(m * bits / 8)
    too_many = m > d if family == 1 else (slot + 1) * m > 2**32
    if not 1 <= d <= MAX_D or too_many or payload > MAX_PAYLOAD:
        return errors.LimitError
    if len(frame) != 36 + payload:
        return errors.FrameLengthError
    if zlib.crc32(frame[:-4]) != int.from_bytes(frame[-4:], "little"):
        return errors.ChecksumError
    return None if sound(frame[32:-4], bits, m) else errors.ContentError


def sound(payload: bytes, bits: int, m: int) -> bool:
    if bits == 32:
        return all(abs(x) <= 2.0**127 for x in struct.unpack(f"<{m}f", payload))
    (scale,) = struct.unpack_from("<f", payload)
    if not scale <= 2.0**127 or math.copysign(1, scale) < 0:
        return False
    number = int.from_bytes(payload[4:], "little")
    if number >> (m * bits):
        return False
    mask, reserved = (1 << bits) - 1, 1 << (bits - 1)
    if bits > 1 and scale * (reserved - 1) > 2.0**127:
        return False
    if bits > 1 and any(number >> (bits * j) & mask == reserved for j in range(m)):
        return False
    return scale != 0 or number == 0


def seeds() -> list[bytes]:
    """Sound frames of every family and number of bits."""
    return [
        pack(MPDD(m=m, bits=bits, family=family).encode(gaussian(1, 90, seed=m), [Key(m * 77, slot)])[0])
        for family, bits, m, slot in product(("rademacher", "hadamard"), (32, 16, 8, 4, 1), (1, 13, 50), (0, 3))
    ]


def mutate(frame: bytes, others: list[bytes], rng: random.Random) -> bytes:
    out = bytearray(frame)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        kind = rng.randrange(8)
        at = rng.randrange(len(out)) if out else 0
        if kind == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[at] = rng.choice(INTERESTING)
        elif kind == 2:
            del out[at : at + rng.choice([1, 1, 4, 20])]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.choice([1, 4]))
        elif kind == 4:
            other = rng.choice(others)
            out[at : at + 8] = other[at : at + 8]
        elif kind == 5 and len(out) >= 32:  # aim at the header
            out[rng.randrange(4, 24)] = rng.choice(INTERESTING)
        elif kind == 6 and len(out) > 40:  # aim at the scale and the last byte of the scalars
            spot = rng.choice([32, 33, 34, 35, len(out) - 5])
            out[spot] = rng.choice([0, 0x7F, 0x80, 0xC0, 0xFF, rng.randrange(256)])
        elif kind == 7 and len(out) >= 20:
            struct.pack_into("<I", out, 16, rng.choice([0, 1, 12, 13, 14, 49, 51, 2**31, 2**32 - 1]))
    if len(out) > 4 and rng.random() < 0.5:  # half of them with a checksum that fits, to get past it
        out[-4:] = zlib.crc32(out[:-4]).to_bytes(4, "little")
    return bytes(out)


def outcome(frame: bytes, limits: Limits) -> type[Exception] | bytes:
    """What was raised, or the bytes of what was read."""
    try:
        return pack(unpack(frame, limits))
    except errors.WireError as error:
        return type(error)


def refused_or_exact(frame: bytes, limits: Limits) -> bool:
    result = outcome(frame, limits)
    return result == frame or isinstance(result, type)


@pytest.mark.parametrize("mutations", MUTATIONS)
def test_mutated_frames_are_refused_for_the_right_reason_or_read_exactly(mutations: int) -> None:
    rng = random.Random(2024)
    sound_frames = seeds()
    limits = Limits(max_d=MAX_D, max_payload=MAX_PAYLOAD)
    seen: dict[type[Exception] | None, int] = {}
    rivals = 0
    tracemalloc.start()
    for _ in range(mutations):
        frame = mutate(rng.choice(sound_frames), sound_frames, rng)
        if is_of_a_rival(frame):
            assert refused_or_exact(frame, limits)
            rivals += 1
            continue
        expected = verdict(frame)
        seen[expected] = seen.get(expected, 0) + 1
        assert outcome(frame, limits) == (expected or frame), frame.hex()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    # The loop is worth something only if it reaches every check, and sound frames too.
    kinds = {kind for kind in errors.WireError.__subclasses__() if kind is not errors.SessionMismatchError}
    assert set(seen) == kinds | {None}
    assert min(seen.values()) > mutations // 2500, seen
    assert rivals > mutations // 2500
    assert sum(seen.values()) > 0.8 * mutations


@pytest.mark.parametrize("mutations", RIVAL_MUTATIONS)
def test_mutated_frames_of_rivals_are_refused_or_read_exactly(mutations: int) -> None:
    rng = random.Random(2025)
    sound_frames = [pack(codec.encode(gaussian(1, D, seed=i), [i])[0]) for i, codec in enumerate(RIVALS)]
    limits = Limits(max_d=MAX_D, max_payload=MAX_PAYLOAD)
    read, refused = set(), set()
    for _ in range(mutations):
        number = rng.randrange(len(RIVALS))
        frame = mutate(sound_frames[number], sound_frames, rng)
        result = outcome(frame, limits)
        if isinstance(result, type):
            refused.add((number, result))
        else:
            assert result == frame, frame.hex()
            read.add(number)
    assert read == set(range(len(RIVALS)))  # some mutations are sound: a scalar with another value, say
    # Whole gradients make long frames, and a few deletions do not make them too short to be one.
    kinds = set(errors.WireError.__subclasses__()) - {errors.SessionMismatchError, errors.TruncatedFrameError}
    for number, codec in enumerate(RIVALS):
        assert {kind for which, kind in refused if which == number} >= kinds, label(codec)


def test_verdict_accepts_sound_frames() -> None:
    for frame in seeds():
        assert verdict(frame) is None
        assert pack(unpack(frame)) == frame


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 1])
def test_sound_frames_of_random_scalars_are_read(bits: int) -> None:
    """Not only what the encoder writes: any content the spec allows is an update and packs to the same bytes."""
    rng = np.random.default_rng(bits)
    read = 0
    for _ in range(300):
        m = int(rng.integers(1, 40))
        payload = rng.bytes(4 * m) if bits == 32 else struct.pack("<f", rng.random()) + rng.bytes(-(-m * bits // 8))
        body = b"FMPD\x01\x01\x00" + bytes([bits]) + struct.pack("<QIIQ", 90, m, 0, 5) + payload
        frame = body + zlib.crc32(body).to_bytes(4, "little")
        if verdict(frame) is None:
            read += 1
            assert pack(unpack(frame)) == frame
    assert read > 10
