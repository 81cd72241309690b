"""Clipping, noise and the coarse scale: their distributions, and that nothing else of the gradient gets out."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from fedmpdd import MPDD, Key, Session
from fedmpdd.codecs import FedSGD
from fedmpdd.codecs.arithmetic import sphere_factor
from fedmpdd.errors import CodecError, GradientError, KeyRangeError
from fedmpdd.uplink.protection import NoiseSource, Protection, SystemNoise, clipped_rows
from tests.conftest import gaussian


def generators(count: int, seed: int = 0) -> list[NoiseSource]:
    return [np.random.default_rng([seed, i]) for i in range(count)]


# -------------------------------------------------------------------------------------------------- clipping


@given(
    scalars=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=40),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    clip=st.floats(1e-6, 1e6),
)
def test_no_row_is_ever_longer_than_the_bound(scalars: NDArray[np.float32], clip: float) -> None:
    private = Protection(MPDD(scalars.shape[1]), clip=clip)
    given_rows = scalars.astype(np.float64)
    clipped = clipped_rows(given_rows, private.bound)
    assert (np.linalg.norm(clipped, axis=1) <= private.bound).all()
    short = np.linalg.norm(given_rows, axis=1) <= private.bound
    assert np.array_equal(clipped[short], given_rows[short])


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_what_is_sent_without_noise_is_within_the_bound_however_large_the_gradient(family: str) -> None:
    private = Protection(MPDD(30, family=family), clip=2.0)
    for size in (1e-3, 1.0, 1e3, 1e20):
        update = private.encode(gaussian(1, 500) * np.float32(size), [7])[0]
        assert np.linalg.norm(update.arrays[0].astype(np.float64)) <= private.bound * (1 + 1e-6)  # sent as float32
    assert private.bound == pytest.approx(2.0 * math.sqrt(30))


def test_a_gradient_within_the_bound_is_sent_as_it_is() -> None:
    codec = MPDD(30)
    gradients = gaussian(3, 500)
    assert Protection(codec, clip=1e6).encode(gradients, [1, 2, 3]).updates() == codec.encode(gradients, [1, 2, 3])


# ----------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("source", [SystemNoise(), np.random.default_rng(5)], ids=["system", "generator"])
def test_noise_is_normal_with_the_stated_deviation(source: NoiseSource) -> None:
    """Kolmogorov–Smirnov on 40,000 scalars of a zero gradient.

    False alarm: 1e-6. The system's noise is fresh in every run of the tests, so that one run in a million may fail.
    """
    m = 40_000
    private = Protection(MPDD(m), clip=0.25, noise_multiplier=0.5)
    assert private.noise_deviation == pytest.approx(0.5 * math.sqrt(m) * 0.25)
    noise = private.encode(np.zeros((1, 10), dtype=np.float32), [1], [source])[0].arrays[0]
    assert stats.kstest(noise / private.noise_deviation, "norm").pvalue > 1e-6


def test_noise_of_the_system_is_never_the_same_and_clients_have_their_own() -> None:
    private = Protection(MPDD(50), clip=1.0, noise_multiplier=1.0)
    gradients = np.repeat(gaussian(1, 100), 2, axis=0)
    first, second = private.encode(gradients, [1, 1])
    assert first != second
    assert list(private.encode(gradients, [1, 1])) != [first, second]


def test_generators_make_it_repeatable_and_every_seed_another() -> None:
    private = Protection(MPDD(50, bits=4), clip=1.0, noise_multiplier=1.0)
    gradients = gaussian(2, 100)
    assert private.encode(gradients, [1, 2], generators(2)) == private.encode(gradients, [1, 2], generators(2))
    assert private.encode(gradients, [1, 2], generators(2)) != private.encode(gradients, [1, 2], generators(2, seed=1))


@pytest.mark.parametrize(("bits", "grid"), [(32, None), (16, None), (8, None), (4, None), (1, None), (1, 2.0)])
def test_bits_and_scale_see_nothing_but_noisy_scalars(bits: int, grid: float | None) -> None:
    """Two gradients of very different norm whose noisy scalars agree have the same bytes."""

    class Exactly(np.random.Generator):
        """Noise that takes the scalars of one gradient to those that are wanted."""

        def __init__(self, wanted: NDArray[np.float64]) -> None:
            super().__init__(np.random.PCG64(3))
            self._wanted = wanted

        def standard_normal(self, *_: Any, **__: Any) -> Any:
            return self._wanted

    m = 16
    private = Protection(MPDD(m, bits=bits), clip=1e9, noise_multiplier=1e-9, scale_grid=grid)
    frames = []
    noisy = np.random.default_rng(1).integers(-50, 50, m)
    for size in (1, 64):
        # Whole numbers, so that scalars plus noise are exactly the ones that are wanted.
        gradient = np.full((1, 200), size, dtype=np.float32)
        scalars = MPDD(m).encode(gradient, [9])[0].arrays[0].astype(np.float64)
        source = Exactly((noisy - scalars) / private.noise_deviation)
        update = private.encode(gradient, [9], [source])[0]
        frames.append(Session(private.codec, 200, sends_seed=True).pack(update))
    assert frames[0] == frames[1]


def test_updates_are_those_of_the_codec() -> None:
    """They go through a session of the codec and decode as such."""
    for bits in (32, 8, 1):
        codec = MPDD(20, bits=bits)
        session = Session(codec, 100, sends_seed=False)
        updates = Protection(codec, clip=1.0, noise_multiplier=1.0).encode(gaussian(2, 100), [Key(1), Key(2)]).updates()
        received = [session.unpack(session.pack(update), update.key) for update in updates]
        assert received == updates
        assert np.isfinite(codec.decode_mean(received)).all()


# ----------------------------------------------------------------------------------------- bias and variance


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize(
    ("bits", "noise", "grid"),
    [(32, 0.05, None), (8, 0.05, None), (4, 0.1, None), (1, 0.1, None), (1, 0.1, 2.0), (1, 0.0, 2.0)],
)
def test_mean_and_variance_of_the_estimate(family: str, bits: int, noise: float, grid: float | None) -> None:
    """Unbiased where nothing is clipped, and the error is that of the formula, or with a grid at most that.

    Along the gradient and along a fixed other vector: false alarm z above 5, less than 3e-6 for the three together with
    fresh seeds; one bit gets 2 % for the terms that its formulas leave out.
    """
    d, m, trials = 256, 40, 3_000
    g = gaussian(1, d)
    norm = float(np.linalg.norm(g))
    private = Protection(MPDD(m, bits=bits, family=family), clip=2 * norm, noise_multiplier=noise, scale_grid=grid)
    updates = private.encode(np.repeat(g, trials, axis=0), range(trials), generators(trials))
    estimates = np.array([private.codec.decode_mean([update]) for update in updates], dtype=np.float64)
    other = gaussian(d, seed=1).astype(np.float64)
    for probe in (g[0].astype(np.float64), other):
        seen = estimates @ probe
        slack = 0.02 * norm * np.linalg.norm(probe) if bits == 1 else 0.0
        assert abs(seen.mean() - g[0] @ probe) < 5 * seen.std() / math.sqrt(trials) + slack
    errors = ((estimates - g[0]) ** 2).sum(axis=1) / norm**2
    expected = private.variance(d, norm=norm)
    tolerance = 5 * errors.std() / math.sqrt(trials) + 0.02 * expected
    assert errors.mean() < expected + tolerance
    if grid is None:
        assert errors.mean() > expected - tolerance
    else:
        assert errors.mean() > expected / 1.125 - tolerance
    assert private.variance(d, 10, norm=norm) == pytest.approx(expected / 10)


def test_noise_costs_the_same_whatever_m() -> None:
    """docs/protection.md: d·(noise·clip/‖g‖)², the error of the same noise on the whole gradient."""
    for m in (1, 10, 500):
        private = Protection(MPDD(m), clip=3.0, noise_multiplier=0.5)
        assert private.variance(1_000, norm=2.0) - MPDD(m).variance(1_000) == pytest.approx(1_000 * (0.5 * 3 / 2) ** 2)


def test_the_factor_of_the_scale_goes_from_one_to_that_of_normal_scalars() -> None:
    assert sphere_factor(1) == pytest.approx(1)
    assert sphere_factor(2) == pytest.approx(math.pi / (2 * math.sqrt(2)))  # E|cos| = 2/π
    assert sphere_factor(10**6) == pytest.approx(math.sqrt(math.pi / 2), rel=1e-6)


# ---------------------------------------------------------------------------------------------- coarse scale


@pytest.mark.parametrize("grid", [2.0, 1.5, 10.0])
def test_scales_are_on_the_grid_and_right_on_average(grid: float) -> None:
    """False alarm: z above 5, less than 6e-7 with fresh seeds."""
    trials = 4_000
    codec = MPDD(8, bits=1)
    g = gaussian(1, 100)
    exact = codec.encode(g, [1])[0]
    private = Protection(codec, scale_grid=grid)
    updates = private.encode(np.repeat(g, trials, axis=0), [1] * trials, generators(trials)).updates()
    scales = np.array([update.arrays[0][0] for update in updates], dtype=np.float64)
    exponents = np.log(scales) / math.log(grid)
    assert np.allclose(exponents, np.round(exponents), atol=1e-5)
    assert len(set(scales.tolist())) == 2
    assert abs(scales.mean() - float(exact.arrays[0][0])) < 5 * scales.std() / math.sqrt(trials)
    assert all(np.array_equal(update.arrays[1], exact.arrays[1]) for update in updates[:20])  # signs are untouched


@given(scale=st.floats(1e-40, 1e38), grid=st.floats(1.01, 100.0))
def test_a_coarse_scale_is_next_to_the_exact_one(scale: float, grid: float) -> None:
    coarse = Protection(MPDD(1, bits=1), scale_grid=grid)._coarse(scale, np.random.default_rng(0))
    assert scale / grid * (1 - 1e-9) <= coarse <= scale * grid * (1 + 1e-9)


def test_scales_at_the_ends_of_float32() -> None:
    private = Protection(MPDD(4, bits=1), scale_grid=1e6)
    zero = private.encode(np.zeros((1, 5), dtype=np.float32), [1])[0]
    assert not any(array.any() for array in zero.arrays)
    rounds_up = next(seed for seed in range(1_000) if np.random.default_rng([seed, 0]).random() < 0.05)
    with pytest.raises(CodecError, match="the coarse scale is above"):
        Protection(MPDD(4, bits=1), scale_grid=1e3).encode(
            np.full((1, 2), 5e37, dtype=np.float32), [1], generators(1, rounds_up)
        )
    tiny = np.full((1, 5), 1e-45, dtype=np.float32)
    session = Session(private.codec, 5, sends_seed=False)
    for seed in range(50):  # some become 0, and are still frames
        update = private.encode(tiny, [1], generators(1, seed))[0]
        assert session.unpack(session.pack(update), update.key) == update


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing is protected"),
        ({"noise_multiplier": 1.0}, "without a bound on the scalars no noise is enough"),
        ({"clip": 0}, "clip = 0: expected a finite number above 0"),
        ({"clip": math.inf}, "clip = inf"),
        ({"clip": True}, "clip = True"),
        ({"clip": "1"}, "clip = '1'"),
        ({"clip": 1.0, "noise_multiplier": -1}, "noise_multiplier = -1"),
        ({"clip": 1.0, "noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"clip": 1.0, "scale_grid": 2.0}, "the size of its scalars tells the norm"),
        ({"scale_grid": 1.0}, "scale_grid = 1.0: expected a finite number above 1"),
    ],
)
def test_settings_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Protection(MPDD(3), **options)


def test_bad_calls() -> None:
    not_mpdd: Any = FedSGD()
    with pytest.raises(CodecError, match="no scalars along directions"):
        Protection(not_mpdd, clip=1.0)
    private = Protection(MPDD(3), clip=1.0, noise_multiplier=1.0)
    with pytest.raises(CodecError, match="2 gradients came with 1 sources"):
        private.encode(gaussian(2, 5), [1, 2], generators(1))
    with pytest.raises(KeyRangeError):
        private.encode(gaussian(2, 5), [1])
    with pytest.raises(GradientError):
        private.encode(np.full((1, 5), np.nan, dtype=np.float32), [1])
    with pytest.raises(CodecError, match="clip and noise are too large"):
        Protection(MPDD(3), clip=1e38, noise_multiplier=1e3).encode(gaussian(1, 5), [1], generators(1))
    with pytest.raises(CodecError, match="norm = 0"):
        private.variance(10, norm=0)
