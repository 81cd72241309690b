"""CIFAR-10: 60,000 small colour pictures, as .npz batches or as the original python batches."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.data.base import Dataset, Examples, RemoteFile, Source, damaged, missing

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FOLDERS = ("cifar-10", "cifar-10/cifar-10-batches-py", "cifar-10-batches-py")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
ROWS = 10_000


class _NumbersOnly(pickle.Unpickler):
    """A pickle can run any code; a batch needs nothing but these names to be rebuilt."""

    allowed = frozenset(
        [
            *[("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")],
            *[("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")],
        ]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_npz(path: Path) -> tuple[Any, Any]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return arrays["data"], arrays["labels"]


def _read_pickle(path: Path) -> tuple[Any, Any]:
    with path.open("rb") as file:
        batch = _NumbersOnly(file, encoding="bytes").load()
    return batch[b"data"], batch[b"labels"]


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        data, labels = _read_npz(path) if path.suffix == ".npz" else _read_pickle(path)
        data, labels = np.asarray(data), np.asarray(labels).astype(np.int64)
    except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise damaged(path, str(error) or type(error).__name__) from None
    if data.shape != (ROWS, 3072) or data.dtype != np.uint8 or labels.shape != (ROWS,):
        raise damaged(path, f"it holds {data.dtype} {list(data.shape)} and {list(labels.shape)} labels")
    if labels.min() < 0 or labels.max() > 9:
        raise damaged(path, "it has a label outside 0 to 9")
    return data, labels


def find(folder: Path) -> list[Path]:
    """Return the batches that are there, all from one folder."""
    best: list[Path] = []
    for place in FOLDERS:
        for suffix in (".npz", ""):
            found = [path for name in BATCHES if (path := folder / place / (name + suffix)).is_file()]
            best = max(best, found, key=len)
    return best


def load(folder: Path) -> Dataset:
    """Load the five training batches and the test batch."""
    paths = find(folder)
    if len(paths) != len(BATCHES):
        have = {path.stem for path in paths}
        raise missing("cifar-10", folder / FOLDERS[0] / (next(name for name in BATCHES if name not in have) + ".npz"))
    parts = [_read(path) for path in paths]
    images = np.concatenate([data for data, _ in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in parts])
    train = len(labels) - ROWS
    return Dataset(
        "cifar-10", Examples(images[:train], labels[:train]), Examples(images[train:], labels[train:]), 10, MEAN, STD
    )


SOURCE = Source(
    "cifar-10",
    load,
    (
        RemoteFile(
            "cifar-10/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        ),
    ),
    find,
    len(BATCHES),
)
