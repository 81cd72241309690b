"""Small victims with known answers."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key
from fedmpdd.privacy.observation import Observation, Victim, observe
from fedmpdd.tasks.models import FlatModel

SHAPE, CLASSES = (1, 6, 6), 4


def linear(classes: int = CLASSES) -> tuple[Victim, Tensor]:
    """Softmax regression on 6×6 images."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, classes))
    return _flat(module, classes)


def smooth_network() -> tuple[Victim, Tensor]:
    """Two layers with a sigmoid between."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Sigmoid(), nn.Linear(24, CLASSES))
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return _flat(module, CLASSES)


def _flat(module: nn.Module, classes: int) -> tuple[Victim, Tensor]:
    names, values = zip(*((name, value.detach()) for name, value in module.named_parameters()), strict=True)
    flat = torch.cat([value.reshape(-1) for value in values])
    model = FlatModel(module.requires_grad_(False), names, tuple(value.shape for value in values))
    return Victim(model, SHAPE, classes, (0.0,), (1.0,)), flat


def pictures(count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Smooth random images [count, 1, 6, 6] in [0, 1], and labels."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, 6), np.linspace(0, 1, 6))
    a, b, c = rng.random((3, count, 1, 1))
    waves = 0.5 + 0.5 * np.sin(6 * (a * x + b * y + c))
    return waves[:, np.newaxis].astype(np.float32), rng.integers(0, CLASSES, count)


def seen(
    victim: Victim, flat: Tensor, codec: Codec, count: int = 2, *, batch: int = 1, rounds: int = 1, granted: bool = True
) -> tuple[list[Observation], NDArray[np.float32], NDArray[np.int64]]:
    """Observations of some clients, and the truth: images [count, batch, …] and labels [count, batch]."""
    images, labels = pictures(count * batch)
    images, labels = images.reshape(count, batch, *SHAPE), labels.reshape(count, batch)
    observations = [
        observe(victim, [flat] * rounds, codec, [Key(100 * i + r) for r in range(rounds)], own, y, grant_labels=granted)
        for i, (own, y) in enumerate(zip(images, labels, strict=True))
    ]
    return observations, images, labels
