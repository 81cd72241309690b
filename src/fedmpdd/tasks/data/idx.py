"""The idx files of MNIST and Fashion-MNIST."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpdd.tasks.data.base import Dataset, Examples, RemoteFile, damaged, missing

PARTS = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
SIZES = (60_000, 60_000, 10_000, 10_000)


def read(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read one file of unsigned bytes of exactly that shape."""
    try:
        with gzip.open(path, "rb") as file:
            header = file.read(4 + 4 * len(shape))
            body = file.read(int(np.prod(shape)) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, str(error)) from None
    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    if header != expected:
        raise damaged(path, f"its header is {header.hex()}, expected {expected.hex()}")
    if len(body) != np.prod(shape):
        raise damaged(path, f"it holds another number of bytes than its header says ({np.prod(shape):,})")
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)


def load(name: str, folder: Path, mean: float, std: float) -> Dataset:
    """Load a dataset of 28 × 28 grey images in ten classes."""
    for part in PARTS:
        if not (folder / name / part).is_file():
            raise missing(name, folder / name / part)
    arrays = []
    for part, size in zip(PARTS, SIZES, strict=True):
        arrays.append(read(folder / name / part, (size, 28, 28) if "images" in part else (size,)))
        if "labels" in part and arrays[-1].max() > 9:
            raise damaged(folder / name / part, f"it has the label {arrays[-1].max()}, expected 0 to 9")
    train, test = (
        Examples(images[:, np.newaxis], labels.astype(np.int64))
        for images, labels in zip(arrays[0::2], arrays[1::2], strict=True)
    )
    return Dataset(name, train, test, 10, (mean,), (std,))


def files(name: str, base: str, digests: tuple[str, ...]) -> tuple[RemoteFile, ...]:
    """Name the four files and where they are published."""
    return tuple(
        RemoteFile(f"{name}/{part}", digest, f"{base}/{part}") for part, digest in zip(PARTS, digests, strict=True)
    )


def find(name: str, folder: Path) -> list[Path]:
    """Return the files of a dataset that are there."""
    return [path for part in PARTS if (path := folder / name / part).is_file()]
