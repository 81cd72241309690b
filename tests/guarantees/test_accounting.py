"""ε against dp-accounting called directly, against published values, and against closed forms."""

import math
import sys
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from fedmpdd.errors import MissingDependencyError, PrivacyError
from fedmpdd.guarantees.accounting import (
    Accountant,
    FixedSize,
    Poisson,
    Sampling,
    _event,
    _fresh,
    epsilon,
    noise_multiplier_for,
)

MNIST = Poisson(256 / 60_000)


def delta_of_one_release(noise: float, spent: float) -> float:
    """Balle and Wang 2018, theorem 8, for a sensitivity of 1."""
    return float(norm.cdf(0.5 / noise - spent * noise) - math.exp(spent) * norm.cdf(-0.5 / noise - spent * noise))


# --------------------------------------------------------------------------------- dp-accounting, called directly


def direct(accountant: Any, event: Any, delta: float) -> float:
    return float(accountant.compose(event).get_epsilon(delta))


def test_rdp_and_pld_are_those_of_dp_accounting() -> None:
    gaussian = dp_accounting.GaussianDpEvent(1.1)
    everybody = dp_accounting.SelfComposedDpEvent(gaussian, 3)
    poisson = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(MNIST.probability, gaussian), 500)
    for name, kind in (("rdp", dp_accounting.rdp.RdpAccountant), ("pld", dp_accounting.pld.PLDAccountant)):
        accountant: Accountant = "rdp" if name == "rdp" else "pld"
        ours = epsilon(1.1, 3, 1e-5, accountant=accountant)
        assert (ours.epsilon, ours.accountant) == (direct(kind(), everybody, 1e-5), accountant)
        ours = epsilon(1.1, 500, 1e-5, sampling=MNIST, accountant=accountant)
        assert ours.epsilon == direct(kind(), poisson, 1e-5)


def test_fixed_sizes_are_rdp_of_dp_accounting() -> None:
    event = dp_accounting.SampledWithoutReplacementDpEvent(4_000, 400, dp_accounting.GaussianDpEvent(2.0))
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    expected = direct(accountant, dp_accounting.SelfComposedDpEvent(event, 150), 1e-5)
    ours = epsilon(2.0, 150, 1e-5, sampling=FixedSize(400, 4_000))
    assert (ours.epsilon, ours.accountant) == (expected, "rdp")


# ------------------------------------------------------------------------------------------------ published values


def older_conversion(noise: float, steps: int, delta: float, sampling: Sampling) -> float:
    """From RDP to ε as Abadi et al. 2016 and Mironov 2017 did it: min over orders of RDP + log(1/δ)/(order − 1)."""
    accountant = _fresh("rdp", sampling).compose(_event(noise, steps, sampling))
    orders = np.array(accountant.orders)
    above_one = orders > 1
    return float(np.min(accountant.rdp[above_one] - math.log(delta) / (orders[above_one] - 1)))


@pytest.mark.parametrize(
    ("noise", "steps", "sampling", "published"),
    [
        # The tutorial of TensorFlow Privacy: 60 epochs of MNIST, batches of 256.
        (1.1, 60 * 60_000 // 256, MNIST, 3.01),
        # Abadi et al. 2016, section 3: q = 0.01, σ = 4, 100 epochs.
        (4.0, 10_000, Poisson(0.01), 1.26),
    ],
)
def test_values_published_with_the_older_conversion(
    noise: float, steps: int, sampling: Poisson, published: float
) -> None:
    """The RDP is the same; dp-accounting now gets a smaller ε out of it, and PLD a smaller one still."""
    assert older_conversion(noise, steps, 1e-5, sampling) == pytest.approx(published, abs=0.011)
    by_rdp = epsilon(noise, steps, 1e-5, sampling=sampling, accountant="rdp").epsilon
    by_pld = epsilon(noise, steps, 1e-5, sampling=sampling).epsilon
    assert 0.75 * published < by_pld < by_rdp < published


def test_values_published_with_todays_conversion() -> None:
    """Statement that TensorFlow Privacy's own tests expect: 10,000 examples, batches of 64, noise 2, 5 epochs, RDP.

    Its sensitivity is doubled, by microbatches, as ours is by replacement.
    """
    assert epsilon(2.0 / 2, 5, 1e-6, accountant="rdp").epsilon == pytest.approx(13.376, abs=5e-4)
    steps = math.ceil(5 * 10_000 / 64)
    ours = epsilon(2.0 / 2, steps, 1e-6, sampling=Poisson(64 / 10_000), accountant="rdp")
    assert ours.epsilon == pytest.approx(1.616, abs=5e-4)


def test_one_gaussian_release() -> None:
    """Balle and Wang's exact δ; at ε = 1, δ = 1e-5 the noise is 3.73 where the classical √(2 ln(1.25/δ)) takes 4.84."""
    for noise in (0.3, 1.0, 3.7306, 20.0):
        assert delta_of_one_release(noise, epsilon(noise, 1, 1e-5).epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert noise_multiplier_for(1.0, 1, 1e-5) == pytest.approx(3.7306, rel=2e-4)


def test_many_releases_are_one_of_less_noise_and_the_accountants_agree_on_it() -> None:
    exact = epsilon(4.0, 16, 1e-5)
    assert exact.accountant == "closed form"
    assert exact.epsilon == pytest.approx(epsilon(1.0, 1, 1e-5).epsilon)
    assert epsilon(4.0, 16, 1e-5, accountant="pld").epsilon == pytest.approx(exact.epsilon, rel=1e-4)
    assert exact.epsilon < epsilon(4.0, 16, 1e-5, accountant="rdp").epsilon < 1.1 * exact.epsilon


# -------------------------------------------------------------------------------------------- the inverse, and edges


@pytest.mark.parametrize("wanted", [0.01, 3.0, 1e4])
@pytest.mark.parametrize("sampling", [None, Poisson(0.1)])
def test_noise_for_an_epsilon_is_the_inverse(sampling: Sampling, wanted: float) -> None:
    noise = noise_multiplier_for(wanted, 20, 1e-5, sampling=sampling, accountant="rdp")
    ours = (epsilon(factor * noise, 20, 1e-5, sampling=sampling, accountant="rdp") for factor in (1.0, 0.999))
    enough, too_little = (spent.epsilon for spent in ours)
    assert 0.998 * wanted < enough <= wanted < too_little


def test_without_noise_epsilon_is_infinite() -> None:
    for sampling in (None, Poisson(0.1), FixedSize(1, 10)):
        for noise in (0.0, 1e-9):
            assert epsilon(noise, 1, 1e-5, sampling=sampling).epsilon == math.inf


def test_sampling_everybody_is_not_sampling() -> None:
    everybody = epsilon(2.0, 10, 1e-5, accountant="rdp").epsilon
    assert epsilon(2.0, 10, 1e-5, sampling=FixedSize(7, 7)).epsilon == pytest.approx(everybody)
    assert epsilon(2.0, 10, 1e-5, sampling=Poisson(1.0), accountant="rdp").epsilon == pytest.approx(everybody)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((-1.0, 1, 1e-5), {}, "noise_multiplier = -1.0"),
        ((math.inf, 1, 1e-5), {}, "noise_multiplier = inf"),
        ((1.0, 0, 1e-5), {}, "steps = 0"),
        ((1.0, 1, 0.0), {}, "delta = 0.0: expected a probability above 0"),
        ((1.0, 1, 1.0), {}, "delta = 1.0"),
        ((1.0, 1, 1e-5), {"sampling": Poisson(0)}, "expected a probability above 0"),
        ((1.0, 1, 1e-5), {"sampling": FixedSize(11, 10)}, "from 1 to the population"),
        ((1.0, 1, 1e-5), {"sampling": FixedSize(1, 10), "accountant": "pld"}, "pld cannot account for FixedSize"),
        ((1.0, 1, 1e-5), {"sampling": Poisson(0.1), "accountant": "closed form"}, "use pld, or rdp"),
        ((1.0, 1, 1e-5), {"accountant": "moments"}, "'moments' is unknown"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        epsilon(*arguments, **options)


def test_an_epsilon_that_no_noise_gives() -> None:
    for wanted in (0, -1.0, math.inf, math.nan):
        with pytest.raises(PrivacyError, match="expected a finite number above 0"):
            noise_multiplier_for(wanted, 1, 1e-5)
    with pytest.raises(PrivacyError, match=r"no noise gives epsilon = 1e\+40"):
        noise_multiplier_for(1e40, 1, 1e-5)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[privacy\]'"):
        epsilon(1.0, 1, 1e-5)
