"""Mixed bundles: every round of several codecs through bytes and back, and nothing else believed."""

import struct
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmpdd.codecs import MPDD, Codec, FedSGD, Peaks
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import ContentError, FrameLengthError, InputError, LimitError, TruncatedFrameError, WireError
from fedmpdd.wire import mixed_bundle
from fedmpdd.wire.bundle import Bundle, unpack_bundle
from fedmpdd.wire.mixed_bundle import MixedBundle, MixedPart, unpack_mixed_bundle
from tests.conftest import gaussian

D = 70
CODECS = (MPDD(8, bits=1, family="hadamard"), Peaks(3, group=16), FedSGD())
HEAD, PART = struct.Struct("<BBHI"), struct.Struct("<IId")


def bundle_of(codec: Codec, keys: list[Key], weights: tuple[float, ...] | None = None) -> Bundle:
    return Bundle(tuple(codec.encode(gaussian(len(keys), D), keys)), weights)


def mixed() -> MixedBundle:
    """One round of all ways to give keys that links can have, with and without weights."""
    return MixedBundle(
        (
            MixedPart(0, 0.25, bundle_of(CODECS[0], [Key(1), Key(2)], (1.0, 0.5))),
            MixedPart(1, 0.5, bundle_of(CODECS[1], [Key(3)])),
            MixedPart(2, 0.25, bundle_of(CODECS[2], [Key(4), Key(5)])),
        )
    )


def packed(*parts: tuple[int, float, bytes], way: int = 4, weighted: int = 0, zero: int = 0) -> bytes:
    pieces = [HEAD.pack(way, weighted, zero, len(parts))]
    for number, share, data in parts:
        pieces += [PART.pack(number, len(data), share), data]
    return b"".join(pieces)


@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_a_round_goes_through_bytes(numbers: tuple[int, ...]) -> None:
    bundle = MixedBundle(tuple(mixed().parts[number] for number in numbers))
    data = bundle.pack()
    again = unpack_mixed_bundle(data, CODECS, D)
    assert again == bundle
    assert again.pack() == data


def test_the_bytes_are_those_of_the_specification() -> None:
    """docs/journal.md, "Mixed bundles", read by itself: head, then number, length, share and plain bundle each."""
    data = mixed().pack()
    way, weighted, zero, count = HEAD.unpack_from(data)
    assert (way, weighted, zero, count) == (4, 0, 0, 3)
    at = HEAD.size
    for part in mixed().parts:
        number, length, share = PART.unpack_from(data, at)
        at += PART.size
        assert (number, share) == (part.codec, part.share)
        assert unpack_bundle(data[at : at + length], CODECS[number], D) == part.bundle
        at += length
    assert at == len(data)


def test_a_round_without_answers_is_that_of_one_codec() -> None:
    assert MixedBundle().pack() == Bundle().pack() == bytes(8)
    assert unpack_mixed_bundle(bytes(8), CODECS, D) == MixedBundle()


def test_no_byte_can_be_cut_off_or_added() -> None:
    data = mixed().pack()
    for length in range(len(data)):
        with pytest.raises(WireError):
            unpack_mixed_bundle(data[:length], CODECS, D)
    with pytest.raises(FrameLengthError, match="3 parts make it"):
        unpack_mixed_bundle(data + b"\0", CODECS, D)


PLAIN = bundle_of(CODECS[1], [Key(3)]).pack()


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (PLAIN, ContentError, "does this run have links"),
        (packed((1, 1.0, PLAIN), way=5), ContentError, "expected 04"),
        (packed((1, 1.0, PLAIN), weighted=1), ContentError, "expected 04"),
        (packed((1, 1.0, PLAIN), zero=1), ContentError, "expected 04"),
        (packed(), ContentError, "has 0 parts"),
        (packed(*[(1, 1.0, PLAIN)] * 4), ContentError, "has 4 parts; expected 1 to 3"),
        (packed((3, 1.0, PLAIN)), ContentError, "a part of codec 3"),
        (packed((1, 1.0, PLAIN), (1, 1.0, PLAIN)), ContentError, "ascending"),
        (packed((2, 1.0, bundle_of(CODECS[2], [Key(1)]).pack()), (1, 1.0, PLAIN)), ContentError, "ascending"),
        (packed((1, 1.0, bytes(8))), ContentError, "without updates"),
        (packed((1, 1.0, PLAIN + b"\0")), FrameLengthError, "its 1 updates make it"),
        (packed((0, 1.0, PLAIN)), FrameLengthError, "its 1 updates make it"),
        (packed((1, 1.0, packed((1, 1.0, PLAIN)))), ContentError, "never writes"),
        (HEAD.pack(4, 0, 0, 1) + PART.pack(1, 2**32 - 1, 1.0) + PLAIN, TruncatedFrameError, "needs more"),
    ],
)
def test_what_a_bundle_says_of_itself_is_checked(data: bytes, error: type[WireError], words: str) -> None:
    with pytest.raises(error, match=words):
        unpack_mixed_bundle(data, CODECS, D)


@pytest.mark.parametrize("shares", [(0.0, 1.0), (-0.0, 1.0), (-1.0, 2.0), (np.nan, 1.0), (np.inf, 1.0), (1e308, 1e308)])
def test_shares_that_cannot_be_meant_are_refused(shares: tuple[float, float]) -> None:
    other = bundle_of(CODECS[2], [Key(1)]).pack()
    with pytest.raises(ContentError, match="shares"):
        unpack_mixed_bundle(packed((1, shares[0], PLAIN), (2, shares[1], other)), CODECS, D)


def test_a_plain_reader_refuses_a_mixed_bundle() -> None:
    with pytest.raises(ContentError, match="never writes"):
        unpack_bundle(mixed().pack(), CODECS[0], D)


def test_all_parts_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = mixed().pack()
    monkeypatch.setattr(mixed_bundle, "MOST_UPDATES", 4)  # each part is within it
    with pytest.raises(LimitError, match="5 updates"):
        unpack_mixed_bundle(data, CODECS, D)
    with pytest.raises(LimitError, match="5 updates"):
        mixed().pack()


def test_partitioned_keys_have_their_place_in_a_part() -> None:
    """Links refuse them, since slots overlap; the format does not."""
    part = MixedPart(0, 1.0, bundle_of(CODECS[0], partitioned_keys(9, 5)[1:]))
    assert unpack_mixed_bundle(MixedBundle((part,)).pack(), CODECS, D) == MixedBundle((part,))


def read_or_refused(data: bytes) -> None:
    """Every input is a WireError, or packs to the very same bytes."""
    try:
        bundle = unpack_mixed_bundle(data, CODECS, D)
    except WireError:
        return
    except InputError as error:  # pragma: no cover
        raise AssertionError("bytes from outside are a WireError") from error
    assert bundle.pack() == data


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_rubbish_is_a_wire_error(data: bytes) -> None:
    read_or_refused(data)
    read_or_refused(b"\4\0\0\0" + data)


WHOLE = mixed().pack()


@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from([0, -1, 1, 8]),
)
@settings(max_examples=1000)
def test_a_damaged_bundle_is_refused_or_read_exactly(changes: list[tuple[int, int]], longer: int) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    read_or_refused(bytes(data[:longer] if longer < 0 else data + bytes(longer)))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]),
            st.sampled_from([part.bundle.pack() for part in mixed().parts] + [bytes(8), b""]),
        ),
        max_size=4,
    )
)
@settings(max_examples=500)
def test_whatever_is_read_packs_to_the_same_bytes(parts: list[tuple[int, float, bytes]]) -> None:
    read_or_refused(packed(*parts))


def test_the_strategies_above_reach_whole_bundles() -> None:
    """Among the parts that are drawn are those that are read."""
    parts = [(part.codec, part.share, part.bundle.pack()) for part in mixed().parts]
    for chosen in product([False, True], repeat=3):
        some = [part for part, here in zip(parts, chosen, strict=True) if here]
        if some:
            assert len(unpack_mixed_bundle(packed(*some), CODECS, D).parts) == len(some)


def test_what_a_bundle_claims_costs_nothing() -> None:
    data = HEAD.pack(4, 0, 0, 3) + PART.pack(0, 2**31, 1.0) + HEAD.pack(1, 1, 0, 2**20)
    tracemalloc.start()
    with pytest.raises(WireError):
        unpack_mixed_bundle(data, CODECS, D)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
