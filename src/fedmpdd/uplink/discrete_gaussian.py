"""Normal noise on whole numbers: P(x) ∝ exp(−x²/2σ²) for every integer x.

Noise that is drawn on integers survives a sum modulo 2^b as it is, while rounded normal noise is neither normal nor
known. Drawn by rejection from a discrete Laplace distribution, as Canonne, Kamath and Steinke (2020) propose.

Two ways to draw, for two purposes:

* With the operating system's randomness, which protects people, every coin is exact. A coin of a rational probability
  compares random words with that number, one after the other until they differ; a coin of probability exp(−γ) is made
  of such coins. No floating-point number has a part in it, so that the distribution is the formula, to the last bit.
* With a seeded generator, which makes a simulation repeatable and protects nobody, uniform numbers of 53 bits and
  float64 stand for the coins. It is faster, and those draws stay what they were. docs/secure-sum.md says how far they
  are from the formula.
"""

import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import CodecError
from fedmpdd.uplink.protection import NoiseSource

NEGLIGIBLE = 1e-30  # closeness per number: for a million numbers in a million rounds ε grows by 10^−18
LARGEST_DEVIATION = 2.0**40  # beyond it float64 cannot tell neighbouring integers' probabilities apart

_ENDLESS = 2**62  # as many successes in a row of a coin below 1/2 have never been seen, nor will they be

Integers = NDArray[np.int64]
Naturals = NDArray[np.uint64]
Flags = NDArray[np.bool_]


def discrete_gaussian(deviation: float | Fraction, size: int, source: NoiseSource) -> Integers:
    """Draw so many integers with P(x) ∝ exp(−x²/2σ²).

    Args:
        deviation: σ, from 0 to 2^40. A float stands for the rational number that it is, exactly.
        size: how many.
        source: `SystemNoise()` draws exactly; a generator with a seed draws in float64, for simulations alone.

    Returns:
        The numbers [size].

    Example:
        >>> from fedmpdd.uplink.protection import SystemNoise
        >>> discrete_gaussian(10.0, 3, SystemNoise()).shape
        (3,)
    """
    if not 0 <= deviation <= LARGEST_DEVIATION:
        raise CodecError(f"deviation = {deviation!r}: expected a number from 0 to 2^40, in steps of the integers")
    if deviation == 0:
        return np.zeros(size, np.int64)
    if isinstance(source, np.random.Generator):
        return _in_float64(float(deviation), size, source)
    return exact_discrete_gaussian(Fraction(deviation), size, SystemWords())


def closeness(deviation: float, clients: int) -> float:
    """Return a bound on |log(P/Q)| per number: P of the sum of n such noises, Q of one noise of √n times the deviation.

    Kairouz, Liu and Steinke (2021): 10·Σ_{k<n} exp(−2π²σ²·k/(k+1)), from σ² = 1/2 on. ε grows by this much for every
    number that is released; from a deviation of 4 on it is below 10^−60.
    """
    if deviation * deviation < 0.5:
        return math.inf if clients > 1 else 0.0
    return 10 * sum(math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, clients))


# ------------------------------------------------------------------------------------------------------ exactly


class Words(Protocol):
    """Where exact coins come from: independent words, each as likely as another."""

    bits: int  # of a word, at most 64

    def draw(self, count: int) -> Naturals:
        """Return so many fresh words."""


class SystemWords:
    """Words of 64 bits from the operating system."""

    bits = 64

    def draw(self, count: int) -> Naturals:
        """Return so many fresh words."""
        return np.frombuffer(os.urandom(8 * count), "<u8").astype(np.uint64)


def exact_discrete_gaussian(deviation: Fraction, size: int, words: Words) -> Integers:
    """Draw so many integers with P(x) ∝ exp(−x²/2σ²), σ above 0 and rational: from random words and integers alone."""
    scale = math.floor(deviation) + 1
    drawn = [np.zeros(0, np.int64)]
    missing = size
    while missing > 0:
        proposed = some_discrete_laplace(scale, 3 * missing + 16, words)  # about two of five come through
        whole, rest, denominator = _exponents(np.abs(proposed), deviation, scale)
        accepted = proposed[exp_coins(whole, rest, denominator, words)][:missing]
        drawn.append(accepted)
        missing -= accepted.size
    return np.concatenate(drawn)


def some_discrete_laplace(scale: int, tries: int, words: Words) -> Integers:
    """Try so many times to draw an integer with P(x) ∝ exp(−|x|/scale), and return those that came of it."""
    low = uniform_below(np.full(tries, scale, np.uint64), words)

    def coin(which: Integers, k: int) -> Flags:  # of probability low/(scale·k)
        return np.asarray(uniform_below(np.full(which.size, scale * k, np.uint64), words) < low[which])

    low = low[_stops_at_odd(tries, coin)].astype(np.int64)
    size = low + scale * _successes_of_exp_minus_one(low.size, words)
    negative = uniform_below(np.full(size.size, 2, np.uint64), words) == 1
    signed = np.where(negative, -size, size)
    return np.asarray(signed[~(negative & (size == 0))])  # else 0 would come up twice as often


def exp_coins(whole: Integers, rest: list[int], denominator: int, words: Words) -> Flags:
    """Throw coins of probability exp(−γ), γ = whole + rest/denominator with rest below the denominator."""
    ahead = np.array([(part << words.bits) // denominator for part in rest], np.uint64)  # the first bits of each

    def coin(which: Integers, k: int) -> Flags:  # of probability rest/(denominator·k)
        word, limit = words.draw(which.size), ahead[which] // np.uint64(k)
        heads = word < limit
        for tie in np.flatnonzero(word == limit):
            part = (rest[which[tie]] << words.bits) - int(word[tie]) * denominator * k
            heads[tie] = rational_coin(part, denominator * k, words)
        return np.asarray(heads)

    heads = _stops_at_odd(len(rest), coin)
    ones = whole.copy()
    while (pending := np.flatnonzero(heads & (ones > 0))).size:  # exp(−1) for every whole one, all of which must show
        heads[pending] = _exp_minus_one(pending.size, words)
        ones[pending] -= 1
    return heads


def rational_coin(numerator: int, denominator: int, words: Words) -> bool:
    """Throw a coin of probability numerator/denominator: compare words with its bits until they differ."""
    while True:
        limit, numerator = divmod(numerator << words.bits, denominator)
        word = int(words.draw(1)[0])
        if word != limit:
            return word < limit


def uniform_below(bounds: Naturals, words: Words) -> Naturals:
    """Draw an integer from 0 to each bound, the bound excluded and all alike; bounds from 1 to 2^bits − 1."""
    largest_word = 2**words.bits - 1
    # A word beyond the last whole multiple of the bound counts for nothing: it would make small numbers likelier.
    last = np.uint64(largest_word) - (np.uint64(largest_word) % bounds + np.uint64(1)) % bounds
    drawn = np.zeros(bounds.size, np.uint64)
    pending = np.arange(bounds.size)
    while pending.size:
        word = words.draw(pending.size)
        good = word <= last[pending]
        drawn[pending[good]] = word[good] % bounds[pending[good]]
        pending = pending[~good]
    return drawn


def _stops_at_odd(count: int, coin: Callable[[Integers, int], Flags]) -> Flags:
    """Throw coin 1, 2, … of each until one shows tails, and say whether that was an odd one.

    With coins of probability γ/k, γ from 0 to 1, it is with probability 1 − γ + γ²/2! − … = exp(−γ).
    """
    odd = np.zeros(count, np.bool_)
    pending, k = np.arange(count), 1
    while pending.size:
        heads = coin(pending, k)
        odd[pending[~heads]] = k % 2 == 1
        pending, k = pending[heads], k + 1
    return odd


def _exp_minus_one(count: int, words: Words) -> Flags:
    """Throw coins of probability exp(−1)."""

    def coin(which: Integers, k: int) -> Flags:  # of probability 1/k
        return np.asarray(uniform_below(np.full(which.size, k, np.uint64), words) == 0)

    return _stops_at_odd(count, coin)


def _successes_of_exp_minus_one(count: int, words: Words) -> Integers:
    """Count how often in a row a coin of probability exp(−1) shows heads."""
    successes = np.zeros(count, np.int64)
    pending = np.arange(count)
    while pending.size:
        pending = pending[_exp_minus_one(pending.size, words)]
        successes[pending] += 1
    return successes


def _exponents(sizes: Integers, deviation: Fraction, scale: int) -> tuple[Integers, list[int], int]:
    """Return γ = (|x| − σ²/scale)²/2σ² of each |x|: its whole part, and the rest over one denominator."""
    variance = deviation * deviation
    step, offset = variance.denominator * scale, variance.numerator
    denominator = 2 * offset * step * scale
    distinct, which = np.unique(sizes, return_inverse=True)
    parts = [divmod((size * step - offset) ** 2, denominator) for size in distinct.tolist()]
    whole = np.array([min(part[0], _ENDLESS) for part in parts], np.int64)[which]
    return whole, [parts[i][1] for i in which], denominator


# ------------------------------------------------------------------------------------------------ in simulations


def _in_float64(deviation: float, size: int, source: np.random.Generator) -> Integers:
    scale = math.floor(deviation) + 1
    variance = deviation * deviation
    if variance == 0:  # below the smallest float64; what is drawn then is 0
        return np.zeros(size, np.int64)
    drawn = [np.zeros(0, np.int64)]
    missing = size
    while missing > 0:
        # About two of three are accepted, or nearly all of a narrow distribution's zeros.
        proposed = _laplace_in_float64(scale, 2 * missing + 16, source)
        excess = np.abs(proposed) - variance / scale
        with np.errstate(over="ignore"):  # of a very narrow one nothing but 0 is accepted
            accepted = source.random(proposed.size) < np.exp(-excess * excess / (2 * variance))
        kept = proposed[accepted][:missing]
        drawn.append(kept)
        missing -= kept.size
    return np.concatenate(drawn)


def _laplace_in_float64(scale: int, size: int, source: np.random.Generator) -> Integers:
    """P(x) ∝ exp(−|x|/scale): the difference of two geometric numbers."""
    # 1 − u is from (0, 1], so that the logarithm is finite.
    first, second = (np.floor(-scale * np.log1p(-source.random(size))) for _ in range(2))
    return np.asarray(first - second, dtype=np.int64)
