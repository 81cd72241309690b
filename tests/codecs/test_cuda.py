"""Every codec on a GPU: the bits of the CPU for the same gradients, random rounding included."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd.codecs import EDEN, MPDD, QSGD, Codec, FedSGD, LpProj, Peaks, SAFedLora, SignSGD, TopK
from fedmpdd.codecs.mpdd import BITS
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import CodecError, GradientError
from tests.codecs.table import CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

LARGER = 5_000
MATRIX_PRODUCTS = (SAFedLora, LpProj)  # which no two libraries round alike
KEYS = {"own": [Key(seed) for seed in (3, 2**64 - 1, 7, 3)], "partitioned": partitioned_keys(9, 4)}
CODECS: list[tuple[Codec, int]] = [
    *((codec, D) for codec in CODECS_UNDER_TEST),
    *((MPDD(m=37, bits=bits, family=family), LARGER) for bits in BITS for family in ("rademacher", "hadamard")),
    *((Peaks(m=13, group=group, family=family), LARGER) for group in (4, 64) for family in ("rademacher", "hadamard")),
    *((codec, LARGER) for codec in (FedSGD(), QSGD(4), TopK(100), SignSGD(), EDEN(1), EDEN(2, rows=999), LpProj(50))),
]


def gradients_of(d: int) -> NDArray[np.float32]:
    g = gaussian(4, d)
    g[2] = 0  # a zero gradient has a zero scale
    g[3] = 0
    g[3, 7] = 2  # all derivatives are as large: the first of a group is its peak
    return g


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize(("codec", "d"), CODECS, ids=label)
def test_updates_and_estimates_have_the_bits_of_the_cpu(gpu: str, codec: Codec, d: int, keys: str) -> None:
    import torch

    g = gradients_of(d)
    there, here = codec.encode(torch.from_numpy(g).to(gpu), KEYS[keys]), codec.encode(g, KEYS[keys])
    weights = [1.0, 2.0, 3.0, 0.0]
    expected = codec.decode_mean(here, weights)
    estimate = codec.decode_mean_on(gpu, here, weights).cpu().numpy()
    if isinstance(codec, MATRIX_PRODUCTS):
        size = float(np.abs(expected).max())
        assert np.allclose(codec.decode_mean(there, weights), expected, rtol=1e-5, atol=1e-5 * size)
        assert np.allclose(estimate, expected, rtol=1e-5, atol=1e-5 * size)
        return
    assert there == here
    assert estimate.tobytes() == expected.tobytes()
    on_the_spot = codec.encode_batch(torch.from_numpy(g).to(gpu), KEYS[keys]).decode(weights)
    assert on_the_spot.cpu().numpy().tobytes() == expected.tobytes()


def test_lp_proj_multiplies_in_float32_whatever_networks_may(gpu: str) -> None:
    """Inputs rounded to ten bits would be off by a part in 2,000."""
    import torch

    codec, g = LpProj(50), gaussian(4, LARGER)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        there = codec.encode_batch(torch.from_numpy(g).to(gpu), KEYS["own"])
        estimate: Any = there.decode()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    here = codec.encode_batch(g, KEYS["own"])
    assert np.allclose(there.columns[0].cpu().numpy(), here.columns[0], rtol=1e-5, atol=1e-5)
    assert np.allclose(estimate.cpu().numpy(), here.decode(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_a_gradient_that_is_too_large_is_refused(gpu: str, bits: int) -> None:
    import torch

    with pytest.raises(CodecError, match="too large"):
        MPDD(m=8, bits=bits).encode(torch.full((1, 1_000), 3e38, device=gpu), [1])


def test_gradients_that_cannot_be_encoded_are_refused(gpu: str) -> None:
    import torch

    for size in (3e38, 1e10):
        with pytest.raises(CodecError, match="too large"):
            Peaks(m=2, group=4).encode(torch.full((1, 1_000), size, device=gpu), [1])
    broken = torch.ones((1, 1_000), device=gpu)
    broken[0, 5] = np.nan
    for codec in (Peaks(m=2, group=4), MPDD(8), FedSGD(), QSGD(8), SignSGD(), EDEN(1), TopK(3), LpProj(5)):
        with pytest.raises(GradientError, match=r"gradients\[0, 5\]"):
            codec.encode(broken, [1])
