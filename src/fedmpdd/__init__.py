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
from fedmpdd.wire.bare import BareSession
from fedmpdd.wire.frames import Limits, Session, pack, unpack

if TYPE_CHECKING:  # the names of _LAZY below, for those who read types
    from fedmpdd import mqtt as mqtt
    from fedmpdd import testing as testing
    from fedmpdd import torch as torch
    from fedmpdd.front import callbacks as callbacks
    from fedmpdd.front.audit import audit as audit
    from fedmpdd.front.audit_text import audit_text as audit_text
    from fedmpdd.front.compare import compare as compare
    from fedmpdd.front.simulate import run_config as run_config
    from fedmpdd.front.simulate import simulate as simulate
    from fedmpdd.front.simulate import train as train
    from fedmpdd.front.together import train_together as train_together
    from fedmpdd.runs.history import History as History
    from fedmpdd.runs.history import read_run as read_run
    from fedmpdd.simulation.config import load_config as load_config
    from fedmpdd.tasks import text as text
    from fedmpdd.tasks.pretrained import load_pretrained as load_pretrained
    from fedmpdd.tasks.task import Task as Task
    from fedmpdd.tasks.task import partition as partition
    from fedmpdd.torch.adapters import lora as lora
    from fedmpdd.torch.adapters import save_adapter as save_adapter

__version__ = "0.2.0.dev0"

__all__ = [
    "CODECS",
    "EDEN",
    "MPDD",
    "QSGD",
    "BareSession",
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
    "audit_text": "fedmpdd.front.audit_text",
    "callbacks": "fedmpdd.front.callbacks",
    "compare": "fedmpdd.front.compare",
    "load_config": "fedmpdd.simulation.config",
    "load_pretrained": "fedmpdd.tasks.pretrained",
    "lora": "fedmpdd.torch.adapters",
    "mqtt": "fedmpdd.mqtt",
    "partition": "fedmpdd.tasks.task",
    "read_run": "fedmpdd.runs.history",
    "run_config": "fedmpdd.front.simulate",
    "save_adapter": "fedmpdd.torch.adapters",
    "simulate": "fedmpdd.front.simulate",
    "testing": "fedmpdd.testing",
    "text": "fedmpdd.tasks.text",
    "torch": "fedmpdd.torch",
    "train": "fedmpdd.front.simulate",
    "train_together": "fedmpdd.front.together",
}

_MODULES = {"callbacks", "mqtt", "testing", "text", "torch"}  # of them, those that are modules and not names in one


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
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
