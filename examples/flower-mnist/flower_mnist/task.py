"""The digits, the models, and training on them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmpdd.tasks.data import Examples, load, make_partition
from fedmpdd.tasks.models import cnn_mcmahan2017

CLASSES = 10


class Digits(NamedTuple):
    """Normalised images and their labels."""

    images: Tensor
    labels: Tensor


def make_model(name: str) -> nn.Module:
    """Return a new model; neither has batch norm, whose statistics are no gradients."""
    if name == "small":
        return nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12 * 7 * 7, CLASSES),
        )
    if name == "cnn":
        return cnn_mcmahan2017((3, 32, 32), CLASSES)
    raise ValueError(f'model = {name!r}: expected "small" or "cnn"')


def load_train(model: str, partition: int, partitions: int) -> Digits:
    """Return one node's share of the 4,000 training digits, dealt out at random and always alike."""
    data = load("mnist-5k")
    own = make_partition(data.train.labels, partitions).examples_of(partition)
    return _digits(Examples(data.train.images[own], data.train.labels[own]), data.mean[0], data.std[0], model)


def load_test(model: str) -> Digits:
    """Return the 1,000 test digits."""
    data = load("mnist-5k")
    return _digits(data.test, data.mean[0], data.std[0], model)


def _digits(examples: Examples, mean: float, std: float, model: str) -> Digits:
    images = (torch.from_numpy(examples.images.astype(np.float32) / 255) - mean) / std
    if model == "cnn":  # made for images of 3 × 32 × 32
        images = functional.pad(images, (2, 2, 2, 2), value=-mean / std).expand(-1, 3, -1, -1)
    return Digits(images, torch.from_numpy(examples.labels))


def train(model: nn.Module, digits: Digits, *, steps: int, batch: int, lr: float, seed: list[int]) -> float:
    """Take steps of SGD in place, and return the mean loss."""
    rng = np.random.default_rng(seed)
    parameters = list(model.parameters())
    losses = []
    for _ in range(steps):
        chosen = torch.from_numpy(rng.choice(len(digits.labels), min(batch, len(digits.labels)), replace=False))
        loss = functional.cross_entropy(model(digits.images[chosen]), digits.labels[chosen])
        # By hand: torch.optim would first import PyTorch's compiler, a second in each of Flower's many processes.
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(lr * gradient)
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: nn.Module, digits: Digits) -> tuple[float, float]:
    """Return loss and accuracy."""
    logits = torch.cat([model(images) for images in torch.split(digits.images, 250)])
    accuracy = (logits.argmax(1) == digits.labels).float().mean()
    return functional.cross_entropy(logits, digits.labels).item(), accuracy.item()
