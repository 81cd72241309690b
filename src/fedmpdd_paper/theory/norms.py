"""Lemma 2: what Johnson–Lindenstrauss says about ‖Uᵀg‖, and what it does not say about ‖UUᵀg‖."""

import math
from collections.abc import Iterator

import numpy as np

from fedmpdd.codecs import MPDD
from fedmpdd.directions import Key
from fedmpdd_paper.theory.claims import Interval, Row, Say, mean_interval, share_interval
from fedmpdd_paper.theory.draws import Float64, estimates, spread_gradients, squared

EPSILON, DELTA = 0.2, 0.1  # Remark 1 of the paper: ε from 0.05 to 0.2, δ from 0.001 to 0.1
NORM = "‖ĝ‖/‖g‖ = √(1 + (d − 1)/m) on average over the square: ĝ has d coordinates of noise, of which JL knows nothing"


def directions_wanted(d: int, epsilon: float = EPSILON) -> int:
    """The m of Lemma 2, ln(d/δ)/ε²; the paper's own m at d = 319,242 leaves no room for a larger constant."""
    return math.ceil(math.log(d / DELTA) / epsilon**2)


def norm_ratios(d: int, m: int, draws: int, seed: int) -> Float64:
    """‖ĝ‖/‖g‖ of so many draws."""
    gradient = spread_gradients(1, d, seed)
    vectors = estimates(MPDD(m=m), gradient, draws, seed + 1)
    return np.sqrt([squared(estimate) / squared(gradient) for estimate in vectors])


def rows(say: Say) -> Iterator[Row]:
    """Measure all of it."""
    say("Lemma 2: norms of estimates and of projections")
    d, draws = 13_426, 400
    m = directions_wanted(d)
    ratios = norm_ratios(d, m, draws, seed=70)
    yield Row(
        "Lemma 2: ‖ĝ‖ ≤ (1 + ε)‖g‖ with probability 1 − δ if m = ln(d/δ)/ε²",
        f"share of {draws} draws at d = {d:,}, ε = {EPSILON}, δ = {DELTA}, so m = {m}",
        share_interval(int(np.sum(ratios <= 1 + EPSILON)), draws),
        "≥",
        1 - DELTA,
        corrected="it takes (d − 1)/m ≤ 2ε + ε², an m that grows like d",
        true_value=0.0,
    )
    for d, m, draws in ((13_426, 400, 400), (319_242, 600, 24)):
        epsilon = math.sqrt(math.log(d / DELTA) / m)
        yield Row(
            f"Lemma 2 at d = {d:,}, m = {m}: ‖ĝ‖/‖g‖ ≤ 1 + ε",
            f"root of the mean square over {draws} draws; ε = √(ln(d/δ)/m) = {epsilon:.2f}",
            _root(mean_interval(norm_ratios(d, m, draws, seed=71) ** 2)),
            "≤",
            1 + epsilon,
            corrected=NORM,
            true_value=math.sqrt(1 + (d - 1) / m),
        )
    yield _projected_norm()
    yield _growth()


def _root(interval: Interval) -> Interval:
    value, low, high = (math.sqrt(max(0.0, number)) for number in interval)
    return Interval(value, low, high)


def _projected_norm() -> Row:
    d, draws = 13_426, 400
    m = directions_wanted(d)
    gradient = spread_gradients(1, d, seed=72)
    codec = MPDD(m=m)
    scalars = (codec.encode(gradient, [Key(9_000 + number)])[0].arrays[0] for number in range(draws))
    norms = np.sqrt([squared(s) / (m * squared(gradient)) for s in scalars])
    return Row(
        "what JL does say: ‖Uᵀg‖/√m within (1 ± ε)‖g‖ with probability 1 − δ",
        f"share of {draws} draws at d = {d:,}, m = {m}, ε = {EPSILON}, δ = {DELTA}",
        share_interval(int(np.sum(np.abs(norms - 1) <= EPSILON)), draws),
        "≥",
        1 - DELTA,
    )


def _growth() -> Row:
    small, large, m = 256, 16_384, 64
    # m·(‖ĝ‖²/‖g‖² − 1) does not depend on m, so that one m tells which one the bound would need.
    needed = [m * (norm_ratios(d, m, 400, seed=73) ** 2 - 1) for d in (small, large)]
    growth = mean_interval(needed[1] / float(needed[0].mean()))
    return Row(
        "Lemma 2: the m that ‖ĝ‖ ≤ (1 + ε)‖g‖ takes grows like ln d (Remark 3)",
        f"how many times more directions d = {large:,} takes than d = {small}, from 400 draws each",
        growth,
        "=",
        math.log(large / DELTA) / math.log(small / DELTA),
        corrected="m = (d − 1)/(2ε + ε²): it grows like d, and so does the m that Theorem 2 needs for its ε",
        true_value=(large - 1) / (small - 1),
    )
