import tracemalloc
from typing import Any

import numpy as np
import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.tasks.data import Partition, PartitionKind, make_partition

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))


def all_examples(partition: Partition) -> list[np.ndarray]:
    return [partition.examples_of(client) for client in range(partition.clients)]


@pytest.mark.parametrize("kind", list(PartitionKind))
@pytest.mark.parametrize("clients", [1, 7, 100])
def test_no_example_is_held_twice_and_sizes_are_even(kind: PartitionKind, clients: int) -> None:
    parts = all_examples(make_partition(LABELS, clients, kind=kind))
    held = np.concatenate(parts)
    assert len(set(held.tolist())) == held.size
    assert min(map(len, parts)) > 0
    if kind is PartitionKind.IID:
        assert held.size == LABELS.size
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("kind", list(PartitionKind))
def test_the_seed_decides(kind: PartitionKind) -> None:
    first, again, other = (make_partition(LABELS, 20, kind=kind, seed=seed) for seed in (1, 1, 2))
    assert first.examples_of(3).tolist() == again.examples_of(3).tolist()
    assert first.examples_of(3).tolist() != other.examples_of(3).tolist()


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_clients_hold_exactly_so_many_classes(classes: int) -> None:
    parts = all_examples(make_partition(LABELS, 100, kind=PartitionKind.CLASSES, classes_per_client=classes))
    assert {np.unique(LABELS[part]).size for part in parts} == {classes}
    assert np.concatenate(parts).size == LABELS.size
    # With two classes the pairs differ: it is not the same ten clients over and over.
    if classes == 2:
        assert len({tuple(np.unique(LABELS[part])) for part in parts}) > 15


def test_dirichlet_mixtures_are_uneven_for_small_alpha_and_even_for_large() -> None:
    def spread(alpha: float) -> float:
        parts = all_examples(make_partition(LABELS, 50, kind=PartitionKind.DIRICHLET, alpha=alpha))
        return float(np.mean([np.bincount(LABELS[part], minlength=10).max() / part.size for part in parts]))

    assert spread(0.05) > 0.7
    assert spread(1000.0) < 0.25
    assert all(part.size == 60 for part in all_examples(make_partition(LABELS, 50, kind=PartitionKind.DIRICHLET)))


@pytest.mark.parametrize("kind", list(PartitionKind))
def test_a_million_clients_cost_nothing(kind: PartitionKind) -> None:
    tracemalloc.start()
    partition = make_partition(LABELS, 1_000_000, kind=kind, virtual_size=16)
    examples = partition.examples_of(999_999)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert examples.size == 16
    assert set(examples.tolist()) <= set(range(LABELS.size))
    assert peak < 2_000_000
    assert partition.examples_of(5).tolist() != partition.examples_of(6).tolist()


def test_what_cannot_be_dealt_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        make_partition(LABELS, 0)
    with pytest.raises(ConfigError, match="has 10 classes; use 1 to 10"):
        make_partition(LABELS, 5, kind=PartitionKind.CLASSES, classes_per_client=11)
    with pytest.raises(ConfigError, match="above 0"):
        make_partition(LABELS, 5, kind=PartitionKind.DIRICHLET, alpha=0)


def test_a_kind_may_be_a_word_and_another_word_is_refused() -> None:
    labels = np.arange(40) % 4
    by_word: Any = "iid"
    expected = make_partition(labels, 4, kind=PartitionKind.IID).examples_of(1)
    assert np.array_equal(make_partition(labels, 4, kind=by_word).examples_of(1), expected)
    unknown: Any = "fair"
    with pytest.raises(ConfigError, match="expected one of iid, classes, dirichlet"):
        make_partition(labels, 4, kind=unknown)
