"""Losses: zero at the truth, larger elsewhere, and their derivatives."""

import numpy as np
import pytest
import torch

from fedmpdd.codecs import MPDD, QSGD, Codec, FedSGD, Peaks, TopK
from fedmpdd.directions import Key
from fedmpdd.privacy.matching import Cosine, SquaredDifference, match_decoded, match_sent, project
from fedmpdd.privacy.observation import one_hot
from tests.conftest import gaussian
from tests.privacy.fixtures import seen, smooth_network


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_projection_and_its_derivative_are_those_of_the_dense_matrix(family: str) -> None:
    keys, d = [Key(3), Key(4)], 50
    g = torch.from_numpy(gaussian(2, d)).requires_grad_()
    identity = torch.eye(d)
    matrices = [project(identity, [key] * d, family, 7).T for key in keys]  # [m, d], one column at a time
    scalars = project(g, keys, family, 7)
    assert torch.allclose(scalars, torch.stack([u @ row for u, row in zip(matrices, g, strict=True)]), atol=1e-4)
    weights = torch.from_numpy(gaussian(2, 7, seed=1))
    back = torch.autograd.grad((scalars * weights).sum(), g)[0]
    assert torch.allclose(back, torch.stack([w @ u for u, w in zip(matrices, weights, strict=True)]), atol=1e-4)


@pytest.mark.parametrize(
    "codec", [FedSGD(), TopK(k=20), MPDD(30), MPDD(30, family="hadamard"), MPDD(200, bits=16)], ids=str
)
def test_what_was_sent_without_loss_is_explained_by_the_truth_alone(codec: Codec) -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, codec)
    match = match_sent([o.updates[0] for o in observations])
    truth = victim.gradients(flat, torch.from_numpy(images), one_hot(torch.from_numpy(labels), victim.classes))
    other = victim.gradients(flat, torch.rand(2, 1, 1, 6, 6), one_hot(torch.from_numpy(labels), victim.classes))
    assert (match(truth) < 1e-6).all()
    assert (match(other) > 1e-4).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_scalars_leave_the_truth_within_what_rounding_explains(bits: int) -> None:
    victim, flat = smooth_network()
    codec = MPDD(100, bits=bits)
    observations, images, labels = seen(victim, flat, codec)
    updates = [o.updates[0] for o in observations]
    truth = victim.gradients(flat, torch.from_numpy(images), one_hot(torch.from_numpy(labels), victim.classes))
    for row, observed in zip(truth, updates, strict=True):
        scalars = project(row[None], [observed.key], codec.family, codec.m)[0].numpy() / float(
            observed.update.arrays[0][0]
        )
        assert (np.abs(scalars - codec.written([observed.update]).numbers[0]) < 1).all()
    # Only the mild pull towards the level itself is left: below a twentieth of a squared step a scalar.
    steps = torch.tensor([float(s.update.arrays[0][0]) for s in updates]).square() * codec.m
    numbers = codec.written([s.update for s in updates]).numbers
    power = torch.tensor([float((s.update.arrays[0][0] * n**2).sum()) for s, n in zip(updates, numbers, strict=True)])
    assert (match_sent(updates)(truth) <= 0.05 * steps / (power * steps.sqrt() / codec.m**0.5)).all()


def test_a_one_bit_observation_is_consistent_with_the_truth() -> None:
    victim, flat = smooth_network()
    codec = MPDD(400, bits=1)
    observations, images, labels = seen(victim, flat, codec)
    updates = [o.updates[0] for o in observations]
    truth = victim.gradients(flat, torch.from_numpy(images), one_hot(torch.from_numpy(labels), victim.classes))
    scalars = project(truth, [s.key for s in updates], codec.family, codec.m).numpy()
    signs = codec.written([s.update for s in updates]).numbers
    assert (np.sign(scalars) == signs).all()
    match = match_sent(updates)
    assert (match(truth) < match(truth.roll(1, dims=0))).all()
    assert (match(truth) < match(-truth)).all()
    assert (match(truth) < match(3 * truth)).all()  # the scale gives the norm away


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_peaks_are_consistent_with_the_truth(family: str) -> None:
    victim, flat = smooth_network()
    codec = Peaks(12, 16, family)
    observations, images, labels = seen(victim, flat, codec)
    updates = [o.updates[0] for o in observations]
    truth = victim.gradients(flat, torch.from_numpy(images), one_hot(torch.from_numpy(labels), victim.classes))
    for row, observed in zip(truth, updates, strict=True):
        assert codec.magnitude(observed.update) == pytest.approx(float(row.norm()), rel=0.5)
    match = match_sent(updates)
    assert (match(truth) < match(truth.roll(1, dims=0))).all()
    assert (match(truth) < match(-truth)).all()
    assert (match(truth) < match(3 * truth)).all()


def test_decoded_estimates_are_matched_as_published() -> None:
    victim, flat = smooth_network()
    observations, _, _ = seen(victim, flat, QSGD(bits=4))
    targets = match_decoded([o.updates[0] for o in observations])
    assert torch.allclose(SquaredDifference(targets)(targets), torch.zeros(2))
    assert torch.allclose(Cosine(targets)(2 * targets), torch.zeros(2), atol=1e-6)
    assert torch.allclose(Cosine(targets)(-targets), torch.full((2,), 2.0), atol=1e-6)
