"""The mean of updates with one key is an update."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD, Update
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError
from tests.conftest import gaussian

D, CLIENTS = 500, 20


def decoded(update: Update) -> NDArray[np.float32]:
    """The scalars of an update that has a scale."""
    assert isinstance(update.codec, MPDD)
    return update.codec.scalars_of(update).astype(np.float32)


@pytest.mark.parametrize("bits", [32, 8, 4, 1])
@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize("weights", [None, [float(i + 1) for i in range(CLIENTS)]])
def test_it_decodes_to_the_mean_of_what_they_decode_to(bits: int, family: str, weights: list[float] | None) -> None:
    codec = MPDD(64, bits, family)
    updates = codec.encode(gaussian(CLIENTS, D), [Key(9)] * CLIENTS)
    together = codec.mean_update(updates, 32, weights)
    assert together.codec == MPDD(64, 32, family)
    expected = codec.decode_mean(updates, weights)
    np.testing.assert_allclose(together.codec.decode_mean([together]), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("bits", "tolerance"), [(16, 1e-3), (8, 0.02), (4, 0.3)])
def test_fewer_bits_lose_little(bits: int, tolerance: float) -> None:
    """Largest error of a level is one step, 1/levels of the largest scalar: no chance involved."""
    codec = MPDD(64, 1, "hadamard")
    updates = codec.encode(gaussian(CLIENTS, D), [Key(9)] * CLIENTS)
    exact = codec.mean_update(updates, 32).arrays[0]
    rounded = codec.mean_update(updates, bits)
    assert np.abs(decoded(rounded) - exact).max() <= tolerance * np.abs(exact).max()


def test_one_bit_keeps_signs_and_size() -> None:
    codec = MPDD(64, 32)
    updates = codec.encode(gaussian(CLIENTS, D), [Key(9)] * CLIENTS)
    exact = codec.mean_update(updates, 32).arrays[0]
    one_bit = codec.mean_update(updates, 1)
    assert ((decoded(one_bit) < 0) == (exact < 0)).all()
    assert one_bit.arrays[0][0] == pytest.approx(np.sqrt(np.pi / 2 * np.mean(exact**2)), rel=0.02)


def test_rounding_of_the_mean_is_unbiased() -> None:
    """4 bits, 400 roundings: every scalar's mean within 5 deviations; false alarm below 64 · 6e-7 = 4e-5."""
    codec = MPDD(64, 1, "hadamard")
    updates = codec.encode(gaussian(CLIENTS, D), [Key(9)] * CLIENTS)
    exact = codec.mean_update(updates, 32).arrays[0]
    rows = []
    for seed in range(400):  # the same scalars, with the rounding of another key
        rounded = codec.update_of(exact.astype(np.float64), D, Key(seed), 4)
        rows.append(decoded(rounded))
    step = float(rounded.arrays[0][0])
    assert (np.abs(np.mean(rows, axis=0) - exact) < 5 * step / 2 / np.sqrt(400) + 1e-6).all()


def test_keys_must_be_one() -> None:
    codec = MPDD(8)
    with pytest.raises(CodecError, match="different keys"):
        codec.mean_update(codec.encode(gaussian(2, D), [Key(1), Key(2)]), 32)
    huge = codec.encode(np.full((1, D), 3e36, np.float32), [Key(1)])
    assert codec.mean_update(huge, 32).arrays[0] == pytest.approx(huge[0].arrays[0])
