"""Bundles: every round through bytes and back, and nothing else believed."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd.codecs import MPDD, Codec, SignSGD
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import ContentError, InputError, LimitError, TruncatedFrameError, WireError
from fedmpdd.wire.bundle import MOST_UPDATES, Bundle, unpack_bundle
from tests.codecs.table import CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

ONE_BIT = MPDD(24, bits=1, family="hadamard")


def bundle_of(codec: Codec, keys: list[Key], weights: tuple[float, ...] | None = None) -> Bundle:
    return Bundle(tuple(codec.encode(gaussian(len(keys), D), keys)), weights)


@pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)
@pytest.mark.parametrize("weights", [None, (1.0, 0.0, 2.5)])
def test_a_round_goes_through_bytes(codec: Codec, weights: tuple[float, ...] | None) -> None:
    bundle = bundle_of(codec, [Key(7), Key(8), Key(2**64 - 1)], weights)
    again = unpack_bundle(bundle.pack(), codec, D)
    assert again == bundle
    assert (
        codec.decode_mean(again.updates, again.weights).tobytes()
        == codec.decode_mean(bundle.updates, weights).tobytes()
    )


@given(st.lists(st.booleans(), min_size=1, max_size=30).filter(any), st.integers(0, 2**64 - 1))
def test_partitioned_keys_cost_one_seed_and_a_bit_each(answers: list[bool], seed: int) -> None:
    keys = [key for key, here in zip(partitioned_keys(seed, len(answers)), answers, strict=True) if here]
    codec = MPDD(8, bits=1, family="hadamard")
    bundle = bundle_of(codec, keys)
    assert unpack_bundle(bundle.pack(), codec, D) == bundle
    assert len(bundle.pack()) <= 8 + 8 + 4 + -(-len(answers) // 8) + len(keys) * codec.bytes_per_update(D)


def test_a_shared_key_is_said_once() -> None:
    bundle = bundle_of(ONE_BIT, [Key(5)] * 3)
    assert len(bundle.pack()) == 8 + 8 + 3 * ONE_BIT.bytes_per_update(D)
    assert unpack_bundle(bundle.pack(), ONE_BIT, D) == bundle


def test_a_round_without_answers_is_eight_bytes() -> None:
    assert Bundle().pack() == bytes(8)
    assert unpack_bundle(bytes(8), ONE_BIT, D) == Bundle()
    with pytest.raises(ContentError, match="without updates"):
        unpack_bundle(bytes(9), ONE_BIT, D)


def test_keys_that_have_no_place_are_refused() -> None:
    with pytest.raises(ContentError, match="different seeds"):
        bundle_of(ONE_BIT, [Key(1, 1), Key(2, 2)]).pack()


@pytest.mark.parametrize("keys", [[Key(1), Key(2)], [Key(1)] * 2, partitioned_keys(1, 3)], ids=["own", "one", "slots"])
def test_no_byte_can_be_cut_off(keys: list[Key]) -> None:
    data = bundle_of(ONE_BIT, keys, tuple(1.0 for _ in keys)).pack()
    for length in range(len(data)):
        with pytest.raises(WireError):
            unpack_bundle(data[:length], ONE_BIT, D)


@pytest.mark.parametrize(
    ("at", "value", "error", "words"),
    [
        (0, 4, ContentError, "never writes"),
        (1, 2, ContentError, "never writes"),
        (2, 1, ContentError, "never writes"),
        (0, 0, ContentError, "cannot be decoded"),
        (7, 2, LimitError, "at most"),
        (16, 200, TruncatedFrameError, "needs more"),
        (20, 255, ContentError, "slots"),
    ],
)
def test_what_a_bundle_says_of_itself_is_checked(at: int, value: int, error: type[WireError], words: str) -> None:
    data = bytearray(bundle_of(ONE_BIT, partitioned_keys(1, 3)).pack())
    data[at] = value
    with pytest.raises(error, match=words):
        unpack_bundle(bytes(data), ONE_BIT, D)


@given(st.binary(max_size=200))
def test_rubbish_is_a_wire_error(data: bytes) -> None:
    try:
        unpack_bundle(data, ONE_BIT, D)
    except WireError:
        return
    except InputError as error:  # pragma: no cover
        raise AssertionError("bytes from outside are a WireError") from error


def frame(way: int, count: int, keys: bytes, codec: Codec = ONE_BIT) -> bytes:
    """A bundle of empty updates without weights, its keys given as they come."""
    return struct.pack("<BBHI", way, 0, 0, count) + keys + bytes(count * codec.bytes_per_update(D))


SEED = struct.pack("<Q", 5)


@pytest.mark.parametrize(
    ("way", "count", "keys"),
    [
        (1, 2, SEED * 2),  # one key for all, said twice
        (2, 1, SEED),  # one update's seed as if it were shared
        (3, 1, SEED + struct.pack("<I", 1) + b"\x01"),  # slot 0 alone, which needs no slots
    ],
)
def test_a_round_has_one_bundle(way: int, count: int, keys: bytes) -> None:
    with pytest.raises(ContentError, match="there is a shorter one"):
        unpack_bundle(frame(way, count, keys), ONE_BIT, D)


@given(
    st.integers(0, 3),
    st.integers(0, 4),
    st.lists(st.sampled_from([bytes(8), SEED, bytes([1, 0, 0, 0]), b"\x09\0\0\0", b"\x01", b"\x03", b"\x81\x01"])),
    st.booleans(),
)
def test_whatever_is_read_packs_to_the_same_bytes(way: int, count: int, parts: list[bytes], weighted: bool) -> None:
    data = bytearray(frame(way, count, b"".join(parts) + (struct.pack("<d", 1.5) * count if weighted else b"")))
    data[1] = weighted
    try:
        bundle = unpack_bundle(bytes(data), ONE_BIT, D)
    except WireError:
        return
    assert bundle.pack() == data


@pytest.mark.parametrize(
    "keys",
    [[Key(5)], [Key(5, 3)], [Key(5)] * 2, [Key(5), Key(6)], partitioned_keys(5, 2), [Key(5, 1), Key(5, 9_000)]],
    ids=str,
)
@pytest.mark.parametrize("weights", [None, 0.25])
def test_what_this_package_writes_is_what_it_reads(keys: list[Key], weights: float | None) -> None:
    """Among them the one update of a round's key that stands for a mean, and weights with factors in them."""
    bundle = bundle_of(ONE_BIT, keys, None if weights is None else (weights,) * len(keys))
    assert unpack_bundle(bundle.pack(), ONE_BIT, D) == bundle


@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_what_a_bundle_claims_costs_nothing(way: int) -> None:
    codec = SignSGD() if way == 0 else ONE_BIT
    data = struct.pack("<BBHI", way, 1, 0, MOST_UPDATES) + bytes(8) + b"\xff" * 4
    tracemalloc.start()
    with pytest.raises(WireError):
        unpack_bundle(data, codec, D)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_long_row_of_slots_is_not_unpacked() -> None:
    """Two million marked slots for one update: a byte each, or a number each, would be several times the bundle."""
    marks = b"\xff" * 2**18
    data = frame(3, 1, SEED + struct.pack("<I", 8 * len(marks)) + marks)
    tracemalloc.start()
    with pytest.raises(ContentError, match="marks other slots"):
        unpack_bundle(data, ONE_BIT, D)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(marks)


def test_rounds_that_no_bundle_holds_are_refused_on_both_sides() -> None:
    update = bundle_of(ONE_BIT, [Key(5)]).updates[0]
    with pytest.raises(LimitError, match="at most 1,048,576"):
        Bundle((update,) * (MOST_UPDATES + 1)).pack()
    with pytest.raises(LimitError, match="at most 1,048,576"):
        unpack_bundle(struct.pack("<BBHI", 2, 0, 0, MOST_UPDATES + 1), ONE_BIT, D)


def test_weights_that_cannot_be_meant_are_refused() -> None:
    for weights in ((-1.0, 2.0), (float("nan"), 1.0), (0.0, 0.0), (1e308, 1e308)):
        data = bundle_of(ONE_BIT, [Key(1), Key(2)], weights).pack()
        with pytest.raises(ContentError, match="weights"):
            unpack_bundle(data, ONE_BIT, D)
