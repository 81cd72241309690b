"""Small stand-ins for the files of real datasets, in their exact formats."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpdd.tasks.data import cifar10, idx


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def write_mnist(folder: Path, name: str = "mnist") -> None:
    """All of it: 60,000 and 10,000 blank images, labels in turn."""
    for part, size in zip(idx.PARTS, idx.SIZES, strict=True):
        if "images" in part:
            write_idx(folder / name / part, np.zeros((size, 28, 28), dtype=np.uint8))
        else:
            write_idx(folder / name / part, (np.arange(size) % 10).astype(np.uint8))


def write_cifar(folder: Path, form: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(cifar10.BATCHES):
        data = np.full((10_000, 3_072), number, dtype=np.uint8)
        labels = (np.arange(10_000) % 10).tolist()
        if form == "npz":
            np.savez_compressed(folder / f"{name}.npz", data=data, labels=labels)
        else:
            (folder / name).write_bytes(pickle.dumps({b"data": data, b"labels": labels}))
