"""The pickles of CIFAR-10, read without believing a length, a shape or a name in them.

A pickle is a program. Python's own reader allocates what an opcode claims, and calls what it names. Here every opcode
is looked at first: it must be one that such a batch needs, and what it claims must be there. Arrays are then kept as
the bytes and the description that came, and made by who knows what they must be.
"""

import io
import pickle
import pickletools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_OPCODES = frozenset(
    [
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"),
        *("GET", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2"),
        *("LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"),
        *("SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "TUPLE", "EMPTY_TUPLE"),
        *("TUPLE1", "TUPLE2", "TUPLE3", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "DICT", "EMPTY_DICT", "SETITEM"),
        *("SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    ]
)
_MOST_OPCODES = 2**20  # a batch with the names of its pictures has some ten thousand
_CLAIMS = frozenset(["FRAME", "PUT", "BINPUT", "LONG_BINPUT"])


class PickledArray:
    """An array as a pickle describes it; nothing of it was made."""

    __slots__ = ("description",)

    def __init__(self) -> None:
        self.description: tuple[Any, ...] = ()

    def __setstate__(self, description: object) -> None:
        """Keep the state that a pickle gives."""
        self.description = description if isinstance(description, tuple) else ()

    def read(self, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> NDArray[Any]:
        """Return the array, or raise ValueError unless it has this shape and one of these types, in C's order."""
        if len(self.description) != 5:
            raise ValueError("an array has no description that NumPy would write")
        _, shape_here, dtype, fortran, data = self.description
        if shape_here != shape or fortran not in (False, 0) or not isinstance(data, bytes):
            raise ValueError(f"an array has another shape than {list(shape)}, or another order")
        name = dtype.name if isinstance(dtype, _PickledType) else ""
        if name not in dtypes or len(data) != np.dtype(name).itemsize * int(np.prod(shape)):
            raise ValueError(f"an array of {list(shape)} holds {len(data):,} bytes of type {name[:20]!r}")
        return np.frombuffer(bytearray(data), dtype=np.dtype(name).newbyteorder(dtype.order)).reshape(shape)


class _PickledType:
    """A type of numbers as a pickle describes it: dtype("u1", False, True), then its byte order."""

    __slots__ = ("name", "order")

    def __init__(self, name: object, *rest: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else str(name)
        self.order: Any = "="

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
        self.order = order.decode("latin1") if isinstance(order, bytes) else order
        if self.order not in ("<", ">", "|", "="):
            raise ValueError("a type of numbers has no byte order")


def _reconstruct(*_: object) -> PickledArray:
    """Stand in for NumPy's function, which would allocate the shape that it is given."""
    return PickledArray()


def _encode(text: object, encoding: object) -> bytes:
    """Stand in for codecs.encode, with which Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1"):
        raise ValueError("bytes come in another way than as latin1")
    return text.encode("latin1")


class _Global(NamedTuple):
    """A name that is passed along and never called."""

    name: str


_GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Global("ndarray"),
    ("numpy", "dtype"): _PickledType,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands in for one of the few names that a batch needs."""
        if (module, name) not in _GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module[:40]}.{name[:40]}")
        return _GLOBALS[module, name]


def _check_opcodes(data: bytes) -> None:
    """Raise ValueError for an opcode that a batch does not need, or that claims what is not there."""
    # From a buffer no opcode gets more bytes than are left, whatever it claims; then pickletools says so.
    for number, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
        if number == _MOST_OPCODES:
            raise ValueError(f"it has more than {_MOST_OPCODES:,} opcodes, each of which may make an object")
        if opcode.name not in _OPCODES:
            raise ValueError(f"it holds the opcode {opcode.name}, which no batch needs")
        # The reader keeps a table as long as the largest number; a pickle counts them up.
        if opcode.name in _CLAIMS and not 0 <= int(argument or 0) <= len(data):
            raise ValueError(f"the opcode {opcode.name} claims {argument:,} of {len(data):,} bytes")


def read_pickle(data: bytes) -> Any:
    """Return what a pickle holds: numbers, text, lists, dicts, and arrays as `PickledArray`.

    It raises ValueError, UnpicklingError, or another of the many exceptions of Python's reader, for anything else.
    """
    _check_opcodes(data)
    return _Reader(io.BytesIO(data), encoding="bytes").load()
