"""Examples in every form that people have them."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedmpdd.errors import DataError
from fedmpdd.tasks.data import load
from fedmpdd.tasks.stores import DatasetStore, JoinedStore, PixelStore, TensorStore, as_store

INPUTS = np.arange(24, dtype=np.float64).reshape(8, 3)
TARGETS = np.arange(8)


class Items:
    """A dataset of somebody's own."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


class Table(Items):
    """What of a Hugging Face dataset matters here."""

    column_names = ("text", "label")

    def with_format(self, kind: str) -> "Table":
        assert kind == "torch"
        table = Table([{name: torch.as_tensor(value) for name, value in item.items()} for item in self.items])
        table.column_names = list(self.column_names)  # type: ignore[assignment]
        return table


FORMS = {
    "arrays": (INPUTS, TARGETS),
    "tensors": (torch.from_numpy(INPUTS), torch.from_numpy(TARGETS)),
    "tensor dataset": TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(TARGETS)),
    "dataset": Items([(row, int(target)) for row, target in zip(INPUTS, TARGETS, strict=True)]),
    "dataset of lists": Items([[torch.from_numpy(row), target] for row, target in zip(INPUTS, TARGETS, strict=True)]),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=list(FORMS))
def test_all_forms_give_the_same_batch(data: Any) -> None:
    store = as_store(data)
    inputs, targets = store.gather(torch.tensor([[1, 0], [7, 2]]))
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, torch.from_numpy(INPUTS[[[1, 0], [7, 2]]]).float())
    assert targets.tolist() == [[1, 0], [7, 2]]
    classes = store.classes()
    assert classes is not None
    assert classes.tolist() == TARGETS.tolist()


def test_a_table_is_known_by_its_columns() -> None:
    table = Table([{"text": [i, i + 1], "label": i % 2} for i in range(4)])
    with_names = as_store(table, ("text", "label")).gather(torch.tensor([3]))
    assert [part.tolist() for part in with_names] == [[[3, 4]], [1]]
    with pytest.raises(DataError, match="columns names 'words', and the examples have text, label"):
        as_store(table, ("words", "label")).gather(torch.tensor([0]))


def test_a_table_of_two_columns_needs_no_names() -> None:
    formatted = Table([{"text": [i, i + 1], "label": i % 2} for i in range(4)]).with_format("torch")
    assert [part.tolist() for part in as_store(formatted).gather(torch.tensor([3]))] == [[[3, 4]], [1]]


def test_only_bytes_are_scaled_and_targets_never() -> None:
    pixels = torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)
    inputs, targets = as_store((pixels, torch.full((4,), 9, dtype=torch.uint8))).gather(torch.arange(4))
    assert (inputs == 1).all()
    assert targets.tolist() == [9] * 4
    floats, _ = as_store((torch.full((4, 2), 200.0), TARGETS[:4])).gather(torch.arange(4))
    assert (floats == 200).all()
    table = as_store({"image": pixels, "label": torch.full((4,), 9, dtype=torch.uint8)}).gather(torch.arange(4))
    assert (table["image"] == 1).all()
    assert table["label"].tolist() == [9] * 4


def test_bundled_images_are_what_configs_scale() -> None:
    dataset = load("mnist-5k")
    store = PixelStore(dataset.train, dataset.mean, dataset.std, 255)
    inputs, labels = store.gather(torch.tensor([5, 6]))
    expected = (dataset.train.images[5:7].astype(np.float32) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert labels.tolist() == dataset.train.labels[5:7].tolist()


class Crops(Items):
    """Examples that draw from all generators there are."""

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        noise = torch.rand(1).item() + random.random() + np.random.random()
        return torch.tensor([number + noise]), 0


def test_what_a_dataset_draws_follows_from_the_seed_and_disturbs_nobody() -> None:
    store = DatasetStore(Crops([None] * 8))
    before = torch.random.get_rng_state(), random.getstate()
    first, again, other = (store.gather(torch.tensor([3]), seed)[0] for seed in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_stores_of_clients_are_one_after_another() -> None:
    stores = [TensorStore((torch.full((size, 1), float(size)), torch.zeros(size))) for size in (2, 3, 1)]
    joined = JoinedStore(stores)
    assert len(joined) == 6
    values, _ = joined.gather(torch.tensor([[5, 0], [2, 4], [1, 3]]))
    assert values.flatten().tolist() == [1, 2, 3, 3, 2, 3]


BAD = {
    "no length": (iter([]), "expected a dataset with a length"),
    "a text": ("examples", "expected a dataset with a length"),
    "empty": ([], "without examples"),
    "rows that differ": ((INPUTS, TARGETS[:3]), r"arrays of \[3, 8\] rows"),
}


@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=list(BAD))
def test_what_is_no_data_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_store(data)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("some words", 0)], "holds 'some words'"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "cannot be put side by side"),
        ([(object(), 0)], "cannot be put side by side"),
    ],
)
def test_examples_that_are_no_numbers_are_refused(items: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        as_store(Items(items)).gather(torch.arange(len(items)))
    assert "\n" not in str(caught.value)


def test_a_dataset_that_fails_says_at_which_example() -> None:
    store = as_store(Items([(1.0, 0)]))
    with pytest.raises(DataError, match=r"example 4 of the dataset cannot be read: IndexError: list index"):
        store.gather(torch.tensor([4]))
