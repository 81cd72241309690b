"""Sums and roundings that several codecs share."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import CodecError

Float32 = NDArray[np.float32]

CHUNK = 1 << 15  # coordinates at a time: fits the cache, and a multiple of 8, so that packed bits are cut at bytes


def chunks(d: int) -> Iterator[slice]:
    """Cut d coordinates into pieces of CHUNK."""
    for start in range(0, d, CHUNK):
        yield slice(start, min(d, start + CHUNK))


def weighted_sum(d: int, factors: NDArray[np.float64], values: Callable[[int, slice], NDArray[Any]]) -> Float32:
    """Sum over i of factor i times vector i, in float64 and in order; values(i, part) is a part of vector i.

    Only a chunk is ever held in float64. Neither order nor chunks change the result with the machine.
    """
    out = np.empty(d, dtype=np.float32)
    for part in chunks(d):
        total = np.zeros(part.stop - part.start)
        for i, factor in enumerate(factors):
            total += factor * values(i, part)
        out[part] = total
    return out


def as_float32(values: NDArray[np.float64] | Float32, what: str, largest: float = math.inf) -> Float32:
    """Round to float32, or raise CodecError where that is not finite, or above `largest` in size."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32, copy=False)
    if not np.isfinite(rounded).all():
        raise CodecError(f"{what} overflows float32: the gradient is too large; scale or clip it before encoding")
    if largest < math.inf and np.abs(rounded).max() > largest:
        raise CodecError(
            f"{what} is above {largest:.4g}, beyond which an estimate could leave float32: the gradient is too large; "
            "scale or clip it before encoding"
        )
    return rounded


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
