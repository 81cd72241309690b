"""Federated learning for scarce uplinks: a gradient as a few random ±1 projections and a seed."""

import importlib
from typing import TYPE_CHECKING, Any

from fedmpdd.codecs import (
    CODECS,
    EDEN,
    MPDD,
    QSGD,
    Codec,
    DeComFL,
    FedKSeed,
    FedSGD,
    FeedSign,
    Ferret,
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

if TYPE_CHECKING:  # the names of _LAZY below, for those who read types
    from fedmpdd import testing as testing
    from fedmpdd import torch as torch
    from fedmpdd.front import callbacks as callbacks
    from fedmpdd.front.audit import audit as audit
    from fedmpdd.front.compare import compare as compare
    from fedmpdd.front.simulate import simulate as simulate
    from fedmpdd.front.simulate import train as train
    from fedmpdd.runs.history import History as History
    from fedmpdd.runs.history import read_run as read_run
    from fedmpdd.simulation.config import load_config as load_config
    from fedmpdd.tasks.task import Task as Task
    from fedmpdd.tasks.task import partition as partition

__version__ = "0.2.0.dev0"

__all__ = [
    "CODECS",
    "EDEN",
    "MPDD",
    "QSGD",
    "Codec",
    "DeComFL",
    "FedKSeed",
    "FedSGD",
    "FedmpddError",
    "FeedSign",
    "Ferret",
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
    "load_config": "fedmpdd.simulation.config",
    "partition": "fedmpdd.tasks.task",
    "read_run": "fedmpdd.runs.history",
    "simulate": "fedmpdd.front.simulate",
    "testing": "fedmpdd.testing",
    "torch": "fedmpdd.torch",
    "train": "fedmpdd.front.simulate",
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
