"""CIFAR-10: 60,000 small colour pictures, as .npz batches or as the original python batches."""

import ast
import math
import pickle
import re
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.tasks.data.base import Dataset, Examples, RemoteFile, Source, damaged, missing
from fedmpdd.tasks.data.pickles import PickledArray, read_pickle

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FOLDERS = ("cifar-10", "cifar-10/cifar-10-batches-py", "cifar-10-batches-py")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
ROWS, PIXELS = 10_000, 3_072
MOST_BYTES = 2**26  # of a batch, which has half as many


# Python's reader of pickles may raise almost anything.
_SIGNS_OF_DAMAGE = (
    *(
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        NotImplementedError,
        OSError,
        RecursionError,
    ),
    *(RuntimeError, SyntaxError, TypeError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


def _read_npz(path: Path) -> tuple[Any, Any]:
    """Data and labels; nothing is allocated by what a header claims before it was compared with what it must be."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) > 16:
            raise ValueError(f"it holds {len(archive.infolist())} files, expected two")
        return _read_npy(archive, "data.npy", (ROWS, PIXELS)), _read_npy(archive, "labels.npy", (ROWS,))


def _read_npy(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> Any:
    with archive.open(name) as stream:
        dtype = _read_npy_header(stream, name, shape)
        size = dtype.itemsize * math.prod(shape)
        body = stream.read(size + 1)
    if len(body) != size:
        raise ValueError(f"{name} holds another number of bytes than its header says")
    return np.frombuffer(bytearray(body), dtype=dtype).reshape(shape)


def _read_npy_header(stream: IO[bytes], name: str, shape: tuple[int, ...]) -> np.dtype[Any]:
    """The type of an array's integers, or ValueError unless it has this shape: the format of NumPy, version 1.0."""
    start = stream.read(10)
    length = int.from_bytes(start[8:], "little")
    if start[:8] != b"\x93NUMPY\x01\x00" or length > 1_000:
        raise ValueError(f"{name} does not begin as an array does")
    header = ast.literal_eval(stream.read(length).decode("latin1"))
    descr = str(header["descr"])
    if not re.fullmatch("[<>|][iu][1248]", descr) or header["fortran_order"] is not False or header["shape"] != shape:
        raise ValueError(
            f"it holds {descr[:20]} {str(header['shape'])[:40]} as {name}, expected integers {list(shape)}"
        )
    return np.dtype(descr)


def _read_pickle(path: Path) -> tuple[Any, Any]:
    batch = read_pickle(path.read_bytes())
    data, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(data, PickledArray):
        raise TypeError("its data are no array")
    if isinstance(labels, PickledArray):
        labels = labels.read((ROWS,), ("u1", "i1", "i4", "i8"))
    elif not (isinstance(labels, list) and len(labels) == ROWS and all(type(label) is int for label in labels)):
        raise TypeError(f"its labels are no list of {ROWS:,} integers")
    return data.read((ROWS, PIXELS), ("u1",)), labels


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, expected at most {MOST_BYTES:,}")
        data, labels = _read_npz(path) if path.suffix == ".npz" else _read_pickle(path)
        data, labels = np.asarray(data), np.asarray(labels).astype(np.int64)
    except _SIGNS_OF_DAMAGE as error:
        raise damaged(path, str(error) or type(error).__name__) from None
    if data.dtype != np.uint8:
        raise damaged(path, f"it holds {data.dtype} {list(data.shape)}, expected uint8")
    if labels.min() < 0 or labels.max() > 9:
        raise damaged(path, "it has a label outside 0 to 9")
    return data, labels


def find(folder: Path) -> list[Path]:
    """Return the batches that are there, all from one folder."""
    best: list[Path] = []
    for subfolder in FOLDERS:
        for suffix in (".npz", ""):
            batches = [path for name in BATCHES if (path := folder / subfolder / (name + suffix)).is_file()]
            best = max(best, batches, key=len)
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
