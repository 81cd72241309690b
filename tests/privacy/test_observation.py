import dataclasses

import numpy as np
import torch

from fedmpdd.codecs import MPDD, FedSGD, SAFedLora
from fedmpdd.privacy.observation import Observation, ObservedUpdate
from tests.privacy.fixtures import linear, seen, smooth_network


def test_a_gradient_is_that_of_autograd() -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, FedSGD())
    variable = flat.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        victim.model(variable, torch.from_numpy(images[0])), torch.from_numpy(labels[0])
    )
    expected = torch.autograd.grad(loss, variable)[0]
    assert torch.allclose(observations[0].updates[0].decoded, expected, atol=1e-6)


def test_an_attacker_never_sees_a_gradient() -> None:
    """What an observation holds: the model, bytes, and what was agreed on."""
    assert {f.name for f in dataclasses.fields(ObservedUpdate)} == {"flat", "frame", "codec", "key", "protection"}
    assert {f.name for f in dataclasses.fields(Observation)} == {"victim", "updates", "batch", "labels"}
    victim, flat = linear()
    observations, _, _ = seen(victim, flat, MPDD(5), granted=False)
    assert observations[0].labels is None
    assert isinstance(observations[0].updates[0].frame, bytes)
    assert len(observations[0].updates[0].update.arrays[0]) == 5


def test_codecs_that_need_the_shapes_of_the_model_are_seen_too() -> None:
    victim, flat = smooth_network()
    codec = SAFedLora(rank=2, warmup=0).for_shapes([tuple(shape) for shape in victim.model.shapes])
    observations, _, _ = seen(victim, flat, codec)
    exact, _, _ = seen(victim, flat, FedSGD())
    estimate, gradient = observations[0].updates[0].decoded, exact[0].updates[0].decoded
    assert 0.3 < float(estimate @ gradient / (gradient @ gradient)) <= 1 + 1e-5


def test_pixels_are_normalised_as_the_client_does() -> None:
    victim, _ = linear()
    normalised = dataclasses.replace(victim, mean=(0.2,), std=(0.5,))
    images = torch.rand(3, 1, 6, 6)
    assert torch.allclose(normalised.inputs(images), (images - 0.2) / 0.5)
    assert np.allclose(victim.inputs(images), images)
