"""Federated learning for scarce uplinks: a gradient as a few random ±1 projections and a seed."""

from fedmpdd.codecs import CODECS, MPDD, Codec, Update, decode_pieces, encode_pieces
from fedmpdd.directions import Key, derive_seed, partitioned_keys
from fedmpdd.errors import FedmpddError, InputError, WireError
from fedmpdd.wire.frames import Limits, Session, pack, unpack

__version__ = "0.2.0.dev0"

__all__ = [
    "CODECS",
    "MPDD",
    "Codec",
    "FedmpddError",
    "InputError",
    "Key",
    "Limits",
    "Session",
    "Update",
    "WireError",
    "__version__",
    "decode_pieces",
    "derive_seed",
    "encode_pieces",
    "pack",
    "partitioned_keys",
    "unpack",
]
