"""What the mean over clients does to the error: the factor 1/n that the proofs of both theorems throw away."""

from collections.abc import Iterator

import numpy as np

from fedmpdd.codecs import MPDD
from fedmpdd_paper.theory.claims import Interval, Row, Say, mean_interval
from fedmpdd_paper.theory.draws import relative_errors, spread_gradients, squared

CLIENTS, D, M, ROUNDS = 50, 3_000, 60, 400


def rows(say: Say) -> Iterator[Row]:
    """Measure all of it."""
    say("averaging: the error of the mean of 50 clients")
    gradients = spread_gradients(CLIENTS, D, seed=80, common=1.0)
    mean_squared = squared(gradients) / CLIENTS
    alignment = squared(gradients.astype(np.float64).mean(axis=0)) / mean_squared
    how = f"{ROUNDS} rounds of {CLIENTS} clients, d = {D:,}, m = {M}: error of the mean, relative to "
    codec = MPDD(m=M)
    error = mean_interval(relative_errors(codec, gradients, ROUNDS, seed=81))
    formula = (D - 1) / (M * CLIENTS)
    sharper = "with independent directions the errors of clients add up like noise: (d − 1)/(m·n)·mean‖g_i‖²"
    jensen = "proof of Theorem 1, Jensen: error of the mean ≤ mean of the errors, (d − 1)/m"
    relative = how + "mean‖g_i‖²"
    yield Row(jensen, relative, error, "≤", (D - 1) / M, corrected=f"true, and {CLIENTS} times too weak: {sharper}")
    to_mean = Interval(*(number / alignment for number in error))
    claim = "averaging: the error is (d − 1)/(m·n)·mean‖g_i‖²/‖ḡ‖² (not in the paper)"
    yield Row(claim, how + "‖ḡ‖²", to_mean, "=", formula / alignment)
    for family, bits, partitioned in (
        ("hadamard", 32, False),
        ("hadamard", 32, True),
        ("hadamard", 1, False),
        ("hadamard", 1, True),
    ):
        codec = MPDD(m=M, bits=bits, family=family)
        error = mean_interval(relative_errors(codec, gradients, ROUNDS, seed=82, partitioned=partitioned))
        kind = "partitioned" if partitioned else "independent"
        expected = codec.variance(D, CLIENTS, partitioned=partitioned, alignment=alignment)
        claim = f"our formula for the same: {family}, {bits} bit{'s' if bits > 1 else ''}, {kind}"
        yield Row(claim, relative, error, "=", expected)
