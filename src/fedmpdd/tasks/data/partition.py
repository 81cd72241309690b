"""Which examples each client holds.

A partition answers for one client at a time and stores nothing per client, so a million clients cost no more than
ten. Where there are fewer examples than clients, clients are *virtual*: each holds its own random few of all examples,
and two may share some.
"""

from abc import ABC, abstractmethod
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ConfigError

Indices = NDArray[np.int64]


class PartitionKind(StrEnum):
    """The ways to deal out examples."""

    IID = "iid"
    CLASSES = "classes"  # so many classes per client; two is the paper's non-i.i.d. split
    DIRICHLET = "dirichlet"


class Partition(ABC):
    """The examples of each of `clients` clients."""

    def __init__(self, labels: Indices, clients: int, seed: int) -> None:
        self.labels = labels
        self.clients = clients
        self.seed = seed

    @abstractmethod
    def examples_of(self, client: int) -> Indices:
        """Return the indices of the examples that a client holds."""

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *stream])


class _IID(Partition):
    def __init__(self, labels: Indices, clients: int, seed: int, virtual_size: int) -> None:
        super().__init__(labels, clients, seed)
        self._virtual_size = virtual_size if clients > labels.size else 0
        self._order = self._rng(0).permutation(labels.size)

    def examples_of(self, client: int) -> Indices:
        if self._virtual_size:
            return self._rng(1, client).choice(self.labels.size, self._virtual_size, replace=False)
        return _share(self._order, client, self.clients)


class _Classes(Partition):
    """Clients in blocks of as many as there are classes; in each block every class is given out `per_client` times."""

    def __init__(self, labels: Indices, clients: int, seed: int, per_client: int, virtual_size: int) -> None:
        super().__init__(labels, clients, seed)
        self._per_client = per_client
        self._virtual_size = virtual_size if clients > labels.size else 0
        self._classes = np.unique(labels)
        rng = self._rng(0)
        self._pools = [rng.permutation(np.flatnonzero(labels == label)) for label in self._classes]

    def examples_of(self, client: int) -> Indices:
        count = len(self._classes)
        block, position = divmod(client, count)
        offsets = self._rng(1, block).permutation(count)[: self._per_client]
        blocks = -(-self.clients // count)
        parts = []
        for rank, offset in enumerate(offsets):
            pool = self._pools[(position + offset) % count]
            if self._virtual_size:
                size = -(-self._virtual_size // self._per_client)
                parts.append(self._rng(2, client, rank).choice(pool, min(size, pool.size), replace=False))
            else:
                parts.append(_share(pool, block * self._per_client + rank, blocks * self._per_client))
        return np.concatenate(parts)


class _Dirichlet(Partition):
    """Each client has its own mixture of classes, drawn from Dirichlet(α), and an equal number of examples.

    Clients are served in turn from what is left of each class, so that no example is given out twice; a client whose
    classes have run out takes from the others in proportion.
    """

    def __init__(self, labels: Indices, clients: int, seed: int, alpha: float, virtual_size: int) -> None:
        super().__init__(labels, clients, seed)
        self._alpha = alpha
        rng = self._rng(0)
        self._pools = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
        self._virtual_size = virtual_size if clients > labels.size else 0
        self._size = labels.size // clients
        if not self._virtual_size:
            self._dealt = self._deal()

    def _mixture(self, client: int) -> NDArray[np.float64]:
        return self._rng(1, client).dirichlet(np.full(len(self._pools), self._alpha))

    def _deal(self) -> Indices:
        """Return the examples of all clients, one after the other: as many numbers as there are examples."""
        left = np.array([pool.size for pool in self._pools])
        dealt = np.empty(self.clients * self._size, dtype=np.int64)
        for client in range(self.clients):
            rng, mixture = self._rng(2, client), self._mixture(client)
            begin, end = client * self._size, (client + 1) * self._size
            while begin < end:
                weights = np.where(left > 0, mixture, 0.0)
                if weights.sum() <= 0:
                    weights = left.astype(np.float64)
                counts = np.minimum(rng.multinomial(end - begin, weights / weights.sum()), left)
                for pool, count, rest in zip(self._pools, counts, left, strict=True):
                    dealt[begin : begin + count] = pool[rest - count : rest]
                    begin += count
                left -= counts
        return dealt

    def examples_of(self, client: int) -> Indices:
        if not self._virtual_size:
            return self._dealt[client * self._size : (client + 1) * self._size]
        rng = self._rng(2, client)
        counts = rng.multinomial(self._virtual_size, self._mixture(client))
        parts = [
            rng.choice(pool, min(int(n), pool.size), replace=False) for pool, n in zip(self._pools, counts, strict=True)
        ]
        return np.concatenate(parts)


class ExamplesByGroup(Partition):
    """A client per group: the examples that carry its name, in the order of the names.

    Args:
        names: one per example, whatever can be sorted.
        seed: of nothing; partitions have one.

    Example:
        >>> ExamplesByGroup(np.array(["b", "a", "b"]), 0).examples_of(1)
        array([0, 2])

    """

    def __init__(self, names: NDArray[np.generic], seed: int) -> None:
        self.names, numbers = np.unique(names, return_inverse=True)
        super().__init__(numbers, len(self.names), seed)
        self._order = np.argsort(numbers, kind="stable")
        self._ends = np.cumsum(np.bincount(numbers))

    def examples_of(self, client: int) -> Indices:
        """See Partition."""
        begin = 0 if client == 0 else int(self._ends[client - 1])
        return self._order[begin : int(self._ends[client])]


def _share(items: Indices, part: int, parts: int) -> Indices:
    """Part number `part` of `parts` of nearly equal size."""
    begin, end = (items.size * p // parts for p in (part, part + 1))
    return items[begin:end]


def make_partition(
    labels: Indices,
    clients: int,
    *,
    kind: PartitionKind = PartitionKind.IID,
    seed: int = 2024,
    classes_per_client: int = 2,
    alpha: float = 0.5,
    virtual_size: int = 64,
) -> Partition:
    """Deal out examples with these labels to so many clients."""
    if clients < 1:
        raise ConfigError(f"clients = {clients}: at least one is needed")
    try:
        kind = PartitionKind(kind)  # a word too, which would otherwise be none of the kinds below
    except ValueError:
        raise ConfigError(f"partition.kind = {kind!r}: expected one of {', '.join(PartitionKind)}") from None
    there = np.unique(labels).size
    if kind is PartitionKind.IID:
        return _IID(labels, clients, seed, min(virtual_size, labels.size))
    if kind is PartitionKind.CLASSES:
        if not 1 <= classes_per_client <= there:
            raise ConfigError(
                f"partition.classes_per_client = {classes_per_client}: the dataset has {there} classes; "
                f"use 1 to {there}"
            )
        return _Classes(labels, clients, seed, classes_per_client, virtual_size)
    if not alpha > 0:
        raise ConfigError(f"partition.alpha = {alpha}: a Dirichlet distribution needs a number above 0")
    return _Dirichlet(labels, clients, seed, alpha, virtual_size)
