"""What a dataset is, where its files are looked for, and how they are checked."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import DataError

DATA_VARIABLE = "FEDMPDD_DATA"
Loaded = TypeVar("Loaded", covariant=True)


class Examples(NamedTuple):
    """Images [n, channels, height, width] as bytes, and their labels [n]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Dataset(NamedTuple):
    """Training and test examples, and the pixel statistics of the training part, per channel, on a scale of 0 to 1."""

    name: str
    train: Examples
    test: Examples
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dataset: its path below the data folder, the SHA-256 of its bytes, and where it is published."""

    path: str
    sha256: str
    url: str  # empty where no mirror is known: then the file has to be brought by hand
    kept_packed: bool = False  # an archive that is read as it is


@dataclass(frozen=True)
class Source(Generic[Loaded]):
    """A dataset as the registry knows it: how to load it, and the files that `fedmpdd data fetch` brings."""

    name: str
    load: Callable[[Path], Loaded]
    files: tuple[RemoteFile, ...] = ()
    find: Callable[[Path], list[Path]] | None = None  # the files that `load` would read, in whatever form they are
    parts: int = 0  # how many of them there must be

    @property
    def has_mirror(self) -> bool:
        """Whether every file can be fetched."""
        return all(file.url for file in self.files)


def data_folder(given: Path | None = None) -> Path:
    """Return the folder with the datasets: as given, else FEDMPDD_DATA, else the user's cache folder."""
    if given is not None:
        return given
    if os.environ.get(DATA_VARIABLE):
        return Path(os.environ[DATA_VARIABLE])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedmpdd" / "data"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing(name: str, path: Path) -> DataError:
    """Return the error for a dataset that is not there."""
    return DataError(
        f"dataset {name} was not found: looked for {path}; get it with `fedmpdd data fetch {name}`, "
        f"or name a folder that has it with --data-dir or {DATA_VARIABLE}"
    )


def damaged(path: Path, why: str) -> DataError:
    """Return the error for a file that is not what it should be."""
    return DataError(f"{path} is damaged: {why}; delete it and get it again with `fedmpdd data fetch`")
