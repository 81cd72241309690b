"""Clients that compute losses only: slopes at one model, and steps along them."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmpdd as fm
from fedmpdd.codecs import MPDD, DeComFL, FedKSeed, FeedSign, LossCodec, ScalarCodec
from fedmpdd.directions import Key
from fedmpdd.simulation import forward
from fedmpdd.simulation.local_steps import LocalTraining
from fedmpdd.simulation.zeroth_order import ZerothOrder

D = 30
TARGETS = torch.arange(4.0)[:, None] + torch.linspace(-1, 1, D, dtype=torch.float64)


def bowls(models: Tensor, step: int) -> Tensor:
    """Four clients' convex losses, other ones in each step; central differences are exact for them."""
    return 0.5 * (1 + step) * (models.double() - TARGETS).square().sum(dim=1)


def plain_descent(lr: float, proximal: float = 0.0) -> LocalTraining:
    return LocalTraining(lr, None, proximal, [torch.Size([D])])


def by_hand(codec: ScalarCodec, keys: list[Key], flat: Tensor, steps: int, lr: float, proximal: float) -> Tensor:
    """How far each client comes, with exact derivatives along the directions of its update."""
    ends = []
    for client, key in enumerate(keys):
        chosen = forward.directions(codec, key, 0, codec.count, D).double()
        model = flat.double().clone()
        shares = np.array_split(np.arange(len(chosen)), steps)
        for step, some in enumerate(shares if steps <= len(chosen) else np.arange(steps)[:, None] % len(chosen)):
            u = chosen[some]
            gradient = (1 + step) * (model - TARGETS[client])
            model = model - lr * ((u @ gradient) @ u / len(u) + proximal * (model - flat))
        ends.append(flat - model)
    return torch.stack(ends)


CODECS = [DeComFL(12, 4), FedKSeed(12, 4, pool=64), MPDD(12), MPDD(12, family="hadamard")]  # the last two: forwards


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(("steps", "proximal"), [(1, 0.0), (3, 0.0), (12, 0.0), (4, 0.5), (24, 0.0), (30, 0.5)])
@pytest.mark.parametrize("shared", [True, False])
def test_an_update_decodes_to_how_far_the_client_came(
    codec: ScalarCodec, steps: int, proximal: float, shared: bool
) -> None:
    keys = [Key(5)] * 4 if shared else [Key(5 + client) for client in range(4)]
    flat = torch.linspace(0, 1, D)
    scalars, losses = ZerothOrder(codec, steps, plain_descent(0.004, proximal)).scalars(bowls, flat, keys)
    updates = codec.encode_scalars(scalars, keys, D).updates()
    expected = by_hand(codec, keys, flat, steps, 0.004, proximal)
    for update, came in zip(updates, expected, strict=True):
        assert np.allclose(codec.decode_mean([update]), came.numpy(), rtol=1e-3, atol=1e-4)
    assert losses.shape == (4, steps)
    half_way = D / 2 * (codec.step or 0.0) ** 2  # the loss between two points is above that of the point between
    assert torch.allclose(losses[:, 0], bowls(flat, 0) + half_way, rtol=1e-4)


def test_without_steps_scalars_are_derivatives() -> None:
    codec, keys = FedKSeed(5, 4), [Key(1), Key(2), Key(3), Key(4)]
    flat = torch.linspace(0, 1, D)
    scalars, losses = ZerothOrder(codec, 1, None).scalars(bowls, flat, keys)
    gradients = (flat - TARGETS).numpy().astype(np.float32)
    exact = np.stack([update.arrays[0] for update in codec.encode(gradients, keys)])
    assert np.allclose(scalars, exact, rtol=1e-3, atol=1e-3)
    assert torch.equal(losses, bowls(flat, 0))


class LooksAtNumbers(nn.Module):
    """A model that PyTorch cannot vectorise: clients go one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y if float(x.detach().sum()) > 1e9 else 2 * y


def task_of(model: nn.Module) -> fm.Task:
    torch.manual_seed(3)
    x = torch.randn(60, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    clients = fm.partition((x, y), 6)
    return fm.Task(model=model, loss=nn.functional.mse_loss, clients=clients, test=(x, y))


@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        (DeComFL(m=8), {"keys": "shared"}),
        (DeComFL(m=8), {"keys": "shared", "local_steps": 4, "local_lr": 0.03, "lr": 1.0}),
        (FedKSeed(m=8), {"keys": "derived"}),
        (FedKSeed(m=8), {"keys": "derived", "local_steps": 8, "local_lr": 0.03, "lr": 1.0}),
        (FedKSeed(m=8, bits=4), {"keys": "shared", "local_steps": 2, "local_lr": 0.03, "lr": 1.0}),
        (FeedSign(m=4), {"keys": "shared", "lr": 0.05}),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [nn.Linear(3, 1), LooksAtNumbers()], ids=lambda model: type(model).__name__)
def test_every_such_codec_trains_a_model_of_ones_own(codec: LossCodec, settings: dict[str, Any], model: Any) -> None:
    settings = {"lr": 0.1, **settings}
    history = fm.simulate(task_of(model), codec, rounds=40, batch=5, progress=False, **settings)
    assert history.last.loss is not None
    assert history.rounds[0].loss is not None
    assert history.last.loss < 0.3 * history.rounds[0].loss


def test_vectorised_clients_come_where_those_one_by_one_do() -> None:
    settings: dict[str, Any] = {"keys": "derived", "local_steps": 4, "local_lr": 0.05, "lr": 1.0, "batch": 5}
    ends = []
    for gradients in ("vmap", "loop"):
        history = fm.simulate(
            task_of(nn.Linear(3, 1)), FedKSeed(m=8), rounds=5, gradients=gradients, progress=False, **settings
        )
        ends.append(nn.utils.parameters_to_vector(history.model.parameters()).detach())
    assert torch.allclose(ends[0], ends[1], rtol=1e-3, atol=1e-3)


def test_frozen_parameters_stay_frozen_and_dropout_is_the_same_on_both_sides() -> None:
    """With other masks ahead and behind, slopes would be noise over a step of 2^−10."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    before = [parameter.clone() for parameter in model.parameters()]
    settings: dict[str, Any] = {"local_steps": 4, "local_lr": 0.01, "lr": 1.0, "batch": 5}
    history = fm.simulate(task_of(model), FedKSeed(m=8), keys="derived", rounds=30, progress=False, **settings)
    after = list(history.model.parameters())
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[2], before[2])
    losses = [entry.loss for entry in history.rounds]
    assert all(loss is not None and math.isfinite(loss) for loss in losses)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [DeComFL(10, 4), FedKSeed(10, 4, pool=64), MPDD(10)], ids=str)
@pytest.mark.parametrize("steps", [3, 4, 7])
def test_steps_that_do_not_divide_m_share_out_its_directions(codec: ScalarCodec, steps: int) -> None:
    order = ZerothOrder(codec, steps, plain_descent(0.01))
    places = [range(10)[order._of_step(step)] for step in range(steps)]
    assert [place for some in places for place in some] == list(range(10))
    assert max(map(len, places)) - min(map(len, places)) == 1


@pytest.mark.parametrize("codec", [DeComFL(6, 4), MPDD(6, family="hadamard")], ids=str)
def test_an_optimiser_that_descends_plainly_comes_to_the_same_scalars(codec: ScalarCodec) -> None:
    """What is nearest to a point on the directions is that point."""
    flat, keys = torch.linspace(0, 1, D), [Key(5 + client) for client in range(4)]
    shapes, factory = [torch.Size([D])], functools.partial(torch.optim.SGD, lr=0.01)
    plainly, _ = ZerothOrder(codec, 4, plain_descent(0.01, 0.5)).scalars(bowls, flat, keys)
    optimised, _ = ZerothOrder(codec, 4, LocalTraining(None, factory, 0.5, shapes)).scalars(bowls, flat, keys)
    assert np.allclose(plainly, optimised, rtol=1e-3, atol=1e-3)


def test_of_another_optimiser_the_nearest_point_is_sent() -> None:
    """What is left out is orthogonal to every direction."""
    codec, key, flat = MPDD(6), Key(5), torch.linspace(0, 1, D)
    factory = functools.partial(torch.optim.Adam, lr=0.1)
    training, ends = LocalTraining(None, factory, 0.0, [torch.Size([D])]), []

    class Watched(LocalTraining):
        def step(self, flat: Tensor, moved: Tensor, gradients: Tensor, optimisers: Any) -> None:
            super().step(flat, moved, gradients, optimisers)
            ends.append(moved.clone())

    watched = Watched(None, factory, 0.0, training.shapes)
    scalars, _ = ZerothOrder(codec, 3, watched).scalars(lambda at, step: bowls(at, step)[:1], flat, [key])
    (update,) = codec.encode_scalars(scalars, [key], D).updates()
    left_out = ends[-1][0].numpy() - codec.decode_mean([update])
    rows = forward.directions(codec, key, 0, 6, D).numpy()
    assert np.linalg.norm(left_out) > 0.05 * float(ends[-1].norm())
    assert np.abs(rows @ left_out).max() < 1e-4 * np.sqrt(D) * np.linalg.norm(left_out)
