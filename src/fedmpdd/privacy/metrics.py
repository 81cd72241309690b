"""How close a reconstruction is: SSIM as this project defines it, and simpler measures."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import MissingDependencyError

Image = NDArray[np.float32]  # [channels, height, width], in [0, 1]


def ssim(one: Image, other: Image) -> float:
    """Structural similarity with a gaussian window (σ = 1.5), population covariance, data range 1.

    Values are clamped to [0, 1] first. Libraries disagree about their defaults: the same noisy digit scores from 0.59
    to 0.89; this is the definition of the original publication.
    """
    try:
        from skimage.metrics import structural_similarity
    except ModuleNotFoundError:
        raise MissingDependencyError("SSIM needs scikit-image; pip install 'fedmpdd[privacy]'") from None
    similarity: Any = structural_similarity
    return float(
        similarity(
            np.clip(one, 0, 1),
            np.clip(other, 0, 1),
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
        )
    )


def mse(one: Image, other: Image) -> float:
    """Mean squared difference of clamped pixels."""
    return float(np.mean((np.clip(one, 0, 1) - np.clip(other, 0, 1)) ** 2))


def psnr(one: Image, other: Image) -> float:
    """Peak signal-to-noise ratio in decibels; infinite for equal images."""
    error = mse(one, other)
    return math.inf if error == 0 else -10 * math.log10(error)


def best_order(images: NDArray[np.float32], truth: NDArray[np.float32]) -> list[int]:
    """Which found image belongs to which true one, [batch, …] each: a batch has no order of its own."""
    from scipy.optimize import linear_sum_assignment  # scikit-image brings it

    cost = ((images[np.newaxis] - truth[:, np.newaxis]) ** 2).reshape(len(truth), len(images), -1).mean(axis=2)
    return [int(column) for column in linear_sum_assignment(cost)[1]]
