"""Federated learning for scarce uplinks: a gradient as a few random ±1 projections and a seed."""

import importlib
from typing import Any

from fedmpdd.codecs import (
    CODECS,
    EDEN,
    MPDD,
    QSGD,
    Codec,
    FedSGD,
    Gaussian,
    Laplace,
    LpProj,
    Peaks,
    RandK,
    SAFedLora,
    SignSGD,
    TopK,
    Update,
    decode_pieces,
    encode_pieces,
    register,
)
from fedmpdd.directions import Key, derive_seed, partitioned_keys
from fedmpdd.errors import FedmpddError, InputError, MissingDependencyError, WireError
from fedmpdd.wire.frames import Limits, Session, pack, unpack

__version__ = "0.2.0.dev0"

__all__ = [
    "CODECS",
    "EDEN",
    "MPDD",
    "QSGD",
    "Codec",
    "FedSGD",
    "FedmpddError",
    "Gaussian",
    "InputError",
    "Key",
    "Laplace",
    "Limits",
    "LpProj",
    "Peaks",
    "RandK",
    "SAFedLora",
    "Session",
    "SignSGD",
    "TopK",
    "Update",
    "WireError",
    "__version__",
    "decode_pieces",
    "derive_seed",
    "encode_pieces",
    "pack",
    "partitioned_keys",
    "register",
    "unpack",
]


# What needs PyTorch is imported when it is used: that takes a second, and most of the package needs none.
_LAZY = {
    "History": "fedmpdd.runs.history",
    "Task": "fedmpdd.tasks.task",
    "audit": "fedmpdd.front.audit",
    "callbacks": "fedmpdd.front.callbacks",
    "compare": "fedmpdd.front.compare",
    "partition": "fedmpdd.tasks.task",
    "simulate": "fedmpdd.front.simulate",
    "testing": "fedmpdd.testing",
    "torch": "fedmpdd.torch",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fedmpdd"):
            raise
        raise MissingDependencyError(
            f"fedmpdd.{name} needs the package {error.name}, which is missing; pip install 'fedmpdd[train]'"
        ) from None
    return module if module.__name__ == f"fedmpdd.{name}" or name == "callbacks" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
