import math

import numpy as np

from fedmpdd.privacy.metrics import best_order, mse, psnr, ssim


def test_ssim_is_one_for_equals_and_values_are_clamped() -> None:
    image = np.random.default_rng(0).random((1, 28, 28)).astype(np.float32)
    assert ssim(image, image) == 1.0
    assert ssim(image * 3 - 1, np.clip(image * 3 - 1, 0, 1)) == 1.0
    assert abs(ssim(image, 1 - image)) < 1
    assert ssim(image, np.zeros_like(image)) < 0.1


def test_ssim_is_the_gaussian_definition() -> None:
    """By hand at one place: an 11×11 gaussian window, population moments, mean over whole windows."""
    rng = np.random.default_rng(1)
    a, b = (rng.random((1, 11, 11)).astype(np.float32) for _ in range(2))
    x = np.arange(-5, 6)
    window = np.exp(-(x**2) / (2 * 1.5**2))
    window = np.outer(window, window) / window.sum() ** 2
    ma, mb = (window * a[0]).sum(), (window * b[0]).sum()
    va, vb = (window * a[0] ** 2).sum() - ma**2, (window * b[0] ** 2).sum() - mb**2
    cov = (window * a[0] * b[0]).sum() - ma * mb
    expected = (2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    assert abs(ssim(a, b) - expected) < 1e-5


def test_simple_measures() -> None:
    zero, half = np.zeros((1, 4, 4), np.float32), np.full((1, 4, 4), 0.5, np.float32)
    assert mse(zero, half) == 0.25
    assert math.isclose(psnr(zero, half), 10 * math.log10(4))
    assert psnr(half, half) == math.inf


def test_a_shuffled_batch_is_put_in_order() -> None:
    truth = np.random.default_rng(0).random((4, 1, 5, 5)).astype(np.float32)
    assert [int(i) for i in np.argsort([2, 0, 3, 1])] == best_order(truth[[2, 0, 3, 1]], truth)
