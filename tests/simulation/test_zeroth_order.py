"""Clients that compute losses only: slopes at one model, and steps along them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmpdd as fm
from fedmpdd.codecs import DeComFL, FedKSeed, FeedSign, LossCodec
from fedmpdd.directions import Key, direction
from fedmpdd.errors import ConfigError
from fedmpdd.simulation import parse_config
from fedmpdd.simulation.zeroth_order import ZerothOrder

D = 30
TARGETS = torch.arange(4.0)[:, None] + torch.linspace(-1, 1, D, dtype=torch.float64)


def bowls(models: Tensor, step: int) -> Tensor:
    """Four clients' convex losses, other ones in each step; central differences are exact for them."""
    return 0.5 * (1 + step) * (models.double() - TARGETS).square().sum(dim=1)


def by_hand(codec: LossCodec, keys: list[Key], flat: Tensor, steps: int, lr: float, proximal: float) -> Tensor:
    """How far each client comes, with exact derivatives along the directions of its update."""
    ends = []
    for client, key in enumerate(keys):
        chosen = [direction(one, 1, 0, D) for one in codec.direction_keys(key, 0, codec.count)]
        model = flat.double().clone()
        for step, some in enumerate(np.split(np.array(chosen), steps)):
            u = torch.from_numpy(some).double()
            gradient = (1 + step) * (model - TARGETS[client])
            model = model - lr * ((u @ gradient) @ u / len(u) + proximal * (model - flat))
        ends.append(flat - model)
    return torch.stack(ends)


@pytest.mark.parametrize("codec", [DeComFL(12, 4), FedKSeed(12, 4, pool=64)], ids=lambda codec: codec.name)
@pytest.mark.parametrize(("steps", "proximal"), [(1, 0.0), (3, 0.0), (12, 0.0), (4, 0.5)])
@pytest.mark.parametrize("shared", [True, False])
def test_an_update_decodes_to_how_far_the_client_came(
    codec: LossCodec, steps: int, proximal: float, shared: bool
) -> None:
    keys = [Key(5)] * 4 if shared else [Key(5 + client) for client in range(4)]
    flat = torch.linspace(0, 1, D)
    scalars, losses = ZerothOrder(codec, steps, 0.004, proximal).scalars(bowls, flat, keys)
    updates = codec.encode_scalars(scalars, keys, D).updates()
    expected = by_hand(codec, keys, flat, steps, 0.004, proximal)
    for update, came in zip(updates, expected, strict=True):
        assert np.allclose(codec.decode_mean([update]), came.numpy(), rtol=1e-3, atol=1e-4)
    assert losses.shape == (4, steps)
    half_way = D / 2 * codec.step**2  # the loss between two points is above that of the point between
    assert torch.allclose(losses[:, 0], bowls(flat, 0) + half_way, rtol=1e-4)


def test_without_steps_scalars_are_derivatives() -> None:
    codec, keys = FedKSeed(5, 4), [Key(1), Key(2), Key(3), Key(4)]
    flat = torch.linspace(0, 1, D)
    scalars, losses = ZerothOrder(codec, 1, None, 0.0).scalars(bowls, flat, keys)
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_epochs": 1, "local_lr": 0.1}, "give local_steps"),
        ({"local_steps": 2, "local_optimiser": "torch.optim:Adam(lr=0.01)"}, "clients step along their slopes"),
        ({"local_steps": 3, "local_lr": 0.1}, "a number of steps that divides m"),
        ({"client": "forward", "local_steps": 2, "codec": {"name": "mpdd", "m": 4}, "local_lr": 0.1}, "no gradient"),
    ],
)
def test_steps_that_cannot_be_taken_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"codec": {"name": "decomfl", "m": 10, "keys": "shared"}, **settings})
