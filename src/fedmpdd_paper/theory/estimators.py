"""The estimator ĝ on its own: is it unbiased, how large is its error (Lemmas 1 and 3), does it point downhill."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD
from fedmpdd_paper.theory.claims import Interval, Row, Say, exact, mean_interval, share_interval
from fedmpdd_paper.theory.draws import estimates, relative_errors, spread_gradients, squared

BITS = (32, 16, 8, 4)
FAMILIES = ("rademacher", "hadamard")
SPREAD = (
    "4 to 32 bits are unbiased for every gradient; one bit up to a bias that vanishes as the gradient spreads over "
    "many coordinates (docs/codec.md)"
)


def rows(say: Say) -> Iterator[Row]:
    """Measure all of it."""
    say("unbiasedness: both families, all bits")
    yield from _unbiasedness()
    say("Lemma 1: all sign vectors, and normal ones")
    yield from _covariance()
    say("Lemma 3: relative error")
    yield from _relative_error()
    say("descent: gᵀĝ ≥ 0")
    yield from _descent()


# ------------------------------------------------------------------------------------------------------ unbiasedness


def found_bias(codec: MPDD, gradient: NDArray[np.float32], draws: int, seed: int) -> Interval:
    """Bias along the direction in which the mean of half of the draws erred, measured with the other half.

    It is at most ‖E ĝ − g‖/‖g‖, close to it where the bias stands out of the noise, and 0 on average if there is none.
    """
    errors = np.stack(list(estimates(codec, gradient[np.newaxis], draws, seed))) - gradient
    first, second = errors[: draws // 2], errors[draws // 2 :]
    suspected = first.mean(axis=0)
    return mean_interval(second @ (suspected / math.sqrt(squared(suspected) * squared(gradient))))


def _unbiasedness() -> Iterator[Row]:
    how = "{} draws at d = 256, m = {}: bias found in one half of them, measured with the other, relative to ‖g‖"
    gradient = spread_gradients(1, 256, seed=1)[0]
    yield Row(
        "FedPDD is unbiased (Definition 1), every direction counted",
        "d = 12, ‖g‖ = 1, all 4,096 sign vectors: largest |E ĝ_i − g_i|",
        exact(float(np.abs(sign_estimates(_steps()).mean(axis=0) - _steps()).max())),
        "=",
        0.0,
    )
    fedpdd = found_bias(MPDD(m=1), gradient, 4_000, seed=2)
    yield Row("FedPDD is unbiased (Definition 1), from seeds", how.format("4,000", 1), fedpdd, "=", 0.0)
    for number, (family, bits) in enumerate(itertools.product(FAMILIES, BITS)):
        bias = found_bias(MPDD(m=48, bits=bits, family=family), gradient, 2_000, seed=10 + number)
        claim = f"FedMPDD is unbiased (Section 3): {family}, {bits} bits"
        yield Row(claim, how.format("2,000", 48), bias, "=", 0.0)
    for family in FAMILIES:
        bias = found_bias(MPDD(m=48, bits=1, family=family), gradient, 2_000, seed=30)
        claim = f"the same: {family}, one bit (not in the paper), normal entries"
        yield Row(claim, how.format("2,000", 48), bias, "=", 0.0, corrected=SPREAD)
    peaked = np.full(1000, 0.1, dtype=np.float32)
    peaked[0] = 10.0
    bias = found_bias(MPDD(m=48, bits=1), peaked, 4_000, seed=31)
    condition = "no coordinate outweighs the others"
    claim = "the same: rademacher, one bit, one coordinate of 10 among 999 of 0.1"
    yield Row(
        claim, "4,000 draws at d = 1,000, otherwise as above", bias, "=", 0.0, only_if=condition, corrected=SPREAD
    )


# ----------------------------------------------------------------------------------------------------------- Lemma 1


def sign_estimates(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """(uᵀg)u for all 2^d sign vectors u [2^d, d], each as likely as the others."""
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=gradient.size)))
    return np.asarray((signs @ gradient)[:, np.newaxis] * signs)


def sign_covariance(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of (uᵀg)u over all 2^d sign vectors u."""
    values = sign_estimates(gradient)
    centred = values - values.mean(axis=0)
    return np.asarray(centred.T @ centred / len(values))


def _steps() -> NDArray[np.float64]:
    """A gradient of 12 unlike coordinates, 1 to 12 before it is scaled to ‖g‖ = 1."""
    steps = np.arange(1.0, 13.0)
    return np.asarray(steps / math.sqrt(squared(steps)))


def _covariance() -> Iterator[Row]:
    d, gradient = 12, _steps()
    of_signs = sign_covariance(gradient)
    true_signs = np.eye(d) + np.outer(gradient, gradient) - 2 * np.diag(gradient**2)
    yield Row(
        "Lemma 1, proof: Cov of Rademacher is ggᵀ + 2‖g‖²·I",
        "d = 12, ‖g‖ = 1, all 4,096 sign vectors: largest difference of an entry from the claim",
        exact(float(np.abs(of_signs - (np.outer(gradient, gradient) + 2 * np.eye(d))).max())),
        "=",
        0.0,
        corrected="Cov = ‖g‖²·I + ggᵀ − 2·diag(g_i²)",
        true_value=float(np.abs(true_signs - (np.outer(gradient, gradient) + 2 * np.eye(d))).max()),
    )
    rng = np.random.default_rng(40)
    normal = rng.standard_normal((400_000, d))
    values = (normal @ gradient)[:, np.newaxis] * normal - gradient
    corrected = "the difference is 2·diag(g_i²), of trace 2‖g‖²: Rademacher takes off 2/(d + 1) of the error, not half"
    trace = mean_interval(np.sum(values**2, axis=1) - np.trace(of_signs))
    how = "d = 12, ‖g‖ = 1, 400,000 normal directions minus all 4,096 sign vectors: "
    claim = "Lemma 1: Cov of normal minus Cov of Rademacher is 2‖g‖²·I"
    yield Row(f"{claim} (trace)", how + "trace", trace, "=", 2.0 * d, corrected=corrected, true_value=2.0)
    smallest = mean_interval(values[:, 0] ** 2 - of_signs[0, 0])
    what = "variance of the smallest coordinate"
    truth = 2 * float(gradient[0]) ** 2
    yield Row(f"{claim} ({what})", how + what, smallest, "=", 2.0, corrected=corrected, true_value=truth)
    yield Row("Lemma 1: Rademacher directions have the smaller variance", how + "trace", trace, "≥", 0.0)


# ----------------------------------------------------------------------------------------------------------- Lemma 3


def _relative_error() -> Iterator[Row]:
    for d, m, draws in ((1_000, 1, 6_000), (1_000, 100, 2_000), (13_426, 400, 400)):
        errors = relative_errors(MPDD(m=m), spread_gradients(1, d, seed=50), draws, seed=51)
        claim = f"Lemma 3: E‖ĝ − g‖²/‖g‖² = (d − 1)/m at d = {d:,}, m = {m}"
        yield Row(claim, f"{draws:,} draws", mean_interval(errors), "=", (d - 1) / m)
    d, m, draws = 3_000, 100, 2_000
    gradient = spread_gradients(1, d, seed=52)
    for family, bits in (("rademacher", 4), ("rademacher", 1), ("hadamard", 32), ("hadamard", 1)):
        codec = MPDD(m=m, bits=bits, family=family)
        errors = relative_errors(codec, gradient, draws, seed=53)
        claim = f"our formula for the same: {family}, {bits} bit{'s' if bits > 1 else ''}"
        yield Row(claim, f"{draws:,} draws at d = {d:,}, m = {m}", mean_interval(errors), "=", codec.variance(d))


# ----------------------------------------------------------------------------------------------------------- descent


def _descent() -> Iterator[Row]:
    draws = 300
    gradient = spread_gradients(1, 500, seed=60)
    smallest = min(
        float(estimate @ gradient[0]) / squared(gradient)
        for family, bits, m in itertools.product(FAMILIES, (*BITS, 1), (1, 20))
        for estimate in estimates(MPDD(m=m, bits=bits, family=family), gradient, draws, seed=61)
    )
    yield Row(
        "gᵀĝ ≥ 0 for every client (Definition 1)",
        "smallest gᵀĝ/‖g‖² of 300 draws for each family, number of bits and m = 1, 20, at d = 500",
        exact(smallest),
        "≥",
        0.0,
    )
    rounds = 2_000
    unlike = spread_gradients(10, 500, seed=62, common=1 / 3)
    mean = unlike.astype(np.float64).mean(axis=0)
    uphill = sum(float(estimate @ mean) < 0 for estimate in estimates(MPDD(m=1), unlike, rounds, seed=63))
    yield Row(
        "guaranteed descent direction: rounds in which ĝ points uphill",
        "FedPDD, 10 clients with unlike gradients, 2,000 rounds: share with (mean g)ᵀĝ < 0",
        share_interval(uphill, rounds),
        "=",
        0.0,
        only_if="there is one client",
        corrected="gᵀĝ = ‖Uᵀg‖²/m ≥ 0 is about a client and its own gradient; the mean over clients points downhill on "
        "average, and rounds that point uphill get rare as m·n grows",
    )
