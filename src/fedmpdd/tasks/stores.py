"""Examples by number, in whatever form they come: arrays, tensors, datasets of PyTorch or of Hugging Face.

A store answers for some examples at a time, because a round needs few of them. Only bytes are scaled, to numbers from 0
to 1; floats stay as they are.
"""

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import TensorDataset, default_collate

from fedmpdd.errors import DataError
from fedmpdd.imports import quote, words_and_line_of, words_of
from fedmpdd.tasks.data.base import Examples

Batch = Any  # tensors in tuples or dicts, each with the same leading dimensions
Columns = tuple[str | Sequence[str], str]  # names of the inputs and of the target

_TARGET_NAMES = ("label", "labels", "target", "targets", "y")
_WHOLE_NUMBERS = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)
_process_randomness = threading.Lock()  # datasets draw from generators that all threads share


class Store(ABC):
    """Examples by number.

    A batch is a tuple whose last entry is the target, or a dict.
    """

    draws = False  # whether fetching may draw random numbers, as augmentation does

    @abstractmethod
    def __len__(self) -> int:
        """Return how many examples there are."""

    @abstractmethod
    def gather(self, chosen: Tensor, seed: Sequence[int] = (0,)) -> Batch:
        """Return examples by their numbers, in tensors [*chosen.shape, …].

        Args:
            chosen: the numbers, in a tensor of any shape.
            seed: of what a dataset draws while it makes an example, such as a random crop.

        """

    @abstractmethod
    def to(self, device: torch.device | str) -> "Store":
        """Return the store with its examples on a device."""

    def classes(self) -> NDArray[np.int64] | None:
        """Return one class per example, None where an example has none."""
        return None

    def layout(self) -> list[tuple[int, ...]] | None:
        """Return the shape of each array of an example, None where only a look at examples tells."""
        return None

    def not_finite(self) -> int | None:
        """Return the number of an example that holds NaN or infinity, None if none is known to."""
        return None


class PixelStore(Store):
    """Images as bytes, scaled when they are fetched: a quarter of the memory.

    Args:
        examples: images [n, channels, height, width] and their labels.
        mean: of each channel, on the scale of `unit`.
        std: likewise.
        unit: what a byte is divided by.

    """

    def __init__(self, examples: Examples, mean: Sequence[float], std: Sequence[float], unit: int) -> None:
        means, deviations = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        self._images = torch.from_numpy(np.ascontiguousarray(examples.images))
        self._labels = torch.from_numpy(examples.labels)
        self._scale, self._offset = 1 / (unit * deviations), means / deviations

    def __len__(self) -> int:
        return len(self._labels)

    def gather(self, chosen: Tensor, seed: Sequence[int] = (0,)) -> Batch:
        """See Store."""
        return self._images[chosen].float() * self._scale - self._offset, self._labels[chosen]

    def to(self, device: torch.device | str) -> "PixelStore":
        """See Store."""
        moved = object.__new__(PixelStore)
        for name, tensor in vars(self).items():
            setattr(moved, name, tensor.to(device))
        return moved

    def classes(self) -> NDArray[np.int64] | None:
        """See Store; a text has a label per position, and no class."""
        return self._labels.cpu().numpy() if self._labels.ndim == 1 else None


class TensorStore(Store):
    """Examples that are in memory already.

    Args:
        batch: tensors with one row per example, in a tuple whose last entry is the target, or in a dict.

    """

    def __init__(self, batch: Batch) -> None:
        lengths = {len(leaf) for leaf in tree_flatten(batch)[0]}
        if len(lengths) != 1:
            raise DataError(f"arrays of {sorted(lengths)} rows came; expected one row per example in each of them")
        if not any(lengths):
            raise DataError("arrays without rows came; expected one example at least")
        self._batch = batch
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def gather(self, chosen: Tensor, seed: Sequence[int] = (0,)) -> Batch:
        """See Store."""
        return _scaled(tree_map(lambda leaf: leaf[chosen.to(leaf.device)], self._batch))

    def to(self, device: torch.device | str) -> "TensorStore":
        """See Store."""
        return TensorStore(tree_map(lambda leaf: leaf.to(device), self._batch))

    def classes(self) -> NDArray[np.int64] | None:
        """See Store."""
        return _classes(self._batch[-1]) if isinstance(self._batch, tuple) else None

    def layout(self) -> list[tuple[int, ...]] | None:
        """See Store."""
        return [tuple(leaf.shape[1:]) for leaf in tree_flatten(self._batch)[0]]

    def not_finite(self) -> int | None:
        """See Store."""
        for leaf in tree_flatten(self._batch)[0]:
            rows = ~torch.isfinite(leaf).flatten(1).all(dim=1) if leaf.ndim > 1 else ~torch.isfinite(leaf)
            if bool(rows.any()):
                return int(rows.nonzero()[0])
        return None


class DatasetStore(Store):
    """A dataset that makes an example when it is asked for one: of PyTorch, of Hugging Face, or your own.

    What it draws meanwhile from the generators of PyTorch, NumPy and Python follows from the seed of the call.

    Args:
        dataset: with `len(dataset)` and `dataset[i]`.
        columns: which fields of a dict are inputs and target; None to leave dicts as they are.

    """

    draws = True

    def __init__(self, dataset: Any, columns: Columns | None = None) -> None:
        self._dataset = dataset.with_format("torch") if hasattr(dataset, "with_format") else dataset
        self._columns = columns
        self._device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self._dataset)

    def gather(self, chosen: Tensor, seed: Sequence[int] = (0,)) -> Batch:
        """See Store."""
        numbers = chosen.flatten().tolist()
        with _process_randomness:
            before = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
            start = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
            torch.default_generator.manual_seed(start)
            np.random.seed(start)
            random.seed(start)
            try:
                batch = self._collate([self._example(number) for number in numbers])
            finally:
                torch.random.set_rng_state(before[0])
                np.random.set_state(before[1])
                random.setstate(before[2])
        return tree_map(lambda leaf: leaf.to(self._device).view(*chosen.shape, *leaf.shape[1:]), batch)

    def _example(self, number: int) -> Any:
        try:
            example = self._dataset[number]
        except Exception as error:  # somebody else's dataset
            text = words_and_line_of(error)
            raise DataError(f"example {number} of the dataset cannot be read: {text}") from error
        if self._columns is not None and isinstance(example, Mapping):
            return _by_columns(example, self._columns)
        return tuple(example) if isinstance(example, list) else example

    def _collate(self, examples: list[Any]) -> Batch:
        try:
            batch = default_collate(examples)
        except (TypeError, RuntimeError) as error:
            raise DataError(
                f"examples cannot be put side by side: {words_of(error)}; let the dataset give tensors of one shape"
            ) from None
        batch = dict(batch) if isinstance(batch, Mapping) else batch
        batch = tuple(batch) if isinstance(batch, list) else batch
        for leaf in tree_flatten(batch)[0]:
            if not isinstance(leaf, Tensor):
                raise DataError(
                    f"an example holds {quote(leaf)}; expected numbers: name columns=(inputs, target), or let the "
                    "dataset make tensors of it"
                )
        return _scaled(tree_map(_plain, batch))

    def to(self, device: torch.device | str) -> "DatasetStore":
        """See Store; examples are moved when they are made."""
        moved = DatasetStore(self._dataset, self._columns)
        moved._device = torch.device(device)
        return moved

    def classes(self) -> NDArray[np.int64] | None:
        """See Store."""
        for name in ("targets", "labels"):  # of torchvision's datasets, which saves a look at every image
            if hasattr(self._dataset, name):
                return _classes(torch.as_tensor(getattr(self._dataset, name)))
        if self._columns is not None and hasattr(self._dataset, "column_names"):
            return _classes(torch.as_tensor(self._dataset[self._columns[1]]))
        batch = self.gather(torch.arange(len(self)))
        return _classes(batch[-1]) if isinstance(batch, tuple) else None


class JoinedStore(Store):
    """The examples of several stores, one after another: the datasets of clients."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = list(stores)
        layouts = [store.layout() for store in stores]
        for client, layout in enumerate(layouts):
            if layout is not None and layouts[0] is not None and layout != layouts[0]:
                raise DataError(
                    f"client {client} has examples of shapes {_shapes(layout)}, and client 0 of {_shapes(layouts[0])}; "
                    "one model takes examples of one shape"
                )
        self._ends = np.cumsum([len(store) for store in stores])
        self.draws = any(store.draws for store in stores)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def gather(self, chosen: Tensor, seed: Sequence[int] = (0,)) -> Batch:
        """See Store."""
        numbers = chosen.flatten().cpu().numpy()
        which = np.searchsorted(self._ends, numbers, side="right")
        parts, places = [], []
        for number in np.unique(which):
            here = np.flatnonzero(which == number)
            begin = 0 if number == 0 else self._ends[number - 1]
            parts.append(self._stores[number].gather(torch.from_numpy(numbers[here] - begin), seed))
            places.append(here)
        order = torch.from_numpy(np.argsort(np.concatenate(places), kind="stable"))
        return tree_map(
            lambda *leaves: torch.cat(leaves)[order.to(leaves[0].device)].view(*chosen.shape, *leaves[0].shape[1:]),
            *parts,
        )

    def to(self, device: torch.device | str) -> "JoinedStore":
        """See Store."""
        return JoinedStore([store.to(device) for store in self._stores])

    def not_finite(self) -> int | None:
        """See Store."""
        for store, end in zip(self._stores, self._ends, strict=True):
            number = store.not_finite()
            if number is not None:
                return number + int(end) - len(store)
        return None

    def classes(self) -> NDArray[np.int64] | None:
        """See Store."""
        parts = [store.classes() for store in self._stores]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None


def as_store(data: Any, columns: Columns | None = None) -> Store:
    """Return somebody's examples as a store.

    Args:
        data: a dataset of PyTorch or of Hugging Face, a tuple of arrays or tensors whose last one is the target, a dict
            of arrays or tensors, or a store.
        columns: which columns are inputs and target, where examples are dicts; found by usual names if left out.

    Returns:
        The store.

    Example:
        >>> len(as_store((np.zeros((8, 2)), np.zeros(8))))
        8

    """
    if isinstance(data, Store):
        return data
    _check_columns(columns)
    if type(data).__name__ == "DataFrame":
        raise DataError(
            'a DataFrame came; expected arrays: (frame[["height", "weight"]].to_numpy(), frame[["age"]].to_numpy())'
        )
    if isinstance(data, TensorDataset):
        return TensorStore(tuple(_plain(part) for part in data.tensors))
    if isinstance(data, tuple):
        return _store_of_tuple(data, columns)
    if isinstance(data, dict) and data and all(_is_array(part) for part in data.values()):
        leaves = {name: _tensor(part) for name, part in data.items()}
        return TensorStore(leaves if columns is None else _by_columns(leaves, columns))
    if (
        isinstance(data, dict)
        or not (hasattr(data, "__len__") and hasattr(data, "__getitem__"))
        or isinstance(data, str | bytes)
    ):
        raise DataError(
            f"data of type {type(data).__name__} came; expected a dataset with a length, a tuple (inputs, targets) of "
            "arrays or tensors, or a dict of them"
        )
    if len(data) == 0:
        raise DataError("a dataset without examples came; expected one at least")
    names = getattr(data, "column_names", None)
    if columns is None and isinstance(names, list):
        columns = _usual_columns(names)
    return DatasetStore(data, columns)


def _store_of_tuple(data: tuple[Any, ...], columns: Columns | None) -> Store:
    if columns is not None:
        raise DataError(f"columns = {columns!r} came with a tuple of arrays, which has no names; leave columns out")
    kinds = ", ".join(f"{type(part).__name__}" for part in data)
    if any(isinstance(part, Store) for part in data):
        raise DataError("examples came that are dealt out to clients already; pass the data that partition was given")
    if not data or not all(_is_array(part) for part in data):
        raise DataError(
            f"a tuple of ({kinds}) came; expected (inputs, targets) of arrays or tensors: make them with numpy.array "
            "or torch.tensor"
        )
    return TensorStore(tuple(_tensor(part) for part in data))


def _check_columns(columns: Any) -> None:
    if columns is None:
        return
    inputs, target = columns if isinstance(columns, tuple | list) and len(columns) == 2 else (None, None)
    names = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in [*names, target]):
        raise DataError(
            f'columns = {columns!r}: expected (inputs, target), like ("image", "label") or (["text", "mask"], "label")'
        )


def _usual_columns(names: list[str]) -> Columns | None:
    """The columns of a table of two whose target has a usual name."""
    targets = [name for name in names if name in _TARGET_NAMES]
    if len(names) != 2 or len(targets) != 1:
        return None
    return next(name for name in names if name != targets[0]), targets[0]


def _by_columns(example: Mapping[str, Any], columns: Columns) -> tuple[Any, ...]:
    inputs, target = columns
    names = [*([inputs] if isinstance(inputs, str) else inputs), target]
    for name in names:
        if name not in example:
            raise DataError(f"columns names {name!r}, and the examples have {', '.join(example)}")
    return tuple(example[name] for name in names)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Tensor) and value.ndim > 0


def _tensor(part: Any) -> Tensor:
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "biuf":
            raise DataError(f"an array of {part.dtype} came; expected numbers: turn words into them before")
        part = torch.from_numpy(np.ascontiguousarray(part if part.flags.writeable else part.copy()))
    if part.layout != torch.strided:
        raise DataError(f"a tensor of layout {part.layout} came, of which no examples can be taken; call to_dense()")
    return _plain(part)


def _plain(leaf: Tensor) -> Tensor:
    """A tensor in the types that networks compute with; bytes stay bytes for a while."""
    if leaf.dtype in (torch.float64, torch.float16, torch.bfloat16):
        return leaf.float()
    return leaf.long() if leaf.dtype in _WHOLE_NUMBERS else leaf


def _scaled(batch: Batch) -> Batch:
    """A batch whose bytes are numbers from 0 to 1, but for those of targets, which are classes."""
    if isinstance(batch, dict):
        return {name: _unit(leaf) if name not in _TARGET_NAMES else _class(leaf) for name, leaf in batch.items()}
    if isinstance(batch, tuple):
        return (*(tree_map(_unit, part) for part in batch[:-1]), tree_map(_class, batch[-1]))
    return _unit(batch)


def _unit(leaf: Tensor) -> Tensor:
    return leaf.float() / 255 if leaf.dtype == torch.uint8 else leaf


def _class(leaf: Tensor) -> Tensor:
    return leaf.long() if leaf.dtype == torch.uint8 else leaf


def _shapes(layout: list[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in layout)


def _classes(target: Tensor) -> NDArray[np.int64] | None:
    if target.ndim != 1 or target.is_floating_point():
        return None
    return cast(NDArray[np.int64], target.cpu().numpy().astype(np.int64))
