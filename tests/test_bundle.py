"""Bundles: every round through bytes and back, and nothing else believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd.bundle import Bundle, unpack_bundle
from fedmpdd.codecs import MPDD, Codec
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import ContentError, InputError, LimitError, TruncatedFrameError, WireError
from tests.codecs.table import CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

ONE_BIT = MPDD(24, bits=1, family="hadamard")


def bundle_of(codec: Codec, keys: list[Key], weights: tuple[float, ...] | None = None) -> Bundle:
    if codec.from_losses:
        losses = gaussian(len(keys), codec.m).astype(np.float64)  # type: ignore[attr-defined]
        return Bundle(tuple(codec.encode_losses(losses, keys, D)), weights)  # type: ignore[attr-defined]
    return Bundle(tuple(codec.encode(gaussian(len(keys), D), keys)), weights)


@pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)
@pytest.mark.parametrize("weights", [None, (1.0, 0.0, 2.5)])
def test_a_round_goes_through_bytes(codec: Codec, weights: tuple[float, ...] | None) -> None:
    bundle = bundle_of(codec, [Key(7), Key(8), Key(2**64 - 1)], weights)
    again = unpack_bundle(bundle.pack(), codec, D)
    assert again == bundle
    assert again.estimate().numpy().tobytes() == codec.decode_mean(bundle.updates, weights).tobytes()


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


def test_weights_that_cannot_be_meant_are_refused() -> None:
    for weights in ((-1.0, 2.0), (float("nan"), 1.0), (0.0, 0.0)):
        data = bundle_of(ONE_BIT, [Key(1), Key(2)], weights).pack()
        with pytest.raises(ContentError, match="weights"):
            unpack_bundle(data, ONE_BIT, D)
