"""The rivals in torch against their own codecs, on CPU tensors."""

import numpy as np
import pytest
import torch

from fedmpdd.codecs import EDEN, MPDD, QSGD, Codec, FedSGD, Gaussian, Laplace, LpProj, SAFedLora, SignSGD, TopK
from fedmpdd.codecs.rivals_torch import decoded, handles
from fedmpdd.directions import Key
from fedmpdd.errors import GradientError
from fedmpdd.simulation.exchange import TorchErrorFeedback
from fedmpdd.uplink.error_feedback import ErrorFeedback
from tests.conftest import gaussian

KEYS = [Key(1), Key(2), Key(2, 1)]
DETERMINISTIC: list[Codec] = [
    FedSGD(),
    TopK(k=30),
    SignSGD(),
    SignSGD(scaled=False),
    LpProj(size=20),
    SAFedLora(rank=3, warmup=0).for_shapes([(10, 30), (20,), (4, 5, 4)]),
]


@pytest.mark.parametrize("codec", DETERMINISTIC, ids=str)
def test_without_randomness_it_is_what_the_codec_decodes(codec: Codec) -> None:
    g = gaussian(3, 400)
    found = decoded(codec, torch.from_numpy(g), KEYS).numpy()
    for row, update in zip(found, codec.encode(g, KEYS), strict=True):
        assert np.allclose(row, codec.decode_mean([update]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank_of_gradient", [0, 1, 2])
def test_sa_fedlora_keeps_a_gradient_of_lower_rank_whole(rank_of_gradient: int) -> None:
    """One client's image makes a gradient of rank one, a dead layer one of rank zero: columns that do not differ."""
    codec = SAFedLora(rank=3, warmup=0).for_shapes([(20, 20)])
    g = (gaussian(20, 3)[:, :rank_of_gradient] @ gaussian(3, 20)[:rank_of_gradient]).reshape(1, 400)
    found = decoded(codec, torch.from_numpy(g), KEYS[:1]).numpy()
    assert np.allclose(found[0], g, rtol=1e-5, atol=1e-6)
    assert np.allclose(found[0], codec.decode_mean(codec.encode(g, KEYS[:1])), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_eden_errs_as_the_codec_does(bits: int) -> None:
    """Its rotation is another random one: what must agree is the product with the gradient, and the error."""
    codec, g = EDEN(bits=bits), gaussian(1, 300)
    draws = 400
    keys = [Key(seed) for seed in range(draws)]
    found = decoded(codec, torch.from_numpy(g).repeat(draws, 1), keys).double().numpy()
    square = float((g.astype(np.float64) ** 2).sum())
    assert np.allclose(found @ g[0], square, rtol=1e-4)
    error = ((found - g) ** 2).sum(axis=1) / square
    expected = codec.variance(300)
    assert expected is not None
    # Errors of 400 rotations deviate by less than a fifth of their mean each: five deviations of the mean.
    assert error.mean() == pytest.approx(expected, rel=0.05)
    # A mean of 400: each coordinate within five deviations, once in 5,000 tests of 300 coordinates.
    deviation = np.sqrt(expected * square / 300 / draws)
    assert np.abs(found.mean(axis=0) - g[0]).max() < 5.5 * deviation
    assert (decoded(codec, torch.zeros(1, 300), [Key(0)]) == 0).all()
    assert not handles(EDEN(rows=10))


def test_error_feedback_remembers_what_the_codec_left_out() -> None:
    here, there = ErrorFeedback(TopK(k=30)), TorchErrorFeedback(TopK(k=30), torch.device("cpu"))
    for clients in ([0, 1, 2], [2, 5, 0], [1, 2, 5]):
        g = gaussian(3, 400)
        expected = [here.codec.decode_mean([update]) for update in here.encode(g, KEYS, clients)]
        assert np.allclose(there.decoded(torch.from_numpy(g), KEYS, clients).numpy(), np.stack(expected), atol=1e-5)
    assert there.state().keys() == here.state().keys()
    again = TorchErrorFeedback(TopK(k=30), torch.device("cpu"))
    again.load(there.state())
    g = gaussian(3, 400)
    first, second = (own.decoded(torch.from_numpy(g), KEYS, [0, 1, 2]) for own in (there, again))
    assert torch.equal(first, second)
