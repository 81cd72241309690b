"""A second decoder, written from docs/codecs.md and docs/directions.md: the same bits for every codec that promises.

It knows frames, the slow reference of the directions, and the tables of the documents; none of the codecs' own code.
"""

import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import Key, Session, derive_seed, pack
from fedmpdd.codecs import (
    EDEN,
    MPDD,
    QSGD,
    Codec,
    DeComFL,
    FedKSeed,
    FedSGD,
    FeedSign,
    Gaussian,
    Laplace,
    LpProj,
    Peaks,
    RandK,
    SignSGD,
    TopK,
)
from fedmpdd.codecs.eden import quantiser_levels
from fedmpdd.directions import hadamard_size, reference
from fedmpdd.errors import CodecError, KeyRangeError, LimitError, UnknownCodecError
from tests.codecs.table import label
from tests.conftest import gaussian

Float32 = NDArray[np.float32]
DOCS = Path(__file__).parents[2] / "docs"
D = 150
WEIGHTS = [3.0, 0.1, 7.0]
SHARED = [Key(11, 2), Key(11, 0), Key(5, 4)]  # two of one seed, not next to slot order, and one of another
CODECS = [
    *(MPDD(10, bits, family) for bits in (32, 8, 4) for family in ("rademacher", "hadamard")),
    *(FedSGD(), Laplace(0.5), Gaussian(0.5), QSGD(8), QSGD(4), SignSGD(), SignSGD(scaled=False)),
    *(TopK(20), RandK(20), RandK(140), EDEN(1), EDEN(2), EDEN(3, 40), EDEN(4, 150), DeComFL(10)),
    *(Peaks(5, 8), Peaks(6, 4, "rademacher"), Peaks(3, 64, "rademacher")),
    *(FedKSeed(10, 10, 64, bits) for bits in (32, 16, 8, 4, 1)),
    *(FeedSign(1), FeedSign(10)),
]
SCALAR_BITS = (32, 16, 8, 4, 1)
POOL_SEED = 0x4665644B53656564  # "FedKSeed"


def eden_table() -> dict[int, list[float]]:
    """All levels by number of bits, as the document lists them."""
    text = (DOCS / "codecs.md").read_text(encoding="utf-8")
    table = {}
    for bits, row in re.findall(r"^\| ([1-4]) \| (`[0-9a-f]{8}` \(.*) \|$", text, flags=re.MULTILINE):
        above = [struct.unpack(">f", bytes.fromhex(word))[0] for word in re.findall(r"`([0-9a-f]{8})`", row)]
        table[int(bits)] = [-level for level in reversed(above)] + above
    return table


def numbers_of(data: bytes, bits: int, count: int) -> list[int]:
    whole = int.from_bytes(data, "little")
    return [whole >> (bits * j) & (2**bits - 1) for j in range(count)]


class Frame:
    """A self-contained frame, taken apart."""

    def __init__(self, frame: bytes) -> None:
        self.code, self.first, self.second, self.d, self.size, self.slot, self.seed = struct.unpack_from(
            "<5xBBBQIIQ", frame
        )
        self.payload = frame[32:-4]

    def float_at(self, offset: int) -> float:
        return float(struct.unpack_from("<f", self.payload, offset)[0])

    def floats(self, offset: int, count: int) -> list[float]:
        return list(struct.unpack_from(f"<{count}f", self.payload, offset))

    def levels(self, bits: int, count: int) -> list[int]:
        return [n - 2**bits if n >> (bits - 1) else n for n in numbers_of(self.payload[4:], bits, count)]


def values_of(frame: Frame, factor: float) -> tuple[float, dict[int, float]]:
    """f and the values by coordinate, of codecs that are summed in float64."""
    d, size = frame.d, frame.size
    if frame.code == 3:
        levels = frame.levels(frame.second, d)
        return factor * frame.float_at(0) / (2 ** (frame.second - 1) - 1), dict(enumerate(map(float, levels)))
    if frame.code == 4:
        indices = struct.unpack_from(f"<{size}I", frame.payload)
        return factor, dict(zip(indices, frame.floats(4 * size, size), strict=True))
    if frame.code == 5:
        chosen = reference.coordinates(frame.seed, d, frame.slot, size)
        return factor, dict(zip(chosen, frame.floats(0, size), strict=True))
    if frame.code == 9:
        scaled = frame.first == 1
        signs = [1.0 - 2.0 * bit for bit in numbers_of(frame.payload[4 * scaled :], 1, d)]
        return factor * frame.float_at(0) if scaled else factor, dict(enumerate(signs))
    return factor, dict(enumerate(frame.floats(0, d)))


def directions_of(frame: Frame, factor: float) -> tuple[str, list[tuple[int, float]]]:
    """The family, and pairs (index of a direction, coefficient before it is rounded), of codecs that project."""
    m = frame.size
    if frame.code == 13:
        group = 2**frame.second
        power = frame.payload[0]
        scale = math.ldexp([1.0, 2**0.25, math.sqrt(2), 2**0.75][power % 4], (power - 128) // 4) if power else 0.0
        f = factor * scale / m
        found = numbers_of(frame.payload[1:], frame.second + 1, m)
        pairs = [
            (frame.slot * m * group + j * group + n % group, f * (1.0 if n < group else -1.0))
            for j, n in enumerate(found)
        ]
        return ["rademacher", "hadamard"][frame.first], pairs
    if frame.code == 10:
        order = hadamard_size(frame.d)
        rows = m if frame.second else order
        f = factor * frame.float_at(0) / rows
        levels = [eden_table()[frame.first][n] for n in numbers_of(frame.payload[4:], frame.first, rows)]
        start = frame.slot * rows if frame.second else 0
        return "hadamard", [((start + i) % order, f * level) for i, level in enumerate(levels)]
    bits = {11: 32, 14: SCALAR_BITS[frame.second // 32]}.get(frame.code, frame.second)
    f = factor / m if bits == 32 else factor / m * frame.float_at(0)
    if bits == 1:
        scalars = [1.0 - 2.0 * bit for bit in numbers_of(frame.payload[4:], 1, m)]
    else:
        scalars = frame.floats(0, m) if bits == 32 else [float(level) for level in frame.levels(bits, m)]
    if frame.code == 14:
        words = reference.rounding_words(derive_seed(frame.seed, 0, 1), frame.slot, m)
        return "pool", [(int(word) % 2**frame.first, f * scalar) for word, scalar in zip(words, scalars, strict=True)]
    family = "rademacher" if frame.code == 11 else ["rademacher", "hadamard"][frame.first]
    return family, [(frame.slot * m + j, f * scalar) for j, scalar in enumerate(scalars)]


def add_votes(frames: list[Frame], factors: list[float], out: Float32) -> None:
    m = frames[0].size
    for seed, slot in dict.fromkeys((frame.seed, frame.slot) for frame in frames):
        voters = [i for i, frame in enumerate(frames) if (frame.seed, frame.slot) == (seed, slot)]
        votes, weight = [0.0] * m, 0.0
        for i in voters:
            weight += factors[i]
            for j, bit in enumerate(numbers_of(frames[i].payload, 1, m)):
                votes[j] += factors[i] * (1.0 - 2.0 * bit)
        signs = [float(np.sign(vote)) if abs(vote) > 2.0**-40 else 0.0 for vote in votes]
        coefficients = np.array([weight / m * sign for sign in signs]).astype(np.float32)
        reference.rademacher_decode(coefficients, seed, slot * m, out)


def add_directions(frames: list[Frame], factors: list[float], out: Float32) -> None:
    groups: dict[int, tuple[list[Float32], list[int]]] = {}
    for frame, factor in zip(frames, factors, strict=True):
        family, pairs = directions_of(frame, factor)
        coefficients = np.array([value for _, value in pairs]).astype(np.float32)
        if family == "hadamard":
            rows, firsts = groups.setdefault(frame.seed, ([], []))
            rows += [coefficients[i : i + 1] for i in range(len(pairs))]
            firsts += [index for index, _ in pairs]
        elif frame.code in (13, 14):  # one direction at a time
            seed = POOL_SEED if family == "pool" else frame.seed
            for (index, _), coefficient in zip(pairs, coefficients, strict=True):
                out += coefficient * reference.signs(seed, index, frame.d)
        else:
            reference.rademacher_decode(coefficients, frame.seed, pairs[0][0], out)
    for seed, (rows, firsts) in groups.items():
        reference.hadamard_decode(rows, seed, firsts, out)


def decoded(frames: list[Frame], weights: list[float]) -> Float32:
    total = math.fsum(weights)
    factors = [weight / total for weight in weights]
    out = np.zeros(frames[0].d, dtype=np.float32)
    if frames[0].code == 15:
        add_votes(frames, factors, out)
        return out
    if frames[0].code in (1, 10, 11, 13, 14):
        add_directions(frames, factors, out)
        return out
    sums = [0.0] * frames[0].d
    for frame, factor in zip(frames, factors, strict=True):
        f, values = values_of(frame, factor)
        for coordinate, value in values.items():
            sums[coordinate] += f * value
    return np.array(sums).astype(np.float32)


def test_votes_of_one_key_in_the_document_are_those_of_the_code() -> None:
    for m, weights in ((1, [1.0] * 10), (9, [1.0] * 10), (9, [2.0, 1.0, 4.0, 1.0, 0.0, 3.0, 1.0, 1.0, 1.0, 2.0])):
        updates = FeedSign(m).encode(gaussian(10, D), [Key(3)] * 5 + [Key(4, 1)] * 5)
        frames = [Frame(pack(update)) for update in updates]
        assert decoded(frames, weights).tobytes() == FeedSign(m).decode_mean(updates, weights).tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_the_documents_are_enough_to_decode_to_the_same_bits(codec: Codec) -> None:
    updates = codec.encode(gaussian(3, D, seed=4), SHARED)
    frames = [Frame(pack(update)) for update in updates]
    assert decoded(frames, WEIGHTS).tobytes() == codec.decode_mean(updates, WEIGHTS).tobytes()
    assert decoded(frames, [1.0] * 3).tobytes() == codec.decode_mean(updates).tobytes()


def test_the_table_of_eden_in_the_document_is_the_one_that_is_used() -> None:
    table = eden_table()
    assert sorted(table) == [1, 2, 3, 4]
    for bits, levels in table.items():
        assert np.array(levels, dtype=np.float32).tobytes() == quantiser_levels(bits).tobytes()


def test_slots_of_eden_matter_only_where_rows_are_left_out() -> None:
    g = gaussian(1, D)
    for codec, same in ((EDEN(2), True), (EDEN(2, 40), False)):
        near, far = (codec.encode(g, [Key(3, slot)])[0] for slot in (0, 2))
        assert (near.arrays[1].tobytes() == far.arrays[1].tobytes()) == same
        assert (codec.decode_mean([near]).tobytes() == codec.decode_mean([far]).tobytes()) == same


@pytest.mark.parametrize("codec", [MPDD(10), RandK(20), QSGD(8), FedSGD(), TopK(5), LpProj(5), SignSGD()], ids=label)
@pytest.mark.parametrize("sends_seed", [True, False])
def test_the_last_byte_of_a_tag_says_whether_frames_carry_a_seed(codec: Codec, sends_seed: bool) -> None:
    session = Session(codec, D, sends_seed=sends_seed)
    update = codec.encode(gaussian(1, D), [Key(9)])[0]
    header = bytearray(pack(update)[:32])
    header[20:32] = bytes(12)
    carries = sends_seed and codec.needs_key
    tag = zlib.crc32(bytes(header) + bytes([carries])).to_bytes(4, "little")[:3]
    frame = session.pack(update)
    assert frame[1:4] == tag
    assert len(frame) == 8 + codec.bytes_per_update(D) + 8 * carries


def test_which_error_large_peaks_raise() -> None:
    """The table of docs/codecs.md: in making or encoding, and in reading."""
    from fedmpdd import unpack

    def read(m: int, log2_group: int, family: int, d: int = D, slot: int = 0) -> Any:
        body = b"FMPD\x01\x0d" + bytes([family, log2_group]) + struct.pack("<QIIQ", d, m, slot, 1)
        return unpack(body + bytes(1 + -(-m * (1 + log2_group) // 8)) + bytes(4))

    with pytest.raises(CodecError, match="scale or clip"):
        Peaks(2, 4).encode(np.full((1, D), 1e12, dtype=np.float32), [1])
    with pytest.raises(CodecError, match="number of directions"):
        Peaks(2**15, 2**16)
    with pytest.raises(UnknownCodecError):
        read(2**15, 16, 0)
    with pytest.raises(CodecError, match="group"):
        Peaks(2, 2**17)
    with pytest.raises(UnknownCodecError):
        read(2, 17, 0)
    for family, m in (("hadamard", 38), ("rademacher", 2**18 + 1)):
        with pytest.raises(CodecError, match="derivatives of d"):
            Peaks(m, 4, family).encode(gaussian(1, D), [1])
        with pytest.raises(LimitError):
            read(m, 2, ["rademacher", "hadamard"].index(family))
    with pytest.raises(KeyRangeError):
        Peaks(2, 4, "rademacher").encode(gaussian(1, D), [Key(1, 2**32 - 1)])
    with pytest.raises(LimitError):
        read(2, 2, 0, slot=2**32 - 1)


def test_the_work_in_the_document_is_the_work_of_the_code() -> None:
    d, n = 1_000, hadamard_size(1_000)
    for codec, additions in (
        (MPDD(10), 10 * d),
        (DeComFL(10), 10 * d),
        (FedKSeed(10), 40 * d),
        (FeedSign(10), 10 * d),
        (MPDD(10, family="hadamard"), 64 * d + 128 * 10),
        (Peaks(3, 16), 64 * d + 128 * 48 + 1_024 * 3),
        (Peaks(3, 16, "rademacher"), 48 * d + 1_024 * 3),
        (FedSGD(), 64 * d),
        (QSGD(8), 64 * d),
        (QSGD(4), 128 * d),
        (TopK(5), 32 * d + 256 * 5),
        (RandK(5), 32 * d + 1_024 * 5 + 192 * 35),
        (LpProj(5), 1_024 * d * 5),
        (SignSGD(), 96 * d),
        (EDEN(1), 64 * d + 640 * n),
        (EDEN(1, 40), 64 * d + 640 * 40),
    ):
        assert codec.work(d, 7) == additions, codec
