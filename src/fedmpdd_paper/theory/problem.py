"""A federation whose every constant is known, and its training with the package's codec.

    f(x) = Σ_j √(1 + x_j²) − 1 + (1 − cos 2x_j)/8,    f_i(x) = f(x) + b_iᵀx,    Σ_i b_i = 0

It is not convex (f″ is below 0 around x_j = π/2), smooth with L = 1.5, which is f″ at 0, has its only stationary point
at 0 with f* = 0, and every |∂f/∂x_j| is below 1.25: so Assumption 1 of the paper holds everywhere, with a G that is
known. A stochastic gradient adds ±noise to each coordinate.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD

Float64 = NDArray[np.float64]
L = 1.5
LARGEST_SLOPE = 1.25


class Outcome(NamedTuple):
    """What a training of K rounds came to, per coordinate: ‖∇f‖²/d, its mean over rounds and its least."""

    mean: float
    least: float


@dataclass(frozen=True)
class Federation:
    """n clients in d dimensions; `unlike` is the size of b_i's entries, `noise` that of stochastic gradients."""

    d: int
    clients: int
    noise: float
    unlike: float = 0.0

    @cached_property
    def offsets(self) -> Float64:
        """The b_i [clients, d]: signs times `unlike`, less their mean."""
        rng = np.random.default_rng([self.d, self.clients])
        signs = rng.choice((-1.0, 1.0), size=(self.clients, self.d)) * self.unlike
        return np.asarray(signs - signs.mean(axis=0))

    @property
    def heterogeneity(self) -> float:
        """σ² of Assumption 1, per coordinate: mean ‖∇f_i − ∇f‖²/d."""
        return float(np.mean(self.offsets**2))

    @property
    def gradient_bound(self) -> float:
        """G² of Assumption 1, per coordinate: no ‖g_i‖²/d has a larger mean, wherever x is."""
        # |∂f| is at most 1.25 whatever x is, and b_i comes on top of it.
        largest = float(np.mean((LARGEST_SLOPE + np.abs(self.offsets)) ** 2, axis=1).max())
        return largest + self.noise**2

    def start_gap(self, start: float) -> float:
        """(f(x_0) − f*)/d with every coordinate of x_0 at `start`."""
        return math.sqrt(1 + start**2) - 1 + (1 - math.cos(2 * start)) / 8

    def projection_error(self, m: int | None) -> float:
        """ω/n: the error of the mean of n estimates over mean ‖g_i‖² (Lemma 3 and averaging); None is FedSGD."""
        return 0.0 if m is None else (self.d - 1) / (m * self.clients)

    def noise_floor(self, m: int | None) -> float:
        """V of the corrected theorem, per coordinate: the part of E‖ĝ‖² that does not vanish with ∇f."""
        error = self.projection_error(m)
        return error * (self.heterogeneity + self.noise**2) + self.noise**2 / self.clients


def gradient(x: Float64) -> Float64:
    """∇f."""
    return np.asarray(x / np.sqrt(1 + x * x) + 0.25 * np.sin(2 * x))


def train(
    federation: Federation,
    m: int | None,
    rounds: int,
    step: float,
    *,
    start: float,
    seed: int,
    sampled: int | None = None,
) -> Outcome:
    """Train with m directions a client (None: with gradients as they are), `sampled` clients a round (None: all)."""
    d, clients = federation.d, federation.clients
    rng = np.random.default_rng([seed, d, clients, rounds, m or 0])
    codec = None if m is None else MPDD(m=m)
    x = np.full(d, start)
    total, least = 0.0, math.inf
    for _ in range(rounds):
        slope = gradient(x)
        size = float(slope @ slope) / d
        total, least = total + size, min(least, size)
        offsets = federation.offsets
        if sampled is not None:
            offsets = offsets[rng.choice(clients, size=sampled, replace=False)]
        gradients = _stochastic(slope + offsets, federation.noise, rng)
        if codec is None:
            estimate = gradients.mean(axis=0)
        else:
            seeds: list[int] = rng.integers(2**63, size=len(gradients)).tolist()
            estimate = codec.decode_mean(codec.encode(gradients, seeds)).astype(np.float64)
        x = x - step * estimate  # Algorithms 1 and 2: model update
    return Outcome(total / rounds, least)


def _stochastic(gradients: Float64, noise: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Add ±noise to every coordinate; signs are faster to draw than normal numbers, and have the same variance."""
    if noise == 0:
        return gradients.astype(np.float32)
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-gradients.size // 8)), dtype=np.uint8), count=gradients.size)
    return (gradients + noise * (2.0 * bits.reshape(gradients.shape) - 1)).astype(np.float32)
