"""A regression on one's own data: forty weather stations learn one network, and one of its layers stays frozen.

python examples/regression.py
"""

import math

import torch
from torch import Tensor, nn

import fedmpdd as fm

STATIONS, HOURS = 40, 60


def readings(station: int, hours: int) -> tuple[Tensor, Tensor]:
    """Return what a station measured: four numbers an hour, and the temperature an hour later."""
    generator = torch.Generator().manual_seed(station)
    hour = torch.randint(0, 24, (hours, 1), generator=generator)
    height = torch.full((hours, 1), 0.618 * station % 1)
    wind, cloud = torch.rand(hours, 2, generator=generator).split(1, dim=1)
    angle = 2 * math.pi * hour / 24
    temperature = 15 - 6 * height - 8 * torch.cos(angle) * (1 - 0.6 * cloud) - 3 * wind
    return torch.cat([torch.sin(angle), torch.cos(angle), cloud - height, wind], dim=1), temperature


class Net(nn.Module):
    """Random features, which stay as they are drawn, and two layers that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(4, 64).requires_grad_(False)
        self.hidden, self.head = nn.Linear(64, 32), nn.Linear(32, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return temperatures [examples, 1]."""
        features = torch.cos(self.features(inputs))
        temperatures: Tensor = 15 + 10 * self.head(torch.tanh(self.hidden(features)))
        return temperatures


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss that large errors count in no more than once."""
    return nn.functional.huber_loss(outputs, targets, delta=2.0)


def degrees(outputs: Tensor, targets: Tensor) -> float:
    """Return by how many degrees a prediction is off on average."""
    return float((outputs - targets).abs().mean())


def main() -> None:
    """Train with the whole gradient, and with 45 bytes of it."""
    tests = [readings(station, 10) for station in range(STATIONS, STATIONS + 10)]  # stations that nobody trained on
    task = fm.Task(
        model=Net,  # the class: every seed has a first model of its own
        loss=huber,
        metrics={"-degrees": degrees},  # the minus says that lower is better
        clients=[readings(station, HOURS) for station in range(STATIONS)],
        test=(torch.cat([inputs for inputs, _ in tests]), torch.cat([targets for _, targets in tests])),
    )
    for codec in (fm.FedSGD(), fm.MPDD(m=200, bits=1, family="hadamard")):
        settings = {"rounds": 150, "per_round": 20, "batch": 12, "evaluate_every": 50, "progress": False}
        history = fm.simulate(task, codec, **settings, lr=0.003, server="adam")
        first, last = (entry.metrics["degrees"] for entry in (history.evaluations[0], history.evaluations[-1]))
        sent = history.last.uplink_bytes // history.last.updates
        print(
            f"{codec.name}: off by {first:.2f} degrees after 50 rounds, {last:.2f} after 150; {sent:,} bytes an update"
        )


if __name__ == "__main__":
    main()
