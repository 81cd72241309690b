"""The rivals in torch against their own codecs, on CPU tensors."""

import numpy as np
import pytest
import torch

from fedmpdd.codecs import MPDD, QSGD, Codec, FedSGD, Gaussian, Laplace, LpProj, SignSGD, TopK
from fedmpdd.codecs.rivals_torch import decoded, handles
from fedmpdd.directions import Key
from fedmpdd.errors import GradientError
from tests.conftest import gaussian

KEYS = [Key(1), Key(2), Key(2, 1)]


@pytest.mark.parametrize("codec", [FedSGD(), TopK(k=30), SignSGD(), SignSGD(scaled=False), LpProj(size=20)], ids=str)
def test_without_randomness_it_is_what_the_codec_decodes(codec: Codec) -> None:
    g = gaussian(3, 400)
    found = decoded(codec, torch.from_numpy(g), KEYS).numpy()
    for row, update in zip(found, codec.encode(g, KEYS), strict=True):
        assert np.allclose(row, codec.decode_mean([update]), rtol=1e-5, atol=1e-6)


def test_qsgd_rounds_to_a_neighbouring_level_and_is_unbiased() -> None:
    codec, g = QSGD(bits=4), torch.from_numpy(gaussian(1, 50)).repeat(4_000, 1)
    found = decoded(codec, g, [Key(seed) for seed in range(4_000)])
    step = float(g[0].norm()) / codec.levels
    levels = found[0] / step
    assert torch.allclose(levels, levels.round(), atol=1e-3)
    assert ((found - g).abs() <= step * 1.001).all()
    # 50 means of 4,000 draws of deviation at most step/2: six deviations fail once in 10^7.
    assert ((found.mean(dim=0) - g[0]).abs() < 6 * step / 2 / 4_000**0.5).all()
    assert (decoded(codec, torch.zeros(1, 5), [Key(0)]) == 0).all()


@pytest.mark.parametrize("codec", [Laplace(noise=0.5), Gaussian(noise=0.5)], ids=str)
def test_noise_has_its_variance_and_its_shape(codec: Codec) -> None:
    noise = decoded(codec, torch.zeros(3, 200_000), KEYS)
    # The variance of 600,000 draws deviates by 0.4 % (Laplace), the mean by 0.001: five deviations, once in 10^6.
    assert abs(float(noise.mean())) < 0.005
    assert float(noise.var()) == pytest.approx(0.5, rel=0.02)
    kurtosis = float(noise.pow(4).mean() / noise.var() ** 2)
    assert kurtosis == pytest.approx(6 if isinstance(codec, Laplace) else 3, rel=0.1)
    assert not torch.equal(noise[1], noise[2])  # another slot is another client
    assert torch.equal(noise, decoded(codec, torch.zeros(3, 200_000), KEYS))


def test_what_is_not_finite_is_refused() -> None:
    g = torch.ones(2, 10)
    g[1, 3] = float("nan")
    with pytest.raises(GradientError, match=r"gradients\[1, 3\] is nan"):
        decoded(FedSGD(), g, [Key(0), Key(1)])
    assert not handles(MPDD(5))
