"""ε of Gaussian noise, repeated and subsampled: numbers in, numbers out, computed by Google's dp-accounting.

`noise_multiplier` here is the deviation of the noise divided by the most that a neighbour changes. What that is for a
federation, and who is protected against whom, is in fedmpdd.guarantees.guarantees.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fedmpdd.errors import MissingDependencyError, PrivacyError

Accountant = Literal["closed form", "pld", "rdp"]
LARGEST_LOG_NOISE = 12.0
LARGEST_NOISE = 1e6  # that accountants are given: they fail on more, and the ε of less noise is a bound too
SMALLEST_NOISE = 1e-6  # of one release: ε is beyond 10^11 then, and beyond what floating point can tell


@dataclass(frozen=True)
class Poisson:
    """Each takes part with this probability, independently. Neighbours: one more, or one fewer."""

    probability: float


@dataclass(frozen=True)
class FixedSize:
    """So many of a population, without replacement: what the engine does. Neighbours: one replaced by another."""

    size: int
    population: int


Sampling = Poisson | FixedSize | None


@dataclass(frozen=True)
class Spent:
    """An ε (infinite where there is none) and who computed it."""

    epsilon: float
    accountant: Accountant


def epsilon(
    noise_multiplier: float,
    steps: int,
    delta: float,
    *,
    sampling: Sampling = None,
    accountant: Accountant | None = None,
) -> Spent:
    """Return the ε of so many releases with Gaussian noise.

    By default the accountant is the tightest one for the sampling: the closed form of one Gaussian release where
    everybody takes part (many releases are one of noise_multiplier/√steps), PLD for Poisson samples, and RDP for
    samples of fixed size, of which PLD knows nothing.
    """
    chosen = accountant or _tightest(sampling)
    _check(noise_multiplier, steps, delta, sampling, chosen)
    if noise_multiplier / math.sqrt(steps) < SMALLEST_NOISE:
        return Spent(math.inf, chosen)
    noise_multiplier = min(noise_multiplier, LARGEST_NOISE)
    _dp_accounting()  # if it is missing, that is said whatever was computed before
    return _spent(noise_multiplier, steps, delta, sampling, chosen)


@lru_cache(maxsize=4096)
def _spent(noise_multiplier: float, steps: int, delta: float, sampling: Sampling, accountant: Accountant) -> Spent:
    """Views of one training, and searches for their noise, ask for the same ε: it is computed once."""
    if accountant == "closed form":
        one = noise_multiplier / math.sqrt(steps)
        return Spent(float(_dp_accounting().get_epsilon_gaussian(one, delta)), accountant)
    event = _event(noise_multiplier, steps, sampling)
    return Spent(float(_fresh(accountant, sampling).compose(event).get_epsilon(delta)), accountant)


def noise_multiplier_for(
    wanted: float,
    steps: int,
    delta: float,
    *,
    sampling: Sampling = None,
    accountant: Accountant | None = None,
) -> float:
    """Return the smallest noise multiplier, up to one part in ten thousand, whose ε is not above the wanted one."""
    if not (isinstance(wanted, int | float) and 0 < wanted < math.inf):
        raise PrivacyError(f"epsilon = {wanted!r} cannot be reached by noise: expected a finite number above 0")

    def excess(log_noise: float) -> float:
        """How far log ε is above the wanted one: nearly a straight line, which few steps follow to its zero."""
        reached = epsilon(math.exp(log_noise), steps, delta, sampling=sampling, accountant=accountant).epsilon
        return math.log(max(reached, 1e-300) / wanted)

    _dp_accounting()
    from scipy.optimize import brentq  # dp-accounting needs it too

    bracket = [0.0, 0.0]
    outward = 1 if excess(0.0) > 0 else -1
    while excess(bracket[1]) * outward > 0:
        bracket = [bracket[1], bracket[1] + outward]
        if abs(bracket[1]) > LARGEST_LOG_NOISE:
            raise PrivacyError(f"no noise gives epsilon = {wanted} at delta = {delta}; change either")
    # A little more than the zero that was found, so that ε is not above the wanted one.
    return math.exp(float(brentq(excess, *sorted(bracket), xtol=2e-5)) + 4e-5)


def _tightest(sampling: Sampling) -> Accountant:
    if sampling is None:
        return "closed form"
    return "pld" if isinstance(sampling, Poisson) else "rdp"


def _check(noise_multiplier: float, steps: int, delta: float, sampling: Sampling, accountant: Accountant) -> None:
    if not 0 <= noise_multiplier < math.inf:
        raise PrivacyError(f"noise_multiplier = {noise_multiplier!r}: expected a finite number, not negative")
    if steps < 1:
        raise PrivacyError(f"steps = {steps!r}: expected at least one release")
    if not 0 < delta < 1:
        raise PrivacyError(f"delta = {delta!r}: expected a probability above 0 and below 1, such as 1e-5")
    if isinstance(sampling, Poisson) and not 0 < sampling.probability <= 1:
        raise PrivacyError(f"{sampling}: expected a probability above 0, at most 1")
    if isinstance(sampling, FixedSize) and not 1 <= sampling.size <= sampling.population:
        raise PrivacyError(f"{sampling}: expected a size from 1 to the population")
    if accountant not in ("closed form", "pld", "rdp"):
        raise PrivacyError(f"accountant = {accountant!r} is unknown: expected 'closed form', 'pld' or 'rdp'")
    if (accountant == "closed form" and sampling is not None) or (
        accountant == "pld" and isinstance(sampling, FixedSize)
    ):
        raise PrivacyError(f"{accountant} cannot account for {sampling}; use {_tightest(sampling)}, or rdp")


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"stating ε needs the package {error.name}, which is missing; in the checkout, pip install '.[privacy]'"
        ) from None
    return dp_accounting


def _event(noise_multiplier: float, steps: int, sampling: Sampling) -> Any:
    dp = _dp_accounting()
    event = dp.GaussianDpEvent(noise_multiplier)
    if isinstance(sampling, Poisson):
        event = dp.PoissonSampledDpEvent(sampling.probability, event)
    elif isinstance(sampling, FixedSize):
        event = dp.SampledWithoutReplacementDpEvent(sampling.population, sampling.size, event)
    return dp.SelfComposedDpEvent(event, steps)


def _fresh(accountant: Accountant, sampling: Sampling) -> Any:
    """An accountant that has seen nothing yet.

    Asked for replacement, dp-accounting's PLD doubles what a neighbour changes and its RDP does not. Our multiplier has
    the doubling in it already, so replacement is asked for only where RDP's bound for fixed sizes demands it.
    """
    dp = _dp_accounting()
    relations = dp.NeighboringRelation
    relation = relations.REPLACE_ONE if isinstance(sampling, FixedSize) else relations.ADD_OR_REMOVE_ONE
    return (dp.rdp.RdpAccountant if accountant == "rdp" else dp.pld.PLDAccountant)(neighboring_relation=relation)
