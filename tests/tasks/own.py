"""Small tasks of somebody's own: a regression, and models with dropout, batch norm and frozen parts."""

from typing import Any

import torch
from torch import Tensor, nn

from fedmpdd.tasks.task import Task, partition

EXAMPLES, FEATURES = 160, 6


def regression_data(count: int = EXAMPLES, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=generator)
    return inputs, torch.sin(inputs.sum(dim=1, keepdim=True) / 2)


def class_data(count: int = EXAMPLES, seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs, targets = regression_data(count, seed)
    return inputs, (targets[:, 0] > 0).long()


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, outputs))


def with_dropout() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1))


def with_batch_norm() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


def regression(model: Any = None, clients: int = 8, **options: Any) -> Task:
    data = regression_data()
    return Task(
        model=network() if model is None else model,
        loss=nn.functional.mse_loss,
        clients=partition(data, clients),
        test=regression_data(64, seed=1),
        **options,
    )
