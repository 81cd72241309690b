"""A codec of one's own, in one file: a window of the gradient, k coordinates from where the key says.

python examples/own_codec.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import fedmpdd as fm
from fedmpdd.codecs import Evidence, Section, as_float32, check_finite_values, known_coordinates


@fm.register
@dataclass(frozen=True)
class Window(fm.Codec):
    """k neighbouring coordinates, times d/k, so that the mean over all places of the window is the gradient."""

    k: int

    name = "window"
    code = 200  # on the wire; 128 to 255 are for codecs of users
    unbiased = True

    def sections(self, d: int) -> tuple[Section, ...]:
        return (Section("values", "<f4", self.k),)

    def check_content(self, arrays: Any, d: int) -> None:
        check_finite_values(arrays[0])

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> Any:
        return None if partitioned and n > 1 else (d / self.k - 1) / n

    def evidence(self, updates: Sequence[fm.Update]) -> Evidence:  # what an audit may use against it
        return known_coordinates(self, updates)

    def _places(self, backend: Any, keys: Sequence[fm.Key], d: int) -> Any:
        starts = [np.random.default_rng([key.seed, key.slot]).integers(d) for key in keys]
        return backend.like((np.array(starts)[:, None] + np.arange(self.k)) % d)

    def _encode(self, backend: Any, gradients: Any, keys: list[fm.Key]) -> Any:
        backend.check_finite(gradients)
        d = gradients.shape[1]
        values = backend.take(gradients, self._places(backend, keys, d))
        return (as_float32(backend, backend.cast(values, "<f8") * (d / self.k), "a coordinate times d/k"),)

    def _decode_sum(self, backend: Any, columns: Any, keys: Sequence[fm.Key], factors: Any, d: int) -> Any:
        return backend.scattered_sum(d, factors, self._places(backend, keys, d), columns[0])


def main() -> None:
    """Train a small regression with every coordinate, and with 32 of 577."""
    torch.manual_seed(0)
    inputs = torch.randn(1200, 16)
    targets = torch.sin(inputs @ torch.randn(16, 1) / 4)
    task = fm.Task(
        model=torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)),
        loss=torch.nn.functional.mse_loss,
        clients=fm.partition((inputs[:1000], targets[:1000]), 20),
        test=(inputs[1000:], targets[1000:]),
    )
    fm.testing.check_codec(Window(k=32))
    for codec in (fm.FedSGD(), Window(k=32)):
        history = fm.simulate(task, codec, rounds=150, batch=10, lr=0.1, progress=False)
        loss, sent = history.evaluations[-1].loss_of_test or 0.0, history.last.uplink_bytes
        print(f"{codec.name}: loss {loss:.3f} with {sent:,} bytes of uplink")


if __name__ == "__main__":
    main()
