"""Datasets, one file each, one registry; and how their examples are dealt out to clients."""

from pathlib import Path
from typing import Any

from fedmpdd.errors import DataError
from fedmpdd.imports import quote
from fedmpdd.tasks.data import (
    banking77,
    cifar10,
    fashion_mnist,
    mnist,
    mnist_5k,
    python_docs,
    shakespeare,
    sst2,
)
from fedmpdd.tasks.data.base import Dataset, Examples, Source, data_folder
from fedmpdd.tasks.data.partition import Partition, PartitionKind, make_partition
from fedmpdd.tasks.data.texts import TextDataset, Texts, read_csv

DATASETS: dict[str, Source[Dataset]] = {
    module.SOURCE.name: module.SOURCE for module in (mnist, fashion_mnist, cifar10, mnist_5k, python_docs)
}
# Words, which a tokenizer turns into numbers: no config can name one, because it names no tokenizer.
TEXT_DATASETS: dict[str, Source[TextDataset]] = {
    module.SOURCE.name: module.SOURCE for module in (sst2, banking77, shakespeare)
}


def sources_named(name: str) -> list[Source[Any]]:
    """Return the dataset of that name, of images or of texts, or all of them for "all"."""
    sources: dict[str, Source[Any]] = {**DATASETS, **TEXT_DATASETS}
    if name == "all":
        return list(sources.values())
    if name not in sources:
        raise DataError(f"dataset {name!r} is unknown: expected one of {', '.join(sources)}, or all")
    return [sources[name]]


def load(name: str, folder: Path | None = None) -> Dataset:
    """Load a dataset by name from the data folder."""
    if name in TEXT_DATASETS:
        raise DataError(f"dataset {name!r} holds texts; load it with fedmpdd.text.load({name!r})")
    if name not in DATASETS:
        raise DataError(f"dataset {name!r} is unknown: expected one of {', '.join(DATASETS)}")
    return DATASETS[name].load(data_folder(folder))


def load_texts(name: str, folder: str | Path | None = None) -> TextDataset:
    """Return a dataset of texts.

    Args:
        name: "sst2", "banking77" or "shakespeare".
        folder: in which it lies, in a folder of its name; that of the variable FEDMPDD_DATA if left out.

    Returns:
        Texts to train on, to choose settings by (`dev`), and to test on.

    Raises:
        DataError: a file is missing or damaged, or there is no such dataset.

    Example:
        >>> len(load_texts("sst2").train)
        6920

    """
    if name not in TEXT_DATASETS:
        raise DataError(f"dataset {quote(name)} of texts is unknown: expected one of {', '.join(TEXT_DATASETS)}")
    return TEXT_DATASETS[name].load(data_folder(None if folder is None else Path(folder)))


__all__ = [
    "DATASETS",
    "TEXT_DATASETS",
    "Dataset",
    "Examples",
    "Partition",
    "PartitionKind",
    "Source",
    "TextDataset",
    "Texts",
    "data_folder",
    "load",
    "load_texts",
    "make_partition",
    "read_csv",
    "sources_named",
]
