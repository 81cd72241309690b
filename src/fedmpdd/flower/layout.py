"""A model's arrays as one flat vector, and back: on the wire every array would be several requests of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedmpdd.directions import MAX_D
from fedmpdd.errors import InputError

Float32 = NDArray[np.float32]
FLAT = "flat"  # the name of the one array that travels
_FLOATS = ("float32", "float64", "float16")
_MOST_SIDES = 32  # what every release of NumPy can have


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and types of a model's arrays, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> "ParameterLayout":
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
    def from_values(cls, values: Mapping[str, Any]) -> "ParameterLayout":
        """Return the layout of what was JSON in between, or raise InputError: it comes from outside."""
        names, shapes, dtypes = (_list_of(values, key) for key in ("names", "shapes", "dtypes"))
        if not len(names) == len(shapes) == len(dtypes):
            raise InputError(
                f"{len(names)} names came with {len(shapes)} shapes and {len(dtypes)} types; expected one each"
            )
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise InputError("the names of the model's arrays are not text, or one comes twice")
        for dtype in dtypes:
            if dtype not in _FLOATS:
                raise InputError(f"an array of the model is {str(dtype)[:40]!r}; expected one of {', '.join(_FLOATS)}")
        layout = cls(tuple(names), tuple(map(_read_shape, shapes)), tuple(dtypes))
        if not 1 <= layout.d <= MAX_D:
            raise InputError("the shapes of the model's arrays make no coordinate, or more than 2^40")
        return layout

    @property
    def d(self) -> int:
        """Number of coordinates."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def flatten(self, arrays: ArrayRecord) -> Float32:
        """Return the arrays of this layout as one vector."""
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        expected = dict(zip(self.names, self.shapes, strict=True))
        if shapes != expected:
            different = sorted(name for name in shapes | expected if shapes.get(name) != expected.get(name))
            name = different[0]
            raise InputError(
                f"array {name!r} has shape {shapes.get(name, 'none')}, expected {expected.get(name, 'none')}: return "
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


def _list_of(values: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(values.get(key), list | tuple):
        raise InputError(f"the layout says {key} = {str(values.get(key))[:40]}; expected a list")
    return list(values[key])


def _read_shape(shape: object) -> tuple[int, ...]:
    sides = tuple(shape) if isinstance(shape, list | tuple) else (None,)
    whole = all(isinstance(side, int) and not isinstance(side, bool) and 0 <= side <= MAX_D for side in sides)
    if not whole or len(sides) > _MOST_SIDES:
        raise InputError(f"an array of the model has shape {_shortened(shape)}; expected integers from 0 to 2^40")
    return sides


def _shortened(value: object) -> str:
    """Some of what came, for an error: a number of thousands of digits cannot even be printed."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shortened, value[:3]))}{', …' if len(value) > 3 else ''}]"
    if isinstance(value, int) and abs(value) > MAX_D:
        return "beyond 2^40" if value > 0 else "below −2^40"
    return repr(value)[:20]


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
