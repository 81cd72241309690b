"""Formulas that several codecs share."""

import math
from functools import cache

import numpy as np


def repeated_share(size: int, m: int, n: int) -> float:
    """Of all pairs of directions of two different clients of a partitioned round, the part that is the same one.

    The clients take m each, one after the other, from `size` that repeat.
    """
    full, rest = divmod(n * m, size)
    same = rest * (full + 1) * full + (size - rest) * full * (full - 1)
    return same / (n * (n - 1) * m * m)


def sphere_factor(m: int) -> float:
    """1 / (√m·E|θ_1|) for θ uniform on the unit sphere of R^m: from 1 at m = 1 to √(π/2)."""
    return math.sqrt(math.pi / m) * math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2))


@cache
def largest_normal(count: int) -> tuple[float, float]:
    """E[max |z_j|] and E[max z_j²] of so many standard normals: ∫ 1 − P(|z| ≤ x)^count, by Simpson's rule."""
    x = np.linspace(0.0, 12.0, 4801)
    below = np.array([math.erf(v / math.sqrt(2)) for v in x])
    beyond = -np.expm1(count * np.log(np.maximum(below, 1e-300)))
    weights = np.full(x.size, 2.0)
    weights[1::2] = 4.0
    weights[[0, -1]] = 1.0
    step = (x[1] - x[0]) / 3
    return float(weights @ beyond * step), float(weights @ (2 * x * beyond) * step)
