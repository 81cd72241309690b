"""The task that a config names: its dataset, model, loss and metrics, of this package or by import path."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedmpdd.errors import ConfigError, DataError
from fedmpdd.imports import function_named, named_object, words_of
from fedmpdd.simulation.config import RunConfig, metric_name, metric_parts
from fedmpdd.tasks import models
from fedmpdd.tasks.data import DATASETS, Dataset, Partition, PartitionKind, load, make_partition
from fedmpdd.tasks.losses import CrossEntropy, Loss, as_loss
from fedmpdd.tasks.metrics import Accuracy
from fedmpdd.tasks.stores import PixelStore, Store, as_store
from fedmpdd.tasks.task import Clients, NamedTask, Task, clients_of


def load_task(config: RunConfig, data_dir: Path | None = None) -> Task:
    """Load the data of a config, deal them out, and return its task.

    Args:
        config: of the run.
        data_dir: where the datasets of this package are.

    """
    if config.dataset in DATASETS:
        return task_of(config, load(config.dataset, data_dir))
    value = named_object(config.dataset, "dataset")
    try:
        value = value() if callable(value) else value
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # somebody else's code
        raise ConfigError(f"dataset = {config.dataset!r} cannot be loaded: {words_of(error)}") from None
    if isinstance(value, Dataset):
        return task_of(config, value)
    if isinstance(value, Task):
        return value
    train, test = _parts_of(value, config.dataset)
    clients = _dealt(config, train)
    shape = _image_shape(clients.store) if config.model in models.MODELS else None
    return _named_task(config, clients, test, *(shape or (None, 1)))


def task_of(config: RunConfig, dataset: Dataset, partition: Partition | None = None) -> Task:
    """Return the task of a config on images or texts that are loaded, dealt out as it says or as somebody else does."""
    partition = partition or partition_of(config, dataset.train.labels)
    train, test = (_pixels(config, dataset, examples) for examples in (dataset.train, dataset.test))
    channels, height, width = dataset.train.images.shape[1:]
    return _named_task(config, Clients(train, partition), test, (channels, height, width), dataset.classes)


def partition_of(config: RunConfig, labels: NDArray[np.int64]) -> Partition:
    """Deal out examples with these labels as a config says."""
    p = config.partition
    if labels.ndim > 1:  # texts: a label per position, none per example
        _check_classes(config, None)
        labels = np.zeros(len(labels), np.int64)
    return make_partition(
        labels,
        config.clients,
        kind=p.kind,
        seed=p.seed,
        classes_per_client=p.classes_per_client,
        alpha=p.alpha,
        virtual_size=max(p.virtual_size, config.batch),
    )


def _pixels(config: RunConfig, dataset: Dataset, examples: Any) -> PixelStore:
    is_text = examples.labels.ndim > 1  # bytes of texts are no brightness that could be scaled
    unit = 1 if is_text or config.pixels == "raw" else 255
    if config.pixels == "normalised" and not is_text:
        return PixelStore(examples, dataset.mean, dataset.std, unit)
    return PixelStore(examples, (0.0,), (1.0,), unit)


def _named_task(config: RunConfig, clients: Any, test: Any, shape: tuple[int, int, int] | None, classes: int) -> Task:
    loss = CrossEntropy() if config.loss == "cross-entropy" else as_loss(function_named(config.loss, "loss"))
    has_classes = isinstance(loss, CrossEntropy)

    def make(init: str, seed: int) -> Any:
        return models.build(config.model, shape, classes, init=init, seed=seed, gives_classes=has_classes)

    return NamedTask(
        make,
        clients,
        test,
        loss=loss,
        metrics=_metrics(config, loss),
        batch_norm=config.batch_norm,
        shape=shape or (1, 1, 1),
        classes=classes,
    )


def _metrics(config: RunConfig, loss: Loss) -> dict[str, Any] | None:
    if config.metrics is None:
        return None
    known = {"accuracy": Accuracy()}
    return {
        metric_name(text): known.get(text) or function_named(metric_parts(text)[1], "metrics")
        for text in config.metrics
    }


def _dealt(config: RunConfig, train: Any) -> Clients:
    """A list has a dataset for each client; anything else is dealt out."""
    if isinstance(train, Clients | list):
        return clients_of(train)
    store = as_store(train)
    classes = store.classes() if config.partition.kind != PartitionKind.IID else None
    _check_classes(config, classes)
    return Clients(store, partition_of(config, np.zeros(len(store), np.int64) if classes is None else classes))


def _check_classes(config: RunConfig, classes: Any) -> None:
    """Raise ConfigError where examples are to be dealt out by classes that they do not have."""
    kind = config.partition.kind
    if classes is None and kind != PartitionKind.IID:
        raise ConfigError(f'partition.kind = "{kind}" deals out classes, and {config.dataset} has none; use "iid"')


def _image_shape(store: Store) -> tuple[tuple[int, int, int], int] | None:
    """The shape of images and how many classes they have, for the models of this package; None of other examples."""
    batch, classes = store.gather(torch.zeros(1, dtype=torch.int64)), store.classes()
    if not isinstance(batch, tuple) or batch[0].ndim != 4 or classes is None:
        return None
    channels, height, width = batch[0].shape[1:]
    return (channels, height, width), int(classes.max()) + 1


def _parts_of(value: Any, name: str) -> tuple[Any, Any]:
    """Training and test examples of what a loader returned."""
    if isinstance(value, dict) and {"train", "test"} <= set(value):  # Hugging Face's DatasetDict is one
        return value["train"], value["test"]
    if isinstance(value, tuple) and len(value) == 2:
        return value
    raise DataError(
        f"dataset = {name!r} gives a {type(value).__name__}; expected (train, test), each a dataset, a tuple of arrays "
        "or a dict of them, and train also a list with one of these per client"
    )
