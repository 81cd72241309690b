import numpy as np
import pytest

from fedmpdd.codecs import MPDD, FedSGD
from fedmpdd.codecs.mpdd import BITS
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import CodecError
from tests.conftest import gaussian


@pytest.mark.parametrize("keys", ["own", "partitioned"])
@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize("bits", BITS)
def test_updates_and_estimates_have_the_bits_of_the_cpu(gpu: str, bits: int, family: str, keys: str) -> None:
    import torch

    codec = MPDD(m=37, bits=bits, family=family)
    g = gaussian(4, 5_000)
    g[2] = 0  # a zero gradient has a zero scale
    chosen = partitioned_keys(9, 4) if keys == "partitioned" else [Key(seed) for seed in (3, 2**64 - 1, 7, 3)]
    there = codec.encode(torch.from_numpy(g).to(gpu), chosen)
    here = codec.encode(g, chosen)
    for a, b in zip(there, here, strict=True):
        assert a.key == b.key
        assert a.arrays[-1].tobytes() == b.arrays[-1].tobytes()
        # The one-bit scale comes from a float64 sum whose order is free.
        assert np.allclose(a.arrays[0].astype(np.float64), b.arrays[0].astype(np.float64), rtol=1e-7)
        codec.check_content(a.arrays, 5_000)
    weights = [1.0, 2.0, 3.0, 0.0]
    estimate = codec.decode_mean_on(gpu, here, weights)
    assert estimate.cpu().numpy().tobytes() == codec.decode_mean(here, weights).tobytes()


def test_other_codecs_take_tensors_too(gpu: str) -> None:
    import torch

    g = gaussian(2, 100)
    updates = FedSGD().encode(torch.from_numpy(g).to(gpu), [0, 0])
    assert [update.arrays[0].tobytes() for update in updates] == [row.tobytes() for row in g]
    assert np.array_equal(FedSGD().decode_mean_on(gpu, updates).cpu().numpy(), FedSGD().decode_mean(updates))


@pytest.mark.parametrize("bits", BITS)
def test_a_gradient_that_is_too_large_is_refused(gpu: str, bits: int) -> None:
    import torch

    with pytest.raises(CodecError, match="too large"):
        MPDD(m=8, bits=bits).encode(torch.full((1, 1_000), 3e38, device=gpu), [1])
