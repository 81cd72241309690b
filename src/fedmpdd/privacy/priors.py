"""What an attacker knows about images before it sees anything: they are smooth, in a box, and like public ones."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def total_variation(images: Tensor) -> Tensor:
    """Mean |dx| + mean |dy| of images [problems, batch, channels, height, width], per problem."""
    dx = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).mean(dim=1)
    dy = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(dim=1)
    return dx + dy


@dataclass(frozen=True)
class PublicImages:
    """Images of the same kind that anybody can have: means of classes, and the directions in which images differ."""

    images: NDArray[np.float32]  # [examples, channels, height, width], in [0, 1]
    labels: NDArray[np.int64]

    def mean(self) -> NDArray[np.float32]:
        """The mean image."""
        return np.asarray(self.images.mean(axis=0))

    def class_mean(self, label: int) -> NDArray[np.float32]:
        """The mean image of a class; of all images where the class has none."""
        of_class = self.images[self.labels == label]
        return np.asarray(of_class.mean(axis=0)) if len(of_class) else self.mean()

    def class_components(self, label: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean [n] of a class and its first principal components [count, n], each as long as its deviation.

        Of all images where the class has none.
        """
        of_class = self.images[self.labels == label].reshape(-1, self.images[0].size)
        of_class = of_class if len(of_class) else self.images.reshape(len(self.images), -1)
        mean = of_class.mean(axis=0)
        _, deviations, components = np.linalg.svd(of_class - mean, full_matrices=False)
        lengths = deviations[:count] / np.sqrt(max(1, len(of_class) - 1))
        scaled = np.zeros((count, of_class.shape[1]), dtype=np.float32)  # a class of few images has few components
        scaled[: len(lengths)] = components[:count] * lengths[:, np.newaxis]
        return mean, scaled
