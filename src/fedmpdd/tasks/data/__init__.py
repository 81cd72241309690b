"""Datasets, one file each, one registry; and how their examples are dealt out to clients."""

from pathlib import Path

from fedmpdd.errors import DataError
from fedmpdd.tasks.data import cifar10, fashion_mnist, mnist, mnist_5k, python_docs
from fedmpdd.tasks.data.base import Dataset, Examples, Source, data_folder
from fedmpdd.tasks.data.partition import Partition, PartitionKind, make_partition

DATASETS: dict[str, Source] = {
    module.SOURCE.name: module.SOURCE for module in (mnist, fashion_mnist, cifar10, mnist_5k, python_docs)
}


def sources_named(name: str) -> list[Source]:
    """Return the dataset of that name, or all of them for "all"."""
    if name == "all":
        return list(DATASETS.values())
    if name not in DATASETS:
        raise DataError(f"dataset {name!r} is unknown: expected one of {', '.join(DATASETS)}, or all")
    return [DATASETS[name]]


def load(name: str, folder: Path | None = None) -> Dataset:
    """Load a dataset by name from the data folder."""
    (source,) = sources_named(name)
    return source.load(data_folder(folder))


__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "Partition",
    "PartitionKind",
    "Source",
    "data_folder",
    "load",
    "make_partition",
    "sources_named",
]
