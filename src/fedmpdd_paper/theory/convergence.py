"""Theorems 1 and 2 on a problem whose constants are known: ‖∇f‖² against the number of rounds K.

Each K is a training of its own, because the theorems' step size, 1/(L√K), depends on it. All values are per coordinate,
‖∇f‖²/d, so that problems of different d can be compared.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpdd_paper.theory.claims import Interval, Row, Say, mean_interval, slope_interval
from fedmpdd_paper.theory.norms import DELTA, EPSILON, directions_wanted
from fedmpdd_paper.theory.problem import Federation, L, train

START = 1.0  # every coordinate of x_0 where a training starts away from the minimum
SEEDS = 8
THEOREM = (
    "with ω = (d − 1)/m, η = 1/(L√(K·(1 + ω/n))) and K ≥ 1 + ω/n, "
    "mean‖∇f‖² ≤ (2L(f(x_0) − f*) + σ² + noise²)·√((1 + ω/n)/K)"
)


@dataclass(frozen=True)
class Curve:
    """‖∇f‖²/d against K for one codec, mean over seeds."""

    name: str
    clients: int
    rounds: tuple[int, ...]
    mean: tuple[float, ...]  # over the rounds of a training
    least: tuple[float, ...]  # of a training
    bound: tuple[float, ...]  # of the mean, by the corrected theorem; inf where it says nothing


@dataclass(frozen=True)
class Grid:
    """Trainings of one federation and one m, for several K and seeds."""

    federation: Federation
    m: int | None
    rounds: tuple[int, ...]
    means: NDArray[np.float64]  # [seeds, rounds]
    leasts: NDArray[np.float64]

    @property
    def slope(self) -> Interval:
        """Of log mean ‖∇f‖² on log K."""
        return slope_interval(self.rounds, self.means)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The corrected theorem at the paper's step size, 1/(L√K): it asks for √K ≥ 1 + ω/n."""
        error = self.federation.projection_error(self.m)
        top = 2 * L * self.federation.start_gap(START) + self.federation.noise_floor(self.m)
        return tuple(top / math.sqrt(k) if math.sqrt(k) >= 1 + error else math.inf for k in self.rounds)

    def curve(self) -> Curve:
        """Return what a plot needs."""
        means, leasts = (tuple(values.mean(axis=0).tolist()) for values in (self.means, self.leasts))
        return Curve(name(self.m), self.federation.clients, self.rounds, means, leasts, self.bounds)


def name(m: int | None) -> str:
    """Return what the paper calls the algorithm with so many directions."""
    return "FedSGD" if m is None else "FedPDD" if m == 1 else f"FedMPDD, m = {m}"


def paper_step(rounds: int) -> float:
    """The step size of both theorems."""
    return 1 / (L * math.sqrt(rounds))


def grid(
    federation: Federation,
    m: int | None,
    rounds: tuple[int, ...],
    *,
    seeds: int = SEEDS,
    start: float = START,
    step: Callable[[int], float] = paper_step,
    sampled: int | None = None,
) -> Grid:
    """Train for every K and seed."""
    outcomes = np.array(
        [
            [train(federation, m, k, step(k), start=start, seed=seed, sampled=sampled) for k in rounds]
            for seed in range(seeds)
        ]
    )
    return Grid(federation, m, rounds, outcomes[:, :, 0], outcomes[:, :, 1])


def largest(ratios: NDArray[np.float64]) -> Interval:
    """Of ratios [seeds, cases], the case whose mean is the largest."""
    return mean_interval(ratios[:, ratios.mean(axis=0).argmax()])


def rows(say: Say, curves: list[Curve]) -> Iterator[Row]:
    """Measure all of it, and add to `curves` what a plot shows."""
    say("Theorem 1: FedPDD, small d")
    yield from _theorem_1()
    yield from _rates(say, curves)
    say("corrected step size: FedPDD, one client")
    yield from _corrected_step()
    say("Theorem 2: how its constant grows with d")
    yield from _constant()
    say("Theorem 2: client sampling and stochastic gradients")
    yield from _other_terms()


# --------------------------------------------------------------------------------------------------------- Theorem 1


def _theorem_1() -> Iterator[Row]:
    d, rounds, seeds = 16, (256, 1024, 4096), 16
    federation = Federation(d, clients=1, noise=0.3)
    trained = grid(federation, 1, rounds, seeds=seeds)
    how = f"one client, d = {d}, K = 256 to 4,096, η = 1/(L√K), {seeds} seeds: "
    # The bound with the constants of the proof, at the last K.
    root = math.sqrt(rounds[-1])
    bound = (2 * L * federation.start_gap(START) + 2 * d * federation.gradient_bound) / root
    yield Row(
        "Theorem 1: mean‖∇f‖² ≤ 2L(f(x_0) − f*)/√K + 2dG²/√K",
        how + "mean ‖∇f‖²/d at K = 4,096",
        mean_interval(trained.means[:, -1]),
        "≤",
        bound,
        corrected=f"true, and above G² (so that it says nothing) until K > 4d²; {THEOREM}",
    )
    yield Row(
        "Theorem 1: FedPDD's mean‖∇f‖² falls like 1/√K (once K ≥ d²)",
        how + "slope of log mean‖∇f‖² on log K",
        trained.slope,
        "≤",
        -0.5,
    )


def _corrected_step() -> Iterator[Row]:
    d, rounds = 128, (512, 2048, 8192)
    federation = Federation(d, clients=1, noise=0.3)
    trained = grid(federation, 1, rounds, step=lambda k: 1 / (L * math.sqrt(k * d)))
    whole = grid(federation, None, rounds[-1:])
    how = f"FedPDD, one client, d = {d}, K = 512 to 8,192, η = 1/(L√(K·d)): "
    top = 2 * L * federation.start_gap(START) + federation.noise_floor(1) / d
    yield Row(
        "Theorem 1, corrected (ours): mean‖∇f‖² ≤ (2L(f(x_0) − f*) + noise²)·√(d/K)",
        how + "largest ratio of the two sides over K",
        largest(trained.means / (top * np.sqrt(d / np.array(rounds)))),
        "≤",
        1.0,
    )
    times = mean_interval((trained.means[:, -1] / whole.means.mean()) ** 2 / d)
    yield Row(
        "FedPDD takes roughly d times the rounds of FedSGD (below Theorem 1)",
        how + "(ratio of the two means at K = 8,192)² / d, as both fall like 1/√K",
        times,
        "=",
        1.0,
        corrected="true with the step size η = 1/(L√(K·d)); Theorem 1's own d/√K would make it d² times",
    )


# ------------------------------------------------------------------------------------- rates, and what averaging does


def _rates(say: Say, curves: list[Curve]) -> Iterator[Row]:
    d, rounds, epsilon = 512, (64, 256, 1024), 0.5
    wanted = directions_wanted(d, epsilon)
    ratios: list[NDArray[np.float64]] = []
    for clients in (1, 50):
        federation = Federation(d, clients, noise=0.3, unlike=0.3 if clients > 1 else 0.0)
        say(f"rates: FedSGD, FedPDD and FedMPDD with {clients} client{'s' if clients > 1 else ''}")
        for m in (None, 1, wanted):
            trained = grid(federation, m, rounds)
            curves.append(trained.curve())
            ratios += [trained.means[:, k] / bound for k, bound in enumerate(trained.bounds) if bound < math.inf]
            theorem = {None: "FedSGD", 1: "Theorem 1, FedPDD"}.get(m, f"Theorem 2, FedMPDD with m = ln(d/δ)/ε² = {m}")
            error = federation.projection_error(m)
            # Near the minimum a round multiplies E‖x‖² by about 1 − 2ηL + (ηL)²(1 + ω/n): the paper's step size asks
            # for √K ≥ (1 + ω/n)/2 before anything settles.
            yield Row(
                f"{theorem}, {clients} client{'s' if clients > 1 else ''}: mean‖∇f‖² falls like 1/√K",
                f"d = {d}, K = 64 to 1,024, η = 1/(L√K), {SEEDS} seeds: slope of log mean‖∇f‖² on log K",
                trained.slope,
                "≤",
                -0.5,
                only_if=f"√K ≥ (1 + ω/n)/2, ω = (d − 1)/m: here K ≥ {math.ceil(((1 + error) / 2) ** 2):,}",
                corrected=THEOREM if m is not None else "",
            )
    yield Row(
        "both theorems, corrected (ours): mean‖∇f‖² ≤ (2L(f(x_0) − f*) + V)/√K where √K ≥ 1 + ω/n",
        "largest ratio of the two sides over these trainings; V = ω/n·(σ² + noise²) + noise²/n",
        largest(np.stack(ratios, axis=1)),
        "≤",
        1.0,
    )


# --------------------------------------------------------------------------------------------------------- Theorem 2


def _constant() -> Iterator[Row]:
    rounds = 1024
    sizes = (256, 4096)
    values, floors, bounds = [], [], []
    for d in sizes:
        federation = Federation(d, clients=1, noise=1.0)
        m = directions_wanted(d)
        # From the minimum, so that the term due to initialisation is zero.
        trained = grid(federation, m, (rounds,), start=0.0)
        bounds.append(federation.gradient_bound)
        values.append(trained.means[:, 0] * math.sqrt(rounds) / bounds[-1])
        floors.append(federation.noise_floor(m) / bounds[-1])
    corrected = (
        "instead of ε(4 + 2ε)G² stands V = ω/n·(σ² + noise²) + noise²/n, ω = (d − 1)/m, which m = ln(d/δ)/ε² lets grow"
    )
    how = f"one client, x_0 at the minimum, K = {rounds:,}, η = 1/(L√K), ε = {EPSILON}, δ = {DELTA}, {SEEDS} seeds: "
    yield Row(
        "Theorem 2: mean‖∇f‖² ≤ ε(4 + 2ε)G²/√K from the minimum on, if m = ln(d/δ)/ε²",
        how + f"mean‖∇f‖²·√K/G² at d = {sizes[1]:,}, m = {directions_wanted(sizes[1])}",
        mean_interval(values[1]),
        "≤",
        EPSILON * (4 + 2 * EPSILON),
        corrected=corrected,
        true_relation="≤",
        true_value=floors[1],
    )
    growth = mean_interval(values[1] / float(values[0].mean()))
    yield Row(
        "Theorem 2: the constant of 1/√K does not grow with d, if m = ln(d/δ)/ε²",
        how + f"ratio of mean‖∇f‖² at d = {sizes[1]:,} and at d = {sizes[0]}",
        growth,
        "≤",
        1.0,
        corrected=corrected,
    )


def _other_terms() -> Iterator[Row]:
    rounds, clients, sampled = (64, 256, 1024), 50, 5
    how = f"FedSGD, d = 512, x_0 at the minimum, K = 64 to 1,024, η = 1/(L√K), {SEEDS} seeds: "
    unlike = Federation(512, clients, noise=0.0, unlike=0.3)
    trained = grid(unlike, None, rounds, start=0.0, sampled=sampled)
    yield Row(
        "Theorems 1 and 2: client sampling costs σ²(1/β − 1)/(K√K)",
        how + f"exact gradients, {sampled} of {clients} clients a round: slope of log mean‖∇f‖² on log K",
        trained.slope,
        "≤",
        -1.5,
        corrected="it costs σ²(1/β − 1)/((N − 1)√K): the mean of K equal terms is that term, not a K-th of it",
        true_value=-0.5,
    )
    noisy = Federation(512, 1, noise=0.3)
    exact_estimates = grid(noisy, None, rounds, start=0.0)
    floor = mean_interval(exact_estimates.means[:, -1] * math.sqrt(rounds[-1]) / noisy.noise**2)
    yield Row(
        "Theorem 2 as ε → 0: nothing is left of the bound from the minimum on, one client",
        how + "ĝ = g: mean‖∇f‖²·√K/noise² at K = 1,024",
        floor,
        "≤",
        0.0,
        corrected="the noise of stochastic gradients is missing: noise²/(n√K) is left however good ĝ is",
        true_relation="≤",
        true_value=1.0,
    )
