"""Examples, model and settings of the regression, which all three programs share."""

import torch
from torch import Tensor, nn
from torch.nn import functional

CLIENTS, EXAMPLES, PER_ROUND = 100, 40, 20  # clients, examples of each, clients in a round
LR, ROUNDS = 0.1, 60


def make_model() -> nn.Module:
    """Return the model as it is before the first round: 641 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(17)
        return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


def load_clients() -> list[tuple[Tensor, Tensor]]:
    """Return the inputs and targets of every client."""
    inputs, targets = _examples(CLIENTS * EXAMPLES, seed=1)
    return list(zip(torch.split(inputs, EXAMPLES), torch.split(targets, EXAMPLES), strict=True))


def load_test() -> tuple[Tensor, Tensor]:
    """Return 1,000 other examples."""
    return _examples(1_000, seed=2)


def evaluate(model: nn.Module) -> tuple[float, float]:
    """Return the test loss, and the share of the targets' variance that the model explains."""
    inputs, targets = load_test()
    with torch.no_grad():
        loss = functional.mse_loss(model(inputs), targets)
    return loss.item(), (1 - loss / targets.var(correction=0)).item()


def _examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(count, 8, generator=generator) - 1
    targets = torch.sin(2 * inputs[:, :1]) + inputs[:, 1:2] * inputs[:, 2:3] + inputs[:, 3:].mean(dim=1, keepdim=True)
    return inputs, targets + 0.1 * torch.randn(count, 1, generator=generator)
