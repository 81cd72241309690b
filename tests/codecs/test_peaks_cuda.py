import numpy as np
import pytest

from fedmpdd.codecs import Peaks
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import CodecError, GradientError
from tests.conftest import gaussian


@pytest.mark.parametrize("keys", ["own", "partitioned"])
@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize("group", [4, 64])
def test_updates_and_estimates_have_the_bits_of_the_cpu(gpu: str, group: int, family: str, keys: str) -> None:
    import torch

    codec = Peaks(m=13, group=group, family=family)
    g = gaussian(4, 5_000)
    g[2] = 0  # a zero gradient has a zero scale
    g[3] = 0
    g[3, 7] = 2  # all derivatives are as large: the first of a group is its peak
    chosen = partitioned_keys(9, 4) if keys == "partitioned" else [Key(seed) for seed in (3, 2**64 - 1, 7, 3)]
    there = codec.encode(torch.from_numpy(g).to(gpu), chosen)
    here = codec.encode(g, chosen)
    # A scale comes from a float64 sum whose order is free, and none of these lies that close to where rounding turns.
    assert there == here
    weights = [1.0, 2.0, 3.0, 0.0]
    estimate = codec.decode_mean_on(gpu, here, weights)
    assert estimate.cpu().numpy().tobytes() == codec.decode_mean(here, weights).tobytes()


def test_gradients_that_cannot_be_encoded_are_refused(gpu: str) -> None:
    import torch

    with pytest.raises(CodecError, match="too large"):
        Peaks(m=2, group=4).encode(torch.full((1, 1_000), 3e38, device=gpu), [1])
    with pytest.raises(CodecError, match="too large"):
        Peaks(m=2, group=4).encode(torch.full((1, 1_000), 1e10, device=gpu), [1])
    broken = torch.ones((1, 1_000), device=gpu)
    broken[0, 5] = np.nan
    with pytest.raises(GradientError, match=r"gradients\[0, 5\]"):
        Peaks(m=2, group=4).encode(broken, [1])
