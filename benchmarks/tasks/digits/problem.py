"""Examples, model and settings of the digits, which all three programs share."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmpdd.tasks.data import Examples, load

CLIENTS, EXAMPLES, PER_ROUND = 100, 40, 20  # clients, examples of each, clients in a round
LR, ROUNDS = 0.1, 60


def make_model() -> nn.Module:
    """Return the model as it is before the first round: 13,426 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(17)
        return nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12 * 7 * 7, 10),
        )


def load_clients() -> list[tuple[Tensor, Tensor]]:
    """Return the images and labels of every client; the order of the file is random already."""
    images, labels = _normalised(load("mnist-5k").train)
    count = CLIENTS * EXAMPLES
    return list(zip(torch.split(images[:count], EXAMPLES), torch.split(labels[:count], EXAMPLES), strict=True))


def load_test() -> tuple[Tensor, Tensor]:
    """Return 1,000 other images and labels."""
    return _normalised(load("mnist-5k").test)


def evaluate(model: nn.Module) -> tuple[float, float]:
    """Return loss and accuracy on the test examples."""
    images, labels = load_test()
    with torch.no_grad():
        logits = model(images)
    return functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def _normalised(examples: Examples) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(examples.images.astype(np.float32) / 255)
    return (images - 0.1307) / 0.3081, torch.from_numpy(examples.labels)
