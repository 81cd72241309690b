"""Noise on integers: its distribution against the formula, and the exactness of the coins that it is made of."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedmpdd.errors import CodecError
from fedmpdd.uplink import discrete_gaussian as module
from fedmpdd.uplink.discrete_gaussian import (
    closeness,
    discrete_gaussian,
    exact_discrete_gaussian,
    exp_coins,
    rational_coin,
    some_discrete_laplace,
    uniform_below,
)
from fedmpdd.uplink.protection import SystemNoise

DRAWN = 200_000


class SeededWords:
    """Words of a generator, so that a test of exact draws comes out the same every time."""

    bits = 64

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def draw(self, count: int) -> NDArray[np.uint64]:
        return self._generator.integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("way", ["exact", "float64"])
@pytest.mark.parametrize("deviation", [0.3, 0.8, 1.0, 3.7, 50.0])
def test_frequencies_are_those_of_the_formula(deviation: float, way: str) -> None:
    """Chi-square of cells that ten numbers or more are expected in; another seed would fail once in a million times."""
    if way == "exact":
        values = exact_discrete_gaussian(Fraction(deviation), DRAWN, SeededWords(3))
    else:
        values = discrete_gaussian(deviation, DRAWN, np.random.default_rng(3))
    reach = math.ceil(12 * deviation) + 2
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * deviation**2))
    expected = DRAWN * weights / weights.sum()
    counts = np.bincount(values + reach, minlength=x.size)
    often = expected > 10
    cells = [*zip(counts[often], expected[often], strict=True), (counts[~often].sum(), expected[~often].sum())]
    cells = [(count, mean) for count, mean in cells if mean > 1]
    chi = sum((count - mean) ** 2 / mean for count, mean in cells)
    assert stats.chi2.sf(chi, len(cells) - 1) > 1e-6
    assert counts.sum() == DRAWN


def test_the_operating_system_is_a_source_too() -> None:
    """2,000 numbers of deviation 10: the mean within 6 deviations of it, 1.3; false alarm 2e-9."""
    values = discrete_gaussian(10.0, 2_000, SystemNoise())
    assert abs(values.mean()) < 6 * 10 / math.sqrt(2_000)
    assert values.dtype == np.int64


# ----------------------------------------------------------------------------------------------------- exactness


class OutOfWordsError(Exception):
    pass


class TheseWords:
    """Words of few bits that a test lists, and then no more."""

    def __init__(self, bits: int, words: tuple[int, ...]) -> None:
        self.bits, self.used, self._words = bits, 0, words

    def draw(self, count: int) -> NDArray[np.uint64]:
        if self.used + count > len(self._words):
            raise OutOfWordsError
        self.used += count
        return np.array(self._words[self.used - count : self.used], np.uint64)


def outcomes(bits: int, length: int, call: Callable[[TheseWords], Any]) -> dict[Any, Fraction]:
    """The exact probability of each outcome that so many words decide, by trying all of them."""
    chances: Counter[Any] = Counter()
    for listed in itertools.product(range(2**bits), repeat=length):
        words = TheseWords(bits, listed)
        try:
            chances[call(words)] += 1
        except OutOfWordsError:
            chances["undecided"] += 1
    return {outcome: Fraction(count, 2 ** (bits * length)) for outcome, count in chances.items()}


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (2, 3), (3, 7), (1, 8), (5, 8), (99, 100)])
def test_a_rational_coin_is_exact(numerator: int, denominator: int) -> None:
    """Of all strings of three words of two bits one at most is undecided, and heads are as many as are below p."""
    chances = outcomes(2, 3, lambda words: rational_coin(numerator, denominator, words))
    p = Fraction(numerator, denominator)
    assert chances.get(True, 0) == Fraction(math.floor(p * 64), 64)
    assert chances.get("undecided", 0) <= Fraction(1, 64)
    assert chances.get(True, 0) <= p <= chances.get(True, 0) + chances.get("undecided", 0)


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 6, 7])
def test_uniform_integers_are_exact(bound: int) -> None:
    """Words of three bits, two of them: all numbers have one and the same probability."""
    chances = outcomes(3, 2, lambda words: int(uniform_below(np.array([bound], np.uint64), words)[0]))
    undecided = chances.pop("undecided", Fraction(0))
    assert undecided == Fraction(8 % bound, 8) ** 2
    assert chances == dict.fromkeys(range(bound), (1 - undecided) / bound)


def exact_exp_minus(gamma: Fraction) -> Fraction:
    """exp(−γ) to 40 digits."""
    return sum((Fraction((-1) ** k, math.factorial(k)) * gamma**k for k in range(60)), Fraction(0))


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 3), Fraction(5, 7), Fraction(1), Fraction(4, 3)])
def test_coins_of_exponential_probability_are_exact(gamma: Fraction) -> None:
    """What is decided lies on the right side of exp(−γ), and what is not yet decided is little."""
    whole, rest = divmod(gamma.numerator, gamma.denominator)

    def call(words: TheseWords) -> bool:
        return bool(exp_coins(np.array([whole]), [rest], gamma.denominator, words)[0])

    chances = outcomes(3, 4, call)
    heads, undecided = chances.get(True, Fraction(0)), chances.get("undecided", Fraction(0))
    assert heads <= exact_exp_minus(gamma) <= heads + undecided
    assert undecided < (0.5 if whole else 0.15)


def test_a_tie_of_a_vector_of_coins_goes_on_with_the_exact_number() -> None:
    """γ = 1/3 and a first word that equals its first 64 bits: the next word, against a third again, decides."""
    third = 2**64 // 3
    for word, heads in ((third - 1, True), (third + 1, False)):
        # Heads of the first coin, then tails of the second (whose bits are those of 1/6): not odd; tails at once: odd.
        listed = (third, word, 2**64 - 1) if heads else (third, word)
        coin = exp_coins(np.array([0]), [1], 3, TheseWords(64, listed))
        assert coin.tolist() == [not heads]


def test_laplace_proposals_have_ratios_of_the_formula() -> None:
    """200,000 tries at scale 3: P(x)/P(0) within 6 deviations of exp(−|x|/3); another seed fails once in 10^7."""
    counts = Counter(some_discrete_laplace(3, DRAWN, SeededWords(5)).tolist())
    for x in range(-6, 7):
        expected = counts[0] * math.exp(-abs(x) / 3)
        assert abs(counts[x] - expected) < 6 * math.sqrt(2 * expected) + (x == 0)


@pytest.mark.parametrize("deviation", [0.75, 4.1, 3e5, 1.1e-3])
def test_the_exponent_is_that_of_the_paper_to_the_last_digit(deviation: float) -> None:
    sigma, scale = Fraction(deviation), math.floor(deviation) + 1
    sizes = np.array([0, 1, 2, 7, 1, 1_000_000])
    whole, rest, denominator = module._exponents(sizes, sigma, scale)
    for size, ones, part in zip(sizes.tolist(), whole.tolist(), rest, strict=True):
        gamma = (size - sigma**2 / scale) ** 2 / (2 * sigma**2)
        assert ones + Fraction(part, denominator) == gamma
        assert 0 <= part < denominator


def test_real_clients_draw_exactly_and_no_float_has_a_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On yesterday's code the operating system's noise went through `random`, numbers of 53 bits."""
    monkeypatch.setattr(SystemNoise, "random", lambda *_: pytest.fail("a uniform number of 53 bits was drawn"))
    assert discrete_gaussian(0.1, 100, SystemNoise()).size == 100
    assert discrete_gaussian(Fraction(2**40), 100, SystemNoise()).dtype == np.int64


def test_the_tail_is_as_long_as_the_formula_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty coins in a row that show heads: numbers of 53 bits end at 37 times the scale, exact draws do not."""
    monkeypatch.setattr(module, "_successes_of_exp_minus_one", lambda count, _: np.full(count, 60))
    assert np.abs(some_discrete_laplace(10, 100, SeededWords(1))).min() > 37 * 10


# ------------------------------------------------------------------------------------------------ in simulations


def yesterdays(deviation: float, size: int, source: np.random.Generator) -> NDArray[np.int64]:
    """What version 1 drew, word for word."""
    scale, variance = math.floor(deviation) + 1, deviation * deviation
    drawn, missing = [np.zeros(0, np.int64)], size
    while missing > 0:
        count = 2 * missing + 16
        first, second = (np.floor(-scale * np.log1p(-source.random(count))) for _ in range(2))
        proposed = np.asarray(first - second, dtype=np.int64)
        excess = np.abs(proposed) - variance / scale
        kept = proposed[source.random(count) < np.exp(-excess * excess / (2 * variance))][:missing]
        drawn.append(kept)
        missing -= kept.size
    return np.concatenate(drawn)


@pytest.mark.parametrize("deviation", [0.3, 1.0, 3.7, 50.0, 1e6 / 3, 2.0**40])
def test_a_seeded_generator_draws_what_it_always_drew(deviation: float) -> None:
    ours, theirs = np.random.default_rng(7), np.random.default_rng(7)
    for size in (0, 1, 1_000):
        assert (discrete_gaussian(deviation, size, ours) == yesterdays(deviation, size, theirs)).all()
    assert ours.bit_generator.state == theirs.bit_generator.state
    known = [2, 3, -6, -3, 3, 0, 3, 4, -6, 0, -2, 1]
    assert discrete_gaussian(3.7, 12, np.random.default_rng(7)).tolist() == known


def boundaries(scale: int, most: int) -> Iterator[int]:
    """For k = 1, 2, …: how many of the 2^53 uniform numbers become a geometric number below k, by bisection."""
    k = np.arange(1, most + 1)
    low, high = np.zeros(most, np.int64), np.full(most, 2**53, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        above = np.floor(-scale * np.log1p(-(middle * 2.0**-53))) >= k
        low, high = np.where(above, low, middle + 1), np.where(above, middle, high)
    yield from low.tolist()


@pytest.mark.parametrize("scale", [1, 8, 64])
def test_what_numbers_of_53_bits_cost_is_within_the_bound_of_the_document(scale: int) -> None:
    """The geometric numbers of the float64 way, all 2^53 of each counted: their distance, in total variation."""
    counts = list(boundaries(scale, 37 * scale))
    with localcontext(prec=40):
        exact = [1 - (-Decimal(k) / scale).exp() for k in range(1, 37 * scale + 1)]
        drawn = [Decimal(count) / 2**53 for count in counts]
        cells = zip(itertools.pairwise([Decimal(0), *exact]), itertools.pairwise([Decimal(0), *drawn]), strict=True)
        distance = float(sum(abs((b - a) - (d - c)) for (a, b), (c, d) in cells) / 2)
    assert 2.0**-56 < distance < 81 * scale * 2.0**-53
    # Why 53 bits are no noise to protect anybody with: some integers that have a probability can never be drawn.
    assert counts[-1] == 2**53


def test_a_deviation_whose_square_is_no_float64_ends() -> None:
    """It went on for ever, since nothing was accepted."""
    assert not discrete_gaussian(1e-200, 5, np.random.default_rng(0)).any()
    assert not discrete_gaussian(1e-200, 5, SystemNoise()).any()


def test_no_noise_is_no_noise() -> None:
    assert (discrete_gaussian(0.0, 5, SystemNoise()) == 0).all()
    assert discrete_gaussian(1.0, 0, SystemNoise()).size == 0
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(CodecError, match="deviation"):
            discrete_gaussian(wrong, 5, SystemNoise())


@pytest.mark.parametrize("deviation", [0.75, 0.9, 1.1])
@pytest.mark.parametrize("clients", [2, 3, 6])
def test_sums_are_as_close_to_one_draw_as_the_bound_says(deviation: float, clients: int) -> None:
    """Exactly, by convolution, wherever float64 still has digits."""

    def pmf(sigma: float, reach: int) -> np.ndarray:
        x = np.arange(-reach, reach + 1)
        weights = np.exp(-(x**2) / (2 * sigma**2))
        return np.asarray(weights / weights.sum())

    reach = 12
    total = pmf(deviation, reach)
    for _ in range(clients - 1):
        total = np.convolve(total, pmf(deviation, reach))
    single = pmf(deviation * math.sqrt(clients), clients * reach)
    seen = single > 1e-9
    worst = np.abs(np.log(total[seen] / single[seen])).max()
    assert 0 < worst <= closeness(deviation, clients)


def test_wide_noise_adds_up_for_all_purposes() -> None:
    assert closeness(4.0, 1000) < 1e-60
    assert closeness(0.2, 10) == math.inf
    assert closeness(0.2, 1) == 0
