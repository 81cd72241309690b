"""docs/vectors.json against the slow reference: keys, peaks and bare frames, written as the pages say."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import BareSession, errors, unpack
from fedmpdd.codecs import CODECS, MPDD, Codec, Peaks
from fedmpdd.directions import Key, available_isas, reference, using

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "vectors.json").read_text(encoding="utf-8"))
SEED = int(VECTORS["seed"], 16)
BARE = VECTORS["bare"]


def gradient(d: int) -> NDArray[np.float32]:
    return ((37 * np.arange(d) + 11) % 101 - 50).astype(np.float32) / np.float32(64)


def codec_of(words: dict[str, Any]) -> Codec:
    return CODECS[words["name"]](**{name: value for name, value in words.items() if name != "name"})


def scalars_of(g: NDArray[np.float32], codec: MPDD | Peaks, key: Key) -> NDArray[np.float64]:
    encode = reference.rademacher_encode if codec.family == "rademacher" else reference.hadamard_encode
    return encode(g, key.seed, key.slot * codec.count, codec.count)


def payload_of(g: NDArray[np.float32], codec: Codec, key: Key) -> bytes:
    """What docs/codecs.md and docs/directions.md say that these codecs send."""
    assert isinstance(codec, MPDD | Peaks)
    scalars, square = scalars_of(g, codec, key), float((g.astype(np.float64) ** 2).sum())
    if isinstance(codec, Peaks):
        return peaks_payload(scalars, square, codec, key)
    if codec.bits == 32:
        return scalars.astype("<f4").tobytes()
    assert codec.bits == 1
    scale = math.sqrt(math.pi / 2 * square) / (1 + float((g.astype(np.float64) ** 4).sum()) / (12 * square**2))
    return np.float32(scale).tobytes() + np.packbits(scalars < 0, bitorder="little").tobytes()


def peaks_payload(scalars: NDArray[np.float64], square: float, codec: Peaks, key: Key) -> bytes:
    number = 0
    heights = []
    for j, group in enumerate(scalars.reshape(codec.m, codec.group)):
        place = int(np.abs(group).argmax())
        heights.append(abs(float(group[place])))
        number |= (place + codec.group * int(group[place] < 0)) << j * codec.group.bit_length()
    scale = square / (sum(heights) / codec.m)
    levels = [0.0, *(2 ** ((k - 128) / 4) for k in range(1, 256))]
    above = next(k for k in range(1, 256) if levels[k] >= scale)
    share = (int(reference.rounding_words(key.seed, key.slot, 1)[0]) + 0.5) / 2**32
    up = share * (levels[above] - levels[above - 1]) < scale - levels[above - 1]
    length = -(-codec.m * codec.group.bit_length() // 8)
    return bytes([above if up else above - 1]) + number.to_bytes(length, "little")


def key_of(session: int, keys: str, round_number: int, client: int) -> Key:
    """The derivation of docs/wire-format.md, on Philox alone."""
    numbered = client if keys == "derived" else 2**64 - 1
    counter = np.array([[numbered % 2**32, round_number, 4, numbered >> 32]], dtype=np.uint64)
    low, high, _, _ = reference.philox4x32(counter, session)[0].tolist()
    return Key(low | high << 32, client if keys == "partitioned" else 0)


@pytest.mark.parametrize("vector", BARE["frames"], ids=lambda vector: f"{vector['codec']['name']}-{vector['keys']}")
def test_bare_frames_are_those_of_the_reference(vector: dict[str, Any]) -> None:
    codec, d, where = codec_of(vector["codec"]), BARE["d"], (vector["round"], vector["client"])
    session_seed = int(BARE["session"], 16)
    key = key_of(session_seed, vector["keys"], *where)
    assert key == Key(int(vector["seed"], 16), vector["slot"])
    frame = bytes.fromhex(vector["frame"])
    assert payload_of(gradient(d), codec.at_round(where[0]), key) == frame
    session = BareSession(codec, d, session_seed, keys=vector["keys"])
    update = session.unpack(frame, *where)
    assert update.key == key
    assert session.pack(update, *where) == frame


def test_seeds_of_secrets() -> None:
    for vector in BARE["sessions"]:
        session = BareSession.from_secret(
            codec_of(vector["codec"]), BARE["d"], bytes.fromhex(BARE["secret"]), BARE["training"], keys=vector["keys"]
        )
        assert f"{session.seed:016x}" == vector["seed"]


@pytest.mark.parametrize("vector", BARE["refused"])
def test_bare_frames_that_are_refused(vector: dict[str, Any]) -> None:
    session = BareSession(codec_of(vector["codec"]), BARE["d"], SEED)
    with pytest.raises(errors.WireError) as caught:
        session.unpack(bytes.fromhex(vector["frame"]), 0, 0)
    assert type(caught.value).__name__ == vector["error"]


@pytest.mark.parametrize("vector", VECTORS["peaks"], ids=lambda vector: vector["codec"]["family"])
def test_peaks_are_those_of_the_reference(vector: dict[str, Any]) -> None:
    codec, d = codec_of(vector["codec"]), vector["d"]
    frame = bytes.fromhex(vector["self_contained"])
    payload = payload_of(gradient(d), codec, Key(SEED, vector["slot"]))
    assert frame[32:-4] == payload
    assert bytes.fromhex(vector["compact"])[4:] == payload + frame[-4:]
    assert bytes.fromhex(vector["compact_with_seed"])[4:] == SEED.to_bytes(8, "little") + payload + frame[-4:]
    estimate = decoded([unpack(frame)], [1.0])
    assert " ".join(f"{word:08x}" for word in estimate[:8].view(np.uint32)) == vector["first_8_of_estimate"]


@pytest.mark.parametrize("vector", VECTORS["peaks_rounds"])
def test_weighted_rounds_of_peaks_decode_to_the_same_bits(vector: dict[str, Any]) -> None:
    updates = [unpack(bytes.fromhex(frame)) for frame in vector["frames"]]
    for isa in available_isas():
        with using(isa=isa):
            estimate = updates[0].codec.decode_mean(updates, vector["weights"])
        assert " ".join(f"{word:08x}" for word in estimate.view(np.uint32)) == vector["estimate"]
    assert decoded(updates, vector["weights"]).tobytes() == estimate.tobytes()


def decoded(updates: list[Any], weights: list[float]) -> NDArray[np.float32]:
    """Peaks added up as docs/directions.md says, one after the other or through one transform."""
    codec, out = updates[0].codec, np.zeros(updates[0].d, dtype=np.float32)
    rows = []
    for update, weight in zip(updates, weights, strict=True):
        scale, number = update.arrays[0][0], int.from_bytes(update.arrays[1].tobytes(), "little")
        value = 0.0 if scale == 0 else 2 ** ((int(scale) - 128) / 4)
        coefficients = np.zeros(codec.count, dtype=np.float32)
        for j in range(codec.m):
            peak = number >> j * codec.group.bit_length() & 2 * codec.group - 1
            sign = -1.0 if peak >= codec.group else 1.0
            coefficients[j * codec.group + peak % codec.group] = weight / math.fsum(weights) * value / codec.m * sign
        rows.append(coefficients)
        if codec.family == "rademacher":
            reference.rademacher_decode(coefficients, update.key.seed, update.key.slot * codec.count, out)
    if codec.family == "hadamard":
        reference.hadamard_decode(rows, updates[0].key.seed, [update.key.slot * codec.count for update in updates], out)
    return out
