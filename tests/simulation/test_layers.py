"""Layer by layer gives the gradients that automatic differentiation gives client by client."""

import pytest
import torch
from torch import Tensor, nn

from fedmpdd.simulation import layers
from fedmpdd.simulation.layers import LayerGradients, handles
from fedmpdd.tasks import models
from fedmpdd.tasks.models import MODELS, FlatModel


def flat_model(module: nn.Module) -> tuple[FlatModel, Tensor]:
    named = dict(module.named_parameters())
    flat = torch.cat([value.detach().flatten() for value in named.values()])
    return FlatModel(module.requires_grad_(False), tuple(named), tuple(value.shape for value in named.values())), flat


def one_by_one(model: FlatModel, flat: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    gradients, losses = [], []
    for own, classes in zip(inputs, labels, strict=True):
        variable = flat.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(variable, own), classes)
        gradients.append(torch.autograd.grad(loss, variable)[0])
        losses.append(loss.detach())
    return torch.stack(gradients), torch.stack(losses)


def by_layers(model: FlatModel, flat: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    gradients = torch.full((len(inputs), flat.numel()), torch.nan)  # every coordinate has to be written
    return gradients, LayerGradients(model, fused=False)(flat, inputs, labels, gradients)


def assert_same(model: FlatModel, flat: Tensor, shape: tuple[int, ...], clients: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(clients, batch, *shape, generator=generator)
    labels = torch.randint(0, 10, (clients, batch), generator=generator)
    gradients, losses = by_layers(model, flat, inputs, labels)
    expected, expected_losses = one_by_one(model, flat, inputs, labels)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(losses, expected_losses)


@pytest.mark.parametrize("name", sorted(name for name in MODELS if not name.startswith("transformer")))
@pytest.mark.parametrize(("clients", "batch"), [(1, 1), (3, 1), (3, 5)])
def test_the_papers_models(name: str, clients: int, batch: int) -> None:
    shape = (3, 32, 32) if name == "cnn-mcmahan2017" else (1, 28, 28)
    model, flat = models.build(name, shape, 10, init="default", seed=1)
    assert handles(model.module)
    assert_same(model, flat, shape, clients, batch)


def test_strides_padding_and_layers_without_bias() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 3, (3, 5), stride=(2, 1), padding=(1, 2), bias=False),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 2),
        nn.Flatten(),
        nn.Linear(4 * 2 * 4, 10, bias=False),
    )
    model, flat = flat_model(module)
    assert handles(module)
    assert_same(model, flat, (2, 11, 10), 4, 3)


def test_a_few_clients_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, flat = models.build("lenet", (1, 28, 28), 10, init="default", seed=1)
    inputs, labels = torch.rand(5, 2, 1, 28, 28), torch.zeros(5, 2, dtype=torch.int64)
    together, _ = by_layers(model, flat, inputs, labels)
    monkeypatch.setattr(layers, "COLUMN_BYTES", 1)
    apart, _ = by_layers(model, flat, inputs, labels)
    torch.testing.assert_close(apart, together, rtol=1e-5, atol=1e-7)


class Residual(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


shared = nn.Linear(4, 4)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 10),
        nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.Linear(4, 4), Residual()),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)),
        nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same")),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Sequential(nn.Sequential(nn.Linear(4, 4))),
    ],
    ids=lambda module: repr(module).replace("\n", "")[:60],
)
def test_anything_else_is_left_to_the_general_ways(module: nn.Module) -> None:
    assert not handles(module)
