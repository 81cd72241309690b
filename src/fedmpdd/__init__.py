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
from fedmpdd.errors import FedmpddError, InputError, WireError
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


def __getattr__(name: str) -> Any:
    """Import `fedmpdd.torch` when it is used: PyTorch takes a second, and most of the package needs none."""
    if name == "torch":
        return importlib.import_module("fedmpdd.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
