"""A model's arrays as one flat vector, and back: on the wire every array would be several requests of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedmpdd.directions import MAX_D
from fedmpdd.errors import InputError
from fedmpdd.flower.buffers import DTYPES, Arrays, BatchNorm, BufferLayout, is_of_batch_norm

Float32 = NDArray[np.float32]
FLAT = "flat"  # the name of the one array that travels
_FLOATS = ("float32", "float64", "float16")
_MOST_SIDES = 32  # what every release of NumPy can have
_NO_BUFFERS = BufferLayout()


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and types of a model's arrays that are trained, in order; and its buffers, which are not."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    buffers: BufferLayout = _NO_BUFFERS

    @classmethod
    def of(
        cls, arrays: ArrayRecord, frozen: Sequence[str] = (), batch_norm: BatchNorm | None = None
    ) -> "ParameterLayout":
        """Return the layout of a model.

        Args:
            arrays: of the model. Those that are no floats are buffers.
            frozen: names of others that are not trained; they may have the wildcard *.
            batch_norm: what becomes of the statistics of batch norm.

        """
        if not arrays:
            raise InputError("the model has no arrays; there is nothing to train")
        for pattern in frozen:
            if not any(fnmatchcase(name, pattern) for name in arrays):
                raise InputError(f"frozen has {pattern!r}, and no array of the model is called so: {_some(arrays)}")
        trained: list[Any] = []
        buffers: list[Any] = []
        for place, (name, array) in enumerate(arrays.items()):
            if is_of_batch_norm(name) and batch_norm is None:
                raise InputError(
                    f"array {name!r} of the model is a statistic of batch norm, which is no gradient: choose "
                    'FedMPDD(batch_norm="averaged") (nodes send them, and their bytes count) or batch_norm="local" '
                    "(they stay on each node), or use group or layer norm"
                )
            fixed = array.dtype not in _FLOATS or any(fnmatchcase(name, pattern) for pattern in frozen)
            kind = (name, tuple(array.shape), array.dtype, place)
            (buffers if fixed or is_of_batch_norm(name) else trained).append(kind)
        for name, shape, dtype, _ in buffers:
            if dtype not in DTYPES:
                raise InputError(
                    f"array {name!r} of the model is {dtype} {list(shape)}; expected one of {', '.join(DTYPES)}"
                )
        if not trained:
            raise InputError("no array of the model is trained: all are frozen, or no floats")
        names, shapes, dtypes, _ = zip(*trained, strict=True)
        if not buffers:
            return cls(names, shapes, dtypes)
        kept, sides, kinds, places = zip(*buffers, strict=True)
        return cls(names, shapes, dtypes, BufferLayout(kept, sides, kinds, places, batch_norm))

    def as_values(self) -> dict[str, Any]:
        """Return the layout as `from_values` reads it; without buffers it says nothing of them."""
        values = asdict(self)
        if not self.buffers:
            del values["buffers"]
        return values

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
        buffers = _read_buffers(values.get("buffers"), names)
        layout = cls(tuple(names), tuple(map(_read_shape, shapes)), tuple(dtypes), buffers)
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
        """Return the trained arrays of a model of this layout as one vector."""
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        expected = dict(zip(self.names + self.buffers.names, self.shapes + self.buffers.shapes, strict=True))
        if shapes != expected:
            different = sorted(name for name in shapes | expected if shapes.get(name) != expected.get(name))
            name = different[0]
            raise InputError(
                f"array {name!r} has shape {shapes.get(name, 'none')}, expected {expected.get(name, 'none')}: return "
                "arrays of the names and shapes that came"
            )
        return np.concatenate([arrays[name].numpy().astype(np.float32).reshape(-1) for name in self.names])

    def unflatten(self, flat: Float32, buffers: Arrays | None = None) -> ArrayRecord:
        """Return a vector and buffers as a model, its arrays in their order."""
        parts = [
            (name, Array(part.reshape(shape).astype(dtype)))
            for name, part, shape, dtype in zip(self.names, self.split(flat), self.shapes, self.dtypes, strict=True)
        ]
        for place, name in zip(self.buffers.places, self.buffers.names, strict=True):
            parts.insert(place, (name, Array(np.array((buffers or {})[name]))))
        return ArrayRecord(dict(parts))

    def split(self, flat: Float32) -> list[Float32]:
        """Return the parts of a vector, one per trained array."""
        return np.split(flat, np.cumsum(self._sizes)[:-1])


def _list_of(values: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(values.get(key), list | tuple):
        raise InputError(f"the layout says {key} = {str(values.get(key))[:40]}; expected a list")
    return list(values[key])


def _read_buffers(values: object, trained: list[str]) -> BufferLayout:
    """The layout of buffers that was JSON in between, or InputError."""
    if values is None:
        return _NO_BUFFERS
    if not isinstance(values, Mapping):
        raise InputError(f"the layout says buffers = {str(values)[:40]}; expected a table")
    names, shapes, dtypes, places = (_list_of(values, key) for key in ("names", "shapes", "dtypes", "places"))
    if not len(names) == len(shapes) == len(dtypes) == len(places):
        raise InputError("the model's buffers have not one name, shape, type and place each")
    if not all(isinstance(name, str) for name in names) or len({*names, *trained}) != len(names) + len(trained):
        raise InputError("the names of the model's buffers are not text, or one comes twice")
    if not all(type(place) is int and 0 <= place < len(names) + len(trained) for place in places):
        raise InputError("the places of the model's buffers are not among its arrays")
    if places != sorted(set(places)):
        raise InputError("the places of the model's buffers are not in order")
    if not all(dtype in DTYPES for dtype in dtypes):
        raise InputError(f"a buffer of the model has a type that is none of {', '.join(DTYPES)}")
    if (choice := values.get("batch_norm")) not in (None, "averaged", "local"):
        raise InputError(f'the layout says batch_norm = {str(choice)[:40]!r}; expected "averaged" or "local"')
    layout = BufferLayout(tuple(names), tuple(map(_read_shape, shapes)), tuple(dtypes), tuple(places), choice)
    if sum(map(math.prod, layout.shapes)) > MAX_D:
        raise InputError("the shapes of the model's buffers make more than 2^40 numbers")
    return layout


def _some(arrays: ArrayRecord) -> str:
    names = list(arrays)
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


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
