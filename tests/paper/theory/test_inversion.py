"""The attacker of Lemma 5 recovers what it should, and the model's gradients are PyTorch's."""

import numpy as np
import pytest
import torch

from fedmpdd_paper.theory import inversion
from fedmpdd_paper.theory.draws import squared
from fedmpdd_paper.theory.inversion import CLASSES, PIXELS, D, Softmax


def test_the_gradient_is_that_of_torch() -> None:
    model = Softmax.initial(seed=3)
    (image,), (label,) = inversion.digits(1)
    linear = torch.nn.Linear(PIXELS, CLASSES, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(model.weights))
        linear.bias.copy_(torch.from_numpy(model.biases))
    loss = torch.nn.functional.cross_entropy(linear(torch.from_numpy(image)[None]), torch.tensor([label]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert linear.weight.grad is not None
    assert linear.bias.grad is not None
    flat = torch.cat([linear.weight.grad.flatten(), linear.bias.grad]).numpy()
    np.testing.assert_allclose(model.gradient(image, int(label)), flat, atol=1e-12)


def test_the_linearised_problem_is_the_derivative() -> None:
    model = Softmax.initial(seed=4)
    (image, other), (label, _) = inversion.digits(2)
    observed = inversion.observe(model, image, int(label), m=30, rounds=1, seed=1)
    matrix, wanted = observed.linearised(other, int(label))
    np.testing.assert_allclose(
        matrix @ other - wanted,
        observed.directions @ model.gradient(other, int(label)) - observed.scalars,
        atol=1e-3,
    )
    rng = np.random.default_rng(1)
    change = 1e-4 * rng.standard_normal(PIXELS)
    moved = observed.directions @ (model.gradient(other + change, int(label)) - model.gradient(other, int(label)))
    np.testing.assert_allclose(matrix @ change, moved, atol=2e-2 * np.abs(moved).max())


def test_boxed_least_squares_finds_pixels_at_their_limits() -> None:
    rng = np.random.default_rng(2)
    image = np.clip(rng.normal(0, 1, PIXELS), 0, 1)
    matrix = rng.standard_normal((900, PIXELS))
    found = inversion.boxed_least_squares(matrix, matrix @ image, np.zeros(PIXELS), 300)
    assert found.min() >= 0
    assert found.max() <= 1
    np.testing.assert_allclose(found, image, atol=0.02)


def test_an_image_comes_back_from_a_thirteenth_of_its_gradient() -> None:
    model = Softmax.initial(seed=5)
    (image,), (label,) = inversion.digits(1)
    observed = inversion.observe(model, image, int(label), m=100, rounds=6, seed=7)
    assert observed.directions.shape == (600, D)
    found, guessed = inversion.invert(observed)
    assert guessed == label
    assert squared(found - image) < 1e-9 * squared(image)


def test_verdicts_on_lemma_4() -> None:
    rows = list(inversion._lemma_4())
    assert {row.verdict for row in rows} == {"holds only if the attacker's loss reaches zero"}
    assert rows[0].corrected_holds


@pytest.mark.parametrize("model", [Softmax.zero(), Softmax.initial(seed=1)])
def test_probabilities_add_up(model: Softmax) -> None:
    assert model.probabilities(np.ones(PIXELS)).sum() == pytest.approx(1)
