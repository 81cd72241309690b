"""A model's arrays as one flat vector, and back: on the wire every array would be several requests of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedmpdd.errors import InputError

Float32 = NDArray[np.float32]
FLAT = "flat"  # the name of the one array that travels
_FLOATS = ("float32", "float64", "float16")


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of a model's arrays, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> "Layout":
        """Return the layout of a model; all its arrays must be of floats."""
        for name, array in arrays.items():
            if array.dtype not in _FLOATS or name.endswith(("running_mean", "running_var")):
                raise InputError(
                    f"array {name!r} of the model is {array.dtype} {list(array.shape)}: expected parameters in floats. "
                    "Batch norm keeps such statistics, which are no gradients: use group or layer norm"
                )
        if not arrays:
            raise InputError("the model has no arrays; there is nothing to train")
        dtypes = tuple(array.dtype for array in arrays.values())
        return cls(tuple(arrays), tuple(tuple(array.shape) for array in arrays.values()), dtypes)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Layout":
        """Return the layout of what was JSON in between."""
        names, shapes, dtypes = (tuple(values[key]) for key in ("names", "shapes", "dtypes"))
        return cls(names, tuple(tuple(map(int, shape)) for shape in shapes), dtypes)

    @property
    def d(self) -> int:
        """Number of coordinates."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [int(np.prod(shape)) for shape in self.shapes]

    def flatten(self, arrays: ArrayRecord) -> Float32:
        """Return the arrays of this layout as one vector."""
        found = {name: tuple(array.shape) for name, array in arrays.items()}
        expected = dict(zip(self.names, self.shapes, strict=True))
        if found != expected:
            different = sorted(name for name in found | expected if found.get(name) != expected.get(name))
            name = different[0]
            raise InputError(
                f"array {name!r} has shape {found.get(name, 'none')}, expected {expected.get(name, 'none')}: return "
                "arrays of the names and shapes that came"
            )
        return np.concatenate([arrays[name].numpy().astype(np.float32).reshape(-1) for name in self.names])

    def unflatten(self, flat: Float32) -> ArrayRecord:
        """Return a vector as arrays of this layout."""
        parts = np.split(flat, np.cumsum(self._sizes)[:-1])
        return ArrayRecord(
            {
                name: Array(part.reshape(shape).astype(dtype))
                for name, part, shape, dtype in zip(self.names, parts, self.shapes, self.dtypes, strict=True)
            }
        )


def pack_flat(flat: Float32) -> ArrayRecord:
    """Return a vector as the one array that travels."""
    return ArrayRecord({FLAT: Array(flat)})


def read_flat(arrays: ArrayRecord, d: int) -> Float32:
    """Return the vector that travelled."""
    if set(arrays) != {FLAT}:
        raise InputError(f"arrays {sorted(arrays)} came, expected {FLAT!r} alone: is the strategy fedmpdd's?")
    flat = arrays[FLAT].numpy()
    if flat.dtype != np.float32 or flat.shape != (d,):
        raise InputError(f"the model came as {flat.dtype} {list(flat.shape)}, expected float32 [{d}]")
    return flat
