"""Normal noise on whole numbers: P(x) ∝ exp(−x²/2σ²) for every integer x.

Noise that is drawn on integers survives a sum modulo 2^b as it is, while rounded normal noise is neither normal nor
known. Drawn by rejection from a discrete Laplace distribution, as Canonne, Kamath and Steinke (2020) propose; their
exact coins are here uniform numbers of 53 bits.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.private import NoiseSource
from fedmpdd.errors import CodecError

NEGLIGIBLE = 1e-30  # closeness per number: for a million numbers in a million rounds ε grows by 10^−18
LARGEST_DEVIATION = 2.0**40  # beyond it float64 cannot tell neighbouring integers' probabilities apart


def discrete_gaussian(deviation: float, size: int, source: NoiseSource) -> NDArray[np.int64]:
    """Draw so many integers with P(x) ∝ exp(−x²/2σ²)."""
    if not 0 <= deviation <= LARGEST_DEVIATION:
        raise CodecError(f"deviation = {deviation!r}: expected a number from 0 to 2^40, in steps of the integers")
    if deviation == 0:
        return np.zeros(size, np.int64)
    scale = math.floor(deviation) + 1
    variance = deviation * deviation
    drawn = [np.zeros(0, np.int64)]
    missing = size
    while missing > 0:
        # About two of three are accepted, or nearly all of a narrow distribution's zeros.
        proposed = _discrete_laplace(scale, 2 * missing + 16, source)
        excess = np.abs(proposed) - variance / scale
        accepted = source.random(proposed.size) < np.exp(-excess * excess / (2 * variance))
        kept = proposed[accepted][:missing]
        drawn.append(kept)
        missing -= kept.size
    return np.concatenate(drawn)


def _discrete_laplace(scale: int, size: int, source: NoiseSource) -> NDArray[np.int64]:
    """P(x) ∝ exp(−|x|/scale): the difference of two geometric numbers."""
    # 1 − u is from (0, 1], so that the logarithm is finite.
    first, second = (np.floor(-scale * np.log1p(-source.random(size))) for _ in range(2))
    return np.asarray(first - second, dtype=np.int64)


def closeness(deviation: float, clients: int) -> float:
    """Return a bound on |log(P/Q)| per number: P of the sum of n such noises, Q of one noise of √n times the deviation.

    Kairouz, Liu and Steinke (2021): 10·Σ_{k<n} exp(−2π²σ²·k/(k+1)), from σ² = 1/2 on. ε grows by this much for every
    number that is released; from a deviation of 4 on it is below 10^−60.
    """
    if deviation * deviation < 0.5:
        return math.inf if clients > 1 else 0.0
    return 10 * sum(math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, clients))
