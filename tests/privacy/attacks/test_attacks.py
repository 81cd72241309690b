"""Every attack on small problems whose answers are known."""

from typing import Any

import numpy as np
import pytest
import torch

from fedmpdd.codecs import MPDD, Codec, FedSGD, Peaks
from fedmpdd.codecs.evidence import Evidence
from fedmpdd.errors import InputError
from fedmpdd.privacy.attacks import ATTACKS, Attack, PublicImages, Setting, adaptive
from fedmpdd.privacy.attacks.adaptive import Adaptive
from fedmpdd.privacy.attacks.dlg import DLG
from fedmpdd.privacy.attacks.idlg import IDLG, read_label
from fedmpdd.privacy.attacks.inverting_gradients import InvertingGradients
from fedmpdd.privacy.curvature import Curvature
from tests.conftest import gaussian
from tests.privacy.fixtures import CLASSES, linear, pictures, seen, smooth_network

IMAGES, LABELS = pictures(200, seed=9)
PUBLIC = PublicImages(IMAGES, LABELS)


def test_a_linear_model_inverts_in_closed_form() -> None:
    """The row of the true class is (p − 1)·x and its bias p − 1: their quotient is the image."""
    victim, flat = linear()
    observations, images, labels = seen(victim, flat, FedSGD())
    for o, image, label in zip(observations, images, labels, strict=True):
        parts = victim.model.unflatten(o.updates[0].decoded)
        row, bias = parts["1.weight"][label[0]], parts["1.bias"][label[0]]
        assert torch.allclose(row / bias, torch.from_numpy(image).reshape(-1), atol=1e-5)
    found = DLG(iterations=150, restarts=1).run(observations, seed=0)
    assert np.allclose(found.images, images, atol=0.02)
    assert (found.labels == labels).all()


def evidence_of(codec: Codec, d: int) -> Evidence:
    return codec.evidence(codec.encode(gaussian(1, d), [1]))


@pytest.mark.parametrize("make", ATTACKS.values(), ids=ATTACKS)
def test_the_loss_is_zero_at_the_truth(make: Any) -> None:
    victim, flat = smooth_network()
    for codec in (FedSGD(), MPDD(60)):
        attack: Attack = make(Setting("smooth", evidence_of(codec, flat.numel()), 1, False, PUBLIC, 0.01))
        observations, images, labels = seen(victim, flat, codec)
        if codec == FedSGD() or attack.name == "adaptive":
            assert (attack.losses_at(observations, images, labels) < 1e-6).all()


def test_idlg_reads_the_label() -> None:
    victim, flat = smooth_network()
    observations, _, labels = seen(victim, flat, FedSGD(), count=8, granted=False)
    assert [int(read_label(o)[0]) for o in observations] == labels[:, 0].tolist()
    found = IDLG(iterations=5, restarts=1).run(observations, seed=0)
    assert (found.labels == labels).all()
    with pytest.raises(InputError, match="batches have 2"):
        IDLG().run(seen(victim, flat, FedSGD(), batch=2)[0], seed=0)


def test_the_seed_gives_the_image_away() -> None:
    """60 scalars of a gradient of 988: the decoded estimate hides the image, what was sent does not."""
    victim, flat = smooth_network()
    observations, images, _ = seen(victim, flat, MPDD(60))
    hidden = DLG(iterations=200, restarts=1).run(observations, seed=0)
    given = Adaptive(iterations=200, public=PUBLIC).run(observations, seed=0)
    assert np.abs(given.images - images).mean() < 0.05
    assert np.abs(hidden.images - images).mean() > 0.2


def test_smoothness_does_not_outweigh_what_is_left_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small weights, as at PyTorch's start of LeNet, hardly any of the gradient depends on the image."""
    victim, flat = smooth_network()
    flat = flat.clone()
    for name, weight in victim.model.unflatten(flat).items():
        if name.endswith("weight"):
            weight.mul_(0.01)
    observations, images, _ = seen(victim, flat, MPDD(60))
    attack = Adaptive(iterations=200, public=PUBLIC)
    error = np.abs(attack.run(observations, seed=0).images - images).mean()
    monkeypatch.setattr(adaptive, "REFERENCE_SCALE", 1e-30)  # full weight, whatever the first guess explains
    outweighed = np.abs(attack.run(observations, seed=0).images - images).mean()
    assert error < 0.02 < outweighed / 1.5


@pytest.mark.parametrize(
    "attack",
    [
        DLG(iterations=30),
        InvertingGradients(iterations=60),
        Adaptive(iterations=40),
        Adaptive(iterations=40, joint=True),
        Adaptive(iterations=40, optimiser="adam"),
        Adaptive(iterations=40, prior="components", components=10, public=PUBLIC),
    ],
    ids=["dlg", "inverting-gradients", "adaptive", "joint", "adam", "components"],
)
@pytest.mark.parametrize("granted", [True, False], ids=["granted", "found"])
def test_losses_fall_and_labels_are_found(attack: Attack, granted: bool) -> None:
    victim, flat = smooth_network()
    observations, images, labels = seen(victim, flat, FedSGD(), granted=granted)
    shares: list[float] = []
    found = attack.run(observations, seed=3, progress=shares.append)
    assert found.images.shape == images.shape
    assert found.images.min() >= 0
    assert found.images.max() <= 1
    assert (found.history[-1].losses <= found.history[0].losses).all()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    again = attack.run(observations, seed=3)
    assert np.array_equal(found.images, again.images)
    if attack.name != "dlg":
        assert (found.labels == labels).mean() >= 0.5


def test_several_rounds_say_more_than_one() -> None:
    victim, flat = smooth_network()
    attack = Adaptive(iterations=160, public=PUBLIC)
    errors = []
    for rounds in (1, 6):
        observations, images, _ = seen(victim, flat, MPDD(8), count=4, rounds=rounds)
        errors.append(np.abs(attack.run(observations, seed=0).images - images).mean())
    assert errors[1] < 0.7 * errors[0]


def test_batches_are_attacked_together() -> None:
    victim, flat = smooth_network()
    observations, images, _ = seen(victim, flat, FedSGD(), count=1, batch=2)
    found = Adaptive(iterations=200, tv_last=1e-6).run(observations, seed=0)
    assert found.images.shape == images.shape
    assert found.losses[0] < 1e-3


def test_observations_that_do_not_belong_together_are_refused() -> None:
    victim, flat = linear()
    one, two = seen(victim, flat, MPDD(5))[0], seen(victim, flat, MPDD(6))[0]
    with pytest.raises(InputError, match="different codecs"):
        DLG(iterations=1).run([one[0], two[0]], seed=0)
    with pytest.raises(InputError, match="nothing to attack"):
        DLG(iterations=1).run([], seed=0)
    with pytest.raises(InputError, match="public images"):
        Adaptive(prior="components").run(one, seed=0)
    assert victim.classes == CLASSES


@pytest.mark.parametrize(
    ("curvature", "codec", "prior"),
    [
        ("linear", MPDD(400, bits=1), "components"),
        ("linear", MPDD(50), "components"),
        ("linear", Peaks(9), "components"),
        ("linear", MPDD(2_000), "smooth"),
        ("kinked", MPDD(2_000), "components"),
    ],
    ids=str,
)
def test_where_little_is_to_be_had_the_attack_must_know_what_images_look_like(
    curvature: Curvature, codec: Codec, prior: str
) -> None:
    attack = ATTACKS["adaptive"](
        Setting(curvature, evidence_of(codec, 10_000), 1, noisy=False, public=PUBLIC, effort=1.0)
    )
    assert isinstance(attack, Adaptive)
    assert attack.prior == prior
