"""Shamir's secret sharing over a prime field: any t shares give the secret back, and t − 1 say nothing about it.

A secret is the value at 0 of a polynomial of degree t − 1 with random coefficients; the share of x is its value there.
"""

import functools
import itertools
import secrets
from collections.abc import Callable, Sequence

PRIME = 2**256 + 297  # the smallest above 2^256, so that every secret of 32 bytes is an element
SHARE_BYTES = 33  # of an element


def share(
    secret: int,
    threshold: int,
    points: Sequence[int],
    prime: int = PRIME,
    draw: Callable[[int], int] = secrets.randbelow,
) -> list[int]:
    """Return the shares of a secret for some points, distinct and not 0 modulo the prime."""
    coefficients = [draw(prime) for _ in range(threshold - 1)]
    shares = []
    for x in points:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * x % prime
        shares.append((value + secret) % prime)
    return shares


def weights_at_zero(points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Return Lagrange's weights: the secret is the sum of weight times share, the same weights for every secret."""

    def times(product: int, factor: int) -> int:
        return product * factor % prime

    # The weight of x is the product of the others by that of their distances from it: that of all points, by x times
    # the distances. Inverses are slow, and one will do: that of all of these together, less one of them at a time.
    below = [functools.reduce(times, (other - x for other in points if other != x), x) for x in points]
    before = list(itertools.accumulate(below, times, initial=1))
    rest = functools.reduce(times, points, pow(before.pop(), -1, prime))
    weights = []
    for factor, earlier in zip(reversed(below), reversed(before), strict=True):
        weights.append(rest * earlier % prime)
        rest = rest * factor % prime
    return weights[::-1]


def combine(shares: Sequence[int], weights: Sequence[int], prime: int = PRIME) -> int:
    """Return the secret from the shares of the points that the weights are for."""
    return sum(weight * value for weight, value in zip(weights, shares, strict=True)) % prime
