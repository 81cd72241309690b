"""Means that liars cannot move far, for every codec."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmpdd.codecs import EDEN, MPDD, QSGD, Codec, FedSGD, Gaussian, Laplace, LpProj, Peaks, RandK, SAFedLora, TopK
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import ConfigError
from fedmpdd.uplink import RobustMean
from fedmpdd.uplink.robust import agreements, trimmed_mean
from fedmpdd.wire.bundle import unpack_bundle
from tests.codecs.table import CODECS_UNDER_TEST, label
from tests.conftest import gaussian

D, CLIENTS = 600, 10
CODECS: list[Codec] = [
    *(MPDD(300, bits, "hadamard") for bits in (32, 16, 8, 4, 1)),
    MPDD(300),
    FedSGD(),
    QSGD(8),
    TopK(200),
    RandK(300),
    LpProj(300),
    Laplace(1e-4),
    Gaussian(1e-4),
    EDEN(2),
    Peaks(100, 4),
    SAFedLora(rank=5, shapes=((20, 30),)),
]
LIES = {"turned": -1.0, "ten times": -10.0, "hundred times": -100.0, "million times": 1e6}


def honest_gradients() -> NDArray[np.float32]:
    """Gradients that agree as those of i.i.d. clients do early in training: cosines of about 0.8."""
    return gaussian(1, D) + 0.5 * gaussian(CLIENTS, D, seed=1)


def keys(shared: bool) -> list[Key]:
    return [Key(derive_seed(3, 0, 0 if shared else client)) for client in range(CLIENTS)]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("codec", CODECS, ids=label)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("liars", [1, 3])
def test_liars_do_not_turn_the_mean_round(codec: Codec, lie: str, liars: int, shared: bool) -> None:
    gradients = honest_gradients()
    direction = gradients.mean(axis=0)
    gradients[-liars:] *= LIES[lie]
    updates = codec.encode(gradients.astype(np.float32), keys(shared))
    bundle = RobustMean().bundle(updates, None, None, shared=shared)
    estimate = bundle.updates[0].codec.decode_mean(bundle.updates, bundle.weights)
    alone = codec.decode_mean(updates[:-liars])
    along = float(estimate @ direction) / float(alone @ direction)
    assert 0.6 < along < 1.6
    assert np.linalg.norm(estimate) < 2 * np.linalg.norm(alone)


@pytest.mark.parametrize("codec", CODECS, ids=label)
def test_without_liars_little_changes(codec: Codec) -> None:
    """The robust mean of honest updates is as near to the mean gradient as the plain one, but for a tenth or so."""
    gradients = honest_gradients()
    for shared in (True, False):
        updates = codec.encode(gradients, keys(shared))
        bundle = RobustMean().bundle(updates, None, None, shared=shared)
        estimate = bundle.updates[0].codec.decode_mean(bundle.updates, bundle.weights)
        errors = [float(np.linalg.norm(one - gradients.mean(axis=0))) for one in (estimate, codec.decode_mean(updates))]
        assert errors[0] < 1.25 * errors[1] + 0.1 * float(np.linalg.norm(gradients.mean(axis=0)))


def test_claims_of_examples_weigh_no_more_than_the_median() -> None:
    codec = FedSGD()
    updates = codec.encode(np.stack([np.full(4, float(i), np.float32) for i in (1, 1, 1, 1)]), [Key(1)] * 4)
    bundle = RobustMean().bundle(updates, [10, 20, 10, 1e5], None, shared=False)
    assert bundle.weights == (10, 10, 10, 10)


def test_updates_of_ordinary_size_keep_their_weights_and_none_are_written_for_equal_ones() -> None:
    codec = FedSGD()
    updates = codec.encode(np.ones((4, 9), np.float32), [Key(1)] * 4)
    assert RobustMean().bundle(updates, None, None, shared=False).weights is None
    assert RobustMean().bundle(updates, [2, 2, 1, 2], None, shared=False).weights == (2, 2, 1, 2)


def test_a_running_reference_shrinks_a_whole_round_alike() -> None:
    codec = FedSGD()
    updates = codec.encode(np.full((4, 4), 8.0, np.float32), [Key(1)] * 4)
    assert RobustMean().bundle(updates, None, 4.0, shared=False).weights is None
    mixed = codec.encode(np.array([[1.0], [1], [1], [100]], np.float32) * np.ones(4, np.float32), [Key(1)] * 4)
    weights = RobustMean().bundle(mixed, None, 2.0, shared=False).weights
    assert weights == pytest.approx((1, 1, 1, 0.01))


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_trimmed_scalars_are_one_update_that_a_bundle_carries(bits: int) -> None:
    codec = MPDD(50, bits, "hadamard")
    updates = codec.encode(honest_gradients(), keys(shared=True))
    for mean_bits in (None, 8, 1):
        bundle = RobustMean().bundle(updates, None, None, shared=True, mean_bits=mean_bits)
        (update,) = bundle.updates
        assert (update.codec, update.key) == (MPDD(50, mean_bits or 32, "hadamard"), updates[0].key)
        assert unpack_bundle(bundle.pack(), update.codec, D).updates == bundle.updates


def test_signs_and_keys_of_their_own_are_not_trimmed() -> None:
    mean = RobustMean()
    assert mean.trims(MPDD(50), shared=True)
    assert not mean.trims(MPDD(50), shared=False)
    assert not mean.trims(MPDD(50, 1), shared=True)
    assert not mean.trims(FedSGD(), shared=True)
    assert not RobustMean(trim=0.0).trims(MPDD(50), shared=True)


@given(st.integers(3, 12), st.integers(0, 2**32), st.data())
def test_a_trimmed_mean_stays_among_the_honest(count: int, seed: int, data: st.DataObject) -> None:
    liars = data.draw(st.integers(0, (count - 1) // 2))
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 5))
    honest = rows[liars:].copy()
    rows[:liars] = 10.0 ** rng.integers(-3, 30, (liars, 5)) * rng.choice([-1, 1], (liars, 5))
    mean = trimmed_mean(rows, np.ones(count), liars)
    assert (mean >= honest.min(axis=0) - 1e-12).all()
    assert (mean <= honest.max(axis=0) + 1e-12).all()
    order = rng.permutation(count)
    assert np.allclose(trimmed_mean(rows[order], np.ones(count), liars), mean, atol=1e-9)


def test_who_agrees_with_nobody_stands_out() -> None:
    vectors = np.vstack([gaussian(1, 50) + 0.1 * gaussian(6, 50, seed=2), -gaussian(1, 50)]).astype(np.float64)
    agreement = agreements(vectors)
    assert agreement[-1] < -0.9
    assert (agreement[:-1] > 0.9).all()
    assert agreements(np.zeros((3, 4))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("codec", [codec for codec in CODECS_UNDER_TEST if codec.name != "sa-fedlora"], ids=label)
def test_zero_updates_are_no_trouble(codec: Codec) -> None:
    updates = codec.encode(np.zeros((6, 200), np.float32), [Key(1)] * 6)
    for shared in (True, False):
        bundle = RobustMean().bundle(updates, [1.0] * 6, None, shared=shared)
        estimate = bundle.updates[0].codec.decode_mean(bundle.updates, bundle.weights)
        assert np.isfinite(estimate).all()


@pytest.mark.parametrize(
    "settings",
    [{"shrink": 0.0}, {"shrink": math.inf}, {"trim": 0.5}, {"trim": -0.1}, {"disagreement": 0.0}, {"shrink": math.nan}],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RobustMean(**settings)


def test_a_reference_of_zero_does_not_switch_shrinking_off() -> None:
    updates = FedSGD().encode(np.array([[1.0], [1], [-1000]], np.float32) * np.ones(4, np.float32), [Key(1)] * 3)
    assert RobustMean().bundle(updates, None, 0.0, shared=False).weights == pytest.approx((1, 1, 0.001))


def test_many_updates_of_a_small_model_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpdd.uplink.robust.WHOLE", 10)  # instead of some thousand clients
    updates = FedSGD().encode(np.array([[1, 2, 3]] * 5 + [[-1, -2, -3]], np.float32), [Key(1)] * 6)
    assert RobustMean().bundle(updates, None, None, shared=False).weights == (1, 1, 1, 1, 1, 0)


def test_one_or_two_updates_go_no_further_than_the_reference() -> None:
    codec, mean = FedSGD(), RobustMean()
    for sizes, length in (([8.0], 2.0), ([8.0, 8.0], 2.0), ([1.0], 1.0), ([1.0, 8.0], 1.5), ([8.0, 8.0, 8.0], 8.0)):
        updates = codec.encode(np.array(sizes, np.float32)[:, np.newaxis], [Key(1)] * len(sizes))
        bundle = mean.bundle(updates, None, 2.0, shared=False)
        step = mean.share(updates, None, 2.0) * codec.decode_mean(bundle.updates, bundle.weights)
        assert step == pytest.approx([length])
    assert mean.share(updates[:1], None, None) == 1.0


def test_agreements_in_parts_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(3).standard_normal((11, 40)) + 0.3
    whole = agreements(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for row, agreement in enumerate(whole):
        cosines = np.sort(np.delete(unit @ unit[row], row))
        assert agreement == pytest.approx(cosines[3:7].mean())
    monkeypatch.setattr("fedmpdd.uplink.robust.COSINES", 33)
    assert agreements(vectors) == pytest.approx(whole)
