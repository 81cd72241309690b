"""Arrays of a model that no update carries: what is frozen, counters, and the statistics of batch norm.

They travel beside the model, and come back only where the statistics of all nodes are averaged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedmpdd.errors import InputError

BatchNorm = Literal["averaged", "local"]
BUFFERS, STATISTICS = "fedmpdd.buffers", "fedmpdd.statistics"  # in messages, and in the node's own state
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
_MEAN, _VARIANCE, _COUNT = "running_mean", "running_var", "num_batches_tracked"

Arrays = dict[str, NDArray[Any]]


def is_of_batch_norm(name: str) -> bool:
    """Return whether an array is what a batch norm layer keeps beside its parameters, by PyTorch's names."""
    return name.rpartition(".")[2] in (_MEAN, _VARIANCE, _COUNT)


@dataclass(frozen=True)
class BufferLayout:
    """Names, shapes and types of such arrays, in order.

    Args:
        names: of the arrays.
        shapes: of each.
        dtypes: likewise.
        places: where each stands among all arrays of the model.
        batch_norm: whether statistics are averaged over the nodes, or stay on each of them.

    """

    names: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    batch_norm: BatchNorm | None = None

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def averaged(self) -> tuple[str, ...]:
        """The names of the statistics that nodes send."""
        if self.batch_norm != "averaged":
            return ()
        return tuple(name for name in self.names if name.endswith((_MEAN, _VARIANCE)))

    def of(self, arrays: ArrayRecord) -> Arrays:
        """Return the arrays of this layout."""
        return {name: arrays[name].numpy() for name in self.names}

    def pack(self, arrays: Mapping[str, NDArray[Any]]) -> bytes:
        """Return the arrays as bytes, one after another."""
        kinds = zip(self.names, self.dtypes, strict=True)
        return b"".join(np.ascontiguousarray(arrays[name], np.dtype(dtype)).tobytes() for name, dtype in kinds)

    def unpack(self, data: object) -> Arrays:
        """Return the arrays that came as bytes, or raise InputError."""
        sizes = [
            math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        if not isinstance(data, bytes) or len(data) != sum(sizes):
            came = f"{len(data)} bytes" if isinstance(data, bytes) else f"a {type(data).__name__}"
            raise InputError(f"the model's buffers came as {came}, expected {sum(sizes)} bytes: {self.names[:3]} …")
        arrays, start = {}, 0
        for name, shape, dtype, size in zip(self.names, self.shapes, self.dtypes, sizes, strict=True):
            arrays[name] = np.frombuffer(data[start : start + size], np.dtype(dtype)).reshape(shape)
            start += size
        return arrays

    def statistics(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the statistics that are averaged, one after another."""
        parts = [arrays[name].astype(np.float32).reshape(-1) for name in self.averaged]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def with_statistics(self, arrays: Arrays, vector: NDArray[np.float32]) -> Arrays:
        """Return the arrays with other statistics."""
        changed, start = dict(arrays), 0
        for name in self.averaged:
            old = arrays[name]
            changed[name] = vector[start : start + old.size].reshape(old.shape).astype(old.dtype)
            start += old.size
        return changed

    def read_statistics(self, data: object) -> NDArray[np.float32]:
        """Return statistics that came as bytes; raise InputError unless they are such as numbers can have."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        sizes = [math.prod(shapes[name]) for name in self.averaged]
        if not isinstance(data, bytes) or len(data) != 4 * sum(sizes):
            came = f"{len(data)} bytes" if isinstance(data, bytes) else f"a {type(data).__name__}"
            raise InputError(f"statistics of batch norm came as {came}, expected {4 * sum(sizes)} bytes")
        vector = np.frombuffer(data, np.dtype("<f4")).astype(np.float32)
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        for name, part in zip(self.averaged, parts, strict=True):
            if not np.isfinite(part).all() or (name.endswith(_VARIANCE) and (part < 0).any()):
                raise InputError(f"statistics of batch norm came with {name} that is not finite, or below 0")
        return vector


def keep_statistics(layout: BufferLayout, arrays: Mapping[str, NDArray[Any]], state: RecordDict) -> None:
    """Keep what a node's batch norm layers saw in the node's own state, where it stays."""
    if layout.batch_norm == "local":
        kept = {name: Array(arrays[name]) for name in layout.names if is_of_batch_norm(name)}
        if kept:
            state[STATISTICS] = ArrayRecord(kept)


def with_kept_statistics(arrays: ArrayRecord, state: RecordDict) -> ArrayRecord:
    """Return a model that came with the statistics that the node keeps, if it keeps some."""
    kept = state.array_records.get(STATISTICS, ArrayRecord())
    fits = {
        name: kept[name] for name in kept if name in arrays and tuple(kept[name].shape) == tuple(arrays[name].shape)
    }
    return ArrayRecord({name: fits.get(name, array) for name, array in arrays.items()}) if fits else arrays


def receive_buffers(layout: BufferLayout, config: ConfigRecord, state: RecordDict, *, keeps: bool) -> Arrays:
    """Return the buffers that a node trains with: those that came, or those that it keeps with a model of its own.

    Args:
        layout: of the buffers.
        config: the record beside the order.
        state: the node's own.
        keeps: whether the node keeps the model for later rounds.

    """
    if not layout:
        return {}
    if BUFFERS in config:
        arrays = layout.unpack(config[BUFFERS])
        if keeps:
            state[BUFFERS] = ConfigRecord({BUFFERS: config[BUFFERS]})
    else:
        arrays = layout.unpack(state.config_records.get(BUFFERS, ConfigRecord()).get(BUFFERS))
    if STATISTICS in config:
        arrays = layout.with_statistics(arrays, layout.read_statistics(config[STATISTICS]))
    return arrays


def mean_statistics(
    rows: Sequence[NDArray[np.float32]], weights: Sequence[float], *, robust: bool
) -> NDArray[np.float32]:
    """Return the mean of what nodes sent; the median of each number where a minority of nodes may lie."""
    if robust:
        return np.median(np.stack(rows), axis=0).astype(np.float32)
    return np.average(np.stack(rows).astype(np.float64), axis=0, weights=weights).astype(np.float32)
