"""Client and server for loops of one's own: their frames are those of the codec, their step that of the optimiser."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmpdd import MPDD, Session, WireError, partitioned_keys
from fedmpdd.codecs import Codec, DeComFL, FedSGD, SAFedLora, TopK
from fedmpdd.errors import CodecError, ConfigError, GradientError, InputError
from fedmpdd.torch import Client, Server
from fedmpdd.uplink import Protection

CODEC = MPDD(m=16, bits=1, family="hadamard")


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def backward(net: nn.Module, seed: int) -> Tensor:
    """Leave a gradient in the parameters, and return it as one vector."""
    generator = torch.Generator().manual_seed(seed)
    net.zero_grad()
    net(torch.randn(8, 6, generator=generator)).square().mean().backward()
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_a_frame_is_that_of_the_codec_for_the_gradient_in_the_order_of_the_parameters() -> None:
    net = network()
    gradient = backward(net, 2)
    (update,) = CODEC.encode(gradient.numpy()[np.newaxis], [7])
    assert Client(net, CODEC).frame(7) == Session(CODEC, len(gradient), sends_seed=True).pack(update)


def test_a_step_is_the_optimisers_along_the_decoded_mean() -> None:
    net, other = network(), network()
    client, frames, gradients = Client(net, CODEC), [], []
    for seed in (2, 3, 4):
        gradients.append(backward(net, seed).numpy())
        frames.append(client.frame(seed))
    Server(net, CODEC, torch.optim.Adam(net.parameters(), lr=0.01)).step(frames, weights=[1, 2, 3])
    estimate = torch.from_numpy(CODEC.decode_mean(CODEC.encode(np.stack(gradients), [2, 3, 4]), [1, 2, 3]))
    optimiser, start = torch.optim.Adam(other.parameters(), lr=0.01), 0
    for parameter in other.parameters():
        parameter.grad = estimate[start : start + parameter.numel()].view(parameter.shape).clone()
        start += parameter.numel()
    optimiser.step()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_whole_gradient_trains_as_without_a_codec() -> None:
    net, other = network(), network()
    client = Client(net, FedSGD())
    server = Server(net, FedSGD(), torch.optim.SGD(net.parameters(), lr=0.1))
    plain = torch.optim.SGD(other.parameters(), lr=0.1)
    for seed in range(5):
        backward(net, seed)
        server.step([client.frame()])
        backward(other, seed)
        plain.step()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_frozen_parameters_cost_no_bytes_and_stay() -> None:
    net = network()
    first = net[0]
    assert isinstance(first, nn.Linear)
    first.requires_grad_(False)
    before = first.weight.clone()
    backward(net, 2)
    frame = Client(net, FedSGD()).frame()
    assert len(frame) == 4 * 6 + 8  # five weights and a bias
    Server(net, FedSGD(), torch.optim.SGD(net.parameters(), lr=0.1)).step([frame])
    assert torch.equal(first.weight, before)
    assert first.weight.grad is None


def test_assigned_keys_are_not_sent() -> None:
    net = network()
    client = Client(net, CODEC, assigned_keys=True)
    server = Server(net, CODEC, torch.optim.SGD(net.parameters(), lr=0.1), assigned_keys=True)
    keys = partitioned_keys(3, 2)
    frames = []
    for seed, key in enumerate(keys):
        backward(net, seed)
        frames.append(client.frame(key))
    assert len(frames[0]) == len(Client(net, CODEC).frame(1)) - 8
    server.step(frames, keys=keys)
    with pytest.raises(CodecError, match="2 frames came with 1 keys"):
        server.step(frames, keys=keys[:1])
    with pytest.raises(CodecError, match="none came; pass keys="):
        server.step(frames)
    with pytest.raises(CodecError, match="pass the key that this client was given"):
        client.frame()
    with pytest.raises(WireError):  # the checksum covers the key
        server.step(frames, keys=keys[::-1])


def test_seeds_that_nobody_chose_differ() -> None:
    net = network()
    backward(net, 1)
    client = Client(net, CODEC)
    assert client.frame() != client.frame()


def test_error_feedback_sends_later_what_was_left_out() -> None:
    net = network()
    plain, remembering = Client(net, TopK(k=1)), Client(net, TopK(k=1), error_feedback=True)
    backward(net, 1)
    first = remembering.frame(0)
    assert first == plain.frame(0)
    net.zero_grad()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert remembering.frame(0) != plain.frame(0)  # the second largest coordinate of before


def test_protected_frames_are_clipped() -> None:
    net = network()
    backward(net, 1)
    codec = MPDD(m=16)
    client = Client(net, codec, protection=Protection(codec, clip=1e-3))
    (update,) = [Session(codec, 41, sends_seed=True).unpack(client.frame(5))]
    assert np.linalg.norm(update.arrays[0]) <= 1e-3 * 4 * (1 + 1e-6)


def test_codecs_that_need_shapes_get_those_of_the_parameters() -> None:
    net = network()
    codec = SAFedLora(rank=1)
    backward(net, 1)
    Server(net, codec, torch.optim.SGD(net.parameters(), lr=0.1)).step([Client(net, codec).frame(round_number=0)])


def test_a_damaged_frame_changes_nothing() -> None:
    net = network()
    backward(net, 1)
    frame = bytearray(Client(net, CODEC).frame())
    frame[-1] ^= 1
    before = [parameter.clone() for parameter in net.parameters()]
    gradients = [parameter.grad for parameter in net.parameters()]
    with pytest.raises(WireError):
        Server(net, CODEC, torch.optim.SGD(net.parameters(), lr=0.1)).step([bytes(frame)])
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))
    assert all(one is parameter.grad for one, parameter in zip(gradients, net.parameters(), strict=True))


def test_half_precision_parameters_keep_their_type() -> None:
    net = network().to(torch.bfloat16)
    net.zero_grad()
    net(torch.ones(2, 6, dtype=torch.bfloat16)).square().mean().backward()
    frame = Client(net, FedSGD()).frame()
    Server(net, FedSGD(), torch.optim.SGD(net.parameters(), lr=0.1)).step([frame])
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.bfloat16 for parameter in net.parameters())


def frozen() -> nn.Module:
    return network().requires_grad_(False)


WRONG: list[tuple[Any, Codec, type[InputError], str]] = [
    (frozen, CODEC, ConfigError, "no parameter with requires_grad=True"),
    (network, DeComFL(m=4), CodecError, "sends losses"),
    (network, MPDD(m=2**31 - 1, family="hadamard"), InputError, "m ="),
]


@pytest.mark.parametrize(("model", "codec", "error", "message"), WRONG)
def test_what_cannot_be_trained_is_refused_at_once(
    model: Any, codec: Codec, error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=message):
        Client(model(), codec)


def test_gradients_that_are_not_there_are_named() -> None:
    net = network()
    with pytest.raises(GradientError, match=r"4 of 4 parameters have no gradient, 0.weight for one"):
        Client(net, CODEC).frame()


def test_an_optimiser_over_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not step 4 of the parameters .* 0.weight"):
        Server(network(), CODEC, torch.optim.SGD(network().parameters(), lr=0.1))


def test_a_round_without_frames_takes_no_step() -> None:
    net = network()
    with pytest.raises(CodecError, match="no frames came"):
        Server(net, CODEC, torch.optim.SGD(net.parameters(), lr=0.1)).step([])


def test_importing_the_package_does_not_import_pytorch() -> None:
    script = (
        "import sys, fedmpdd as fm; assert 'torch' not in sys.modules; fm.torch.Client; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
