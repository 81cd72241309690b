"""A client that keeps the model, and gets to the next by what the rounds in between added: docs/flower.md.

The server takes its steps as a `Replica` too. Without PyTorch: a client need not wait for it.
"""

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedmpdd.documents import parse_json
from fedmpdd.errors import ContentError, InputError, TruncatedFrameError
from fedmpdd.flower.instructions import ReplicaSettings, RoundInstructions
from fedmpdd.flower.layout import Float32, ParameterLayout, pack_flat, read_flat
from fedmpdd.server.replica import Replica
from fedmpdd.server.step import OPTIMISERS, Step, StepRule
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.catch_up import CatchUp, unpack_catch_up

MODEL = "fedmpdd.model"  # in the node's own state: the model and the vectors of the server's optimiser, as one array,
FOLLOWING = "fedmpdd.following"  # and the round that it starts, with its layout
_ROUND, _LAYOUT = "round", "layout"
_FACTOR = struct.Struct("<d")
FACTOR_BYTES = _FACTOR.size


def model_hash(flat: Float32) -> str:
    """The first 8 bytes of the SHA-256 of a flat model, little-endian: enough against accidents."""
    return hashlib.sha256(flat.astype("<f4", copy=False).tobytes()).hexdigest()[:16]


def make_replica(rule: StepRule, lr: float, vectors: Float32, next_round: int = 0) -> Replica[Float32]:
    """Return the server's model, from its parameters [d], or from these and what its optimiser keeps [vectors, d]."""
    rows = vectors.reshape(1, -1) if vectors.ndim == 1 else vectors
    replica = Replica(rows[0], Step(rule, lr, lambda: np.zeros(rows.shape[1], np.float32)), next_round)
    if len(rows) > 1:
        replica.load(tuple(rows), next_round)
    return replica


def pack_round(bundle: Bundle, factor: float) -> bytes:
    """Return what a round adds, as bytes."""
    return _FACTOR.pack(factor) + bundle.pack()


def split_round(data: bytes) -> tuple[float, bytes]:
    """Part what a round adds into how much of the step to take and the bundle, or raise WireError."""
    if len(data) < FACTOR_BYTES:
        raise TruncatedFrameError(f"a round has {len(data)} bytes; expected a factor of {FACTOR_BYTES} and a bundle")
    (factor,) = _FACTOR.unpack_from(data)
    if not (math.isfinite(factor) and factor > 0):
        raise ContentError(f"a round's step is multiplied by {factor}; expected a finite number above 0")
    return factor, data[FACTOR_BYTES:]


# -------------------------------------------------------------------------------------------------- a client's state


def known_layout(state: RecordDict) -> ParameterLayout | None:
    """Return the layout of the model that a node keeps, if it keeps one."""
    try:
        return ParameterLayout.from_values(parse_json(str(state.config_records[FOLLOWING][_LAYOUT])))
    except (KeyError, TypeError, ValueError):  # nothing was kept, or somebody else wrote there
        return None


def begin(order: RoundInstructions, follow: ReplicaSettings, arrays: ArrayRecord, state: RecordDict) -> Float32:
    """Take the model that came, and keep it."""
    replica = _load(order, follow, arrays, order.round)
    _check(replica.flat, order, follow, "came")
    _keep(replica, order, state)
    return replica.flat


def catch_up(order: RoundInstructions, follow: ReplicaSettings, data: object, state: RecordDict) -> Float32:
    """Go from the model that the node keeps to that of the round, and keep it instead."""
    if not isinstance(data, bytes):
        raise InputError(f"what later rounds added came as {type(data).__name__}, expected bytes")
    record = state.config_records.get(FOLLOWING)
    number = None if record is None else record.get(_ROUND)
    if not isinstance(number, int) or MODEL not in state.array_records:
        raise InputError("what later rounds added came, and there is no model here to add it to; a model is needed")
    replica = _load(order, follow, state.array_records[MODEL], number)
    message: CatchUp[Any] = unpack_catch_up(data)
    for added in _missed(message, number, order.round):
        factor, bundle = split_round(added)
        replica.apply(bundle, order.bundle_codec(replica.next_round + 1), factor)
    _check(replica.flat, order, follow, "was rebuilt here")
    _keep(replica, order, state)
    return replica.flat


def _missed(message: CatchUp[Any], number: int, wanted: int) -> tuple[bytes, ...]:
    """The bundles that lead from the starting model of round `number` to that of the round that is wanted."""
    first, end = message.round, message.round + len(message.bundles)
    if message.vectors or end != wanted:
        raise ContentError(f"rounds {first} to {end - 1} came, which do not end before round {wanted}")
    # A node can be ahead of what the server knows: it had the model, and its reply was lost. Never behind.
    if not first <= number <= wanted:
        raise InputError(
            f"rounds {first} to {end - 1} came, and the model here is the one that round {number} starts from; a model "
            "is needed"
        )
    return message.bundles[number - first :]


def _check(flat: Float32, order: RoundInstructions, follow: ReplicaSettings, how: str) -> None:
    if (current := model_hash(flat)) != follow.model:
        raise InputError(
            f"the model of round {order.round} that {how} has hash {current}, the server's has {follow.model}; a model "
            "is needed"
        )


def _load(order: RoundInstructions, follow: ReplicaSettings, arrays: ArrayRecord, number: int) -> Replica[Float32]:
    """The model that a record holds, the one that round `number` starts from; rounds count from 1 here."""
    d = order.layout.d
    vectors = read_flat(arrays, d * (1 + len(OPTIMISERS[follow.rule.optimiser]))).reshape(-1, d).copy()
    return make_replica(follow.rule, follow.lr, vectors, number - 1)


def _keep(replica: Replica[Float32], order: RoundInstructions, state: RecordDict) -> None:
    state[MODEL] = pack_vectors(replica)
    state[FOLLOWING] = ConfigRecord({_ROUND: order.round, _LAYOUT: json.dumps(order.layout.as_values())})


def pack_vectors(replica: Replica[Float32]) -> ArrayRecord:
    """Return the model, and what the server's optimiser keeps, as the one array that travels."""
    return pack_flat(np.concatenate(replica.vectors))
