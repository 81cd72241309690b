"""What a round's replies are worth: each is read and checked before it counts."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.logger import log

from fedmpdd.codecs import Update
from fedmpdd.errors import FedmpddError, ReplyError
from fedmpdd.flower.order import ORDER, ROUND, UPDATE, Order

MOST_EXAMPLES = 2**53  # that a client may claim: beyond it sums of claims lose their last digits


@dataclass(frozen=True)
class Contribution:
    """What one client gave to a round."""

    node: int
    update: Update
    weight: float
    metrics: dict[str, Any]
    frame_bytes: int

    @property
    def magnitude(self) -> float:
        """Root mean square of its scale and scalars: of one codec, it grows with the gradient."""
        floats = [array for array in self.update.arrays if array.dtype.kind == "f"]
        squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in floats)
        return math.sqrt(squares / max(1, sum(array.size for array in floats)))


class Replies:
    """Which replies count, by what the strategy was told and by what was usual so far.

    usual: magnitude of an update, the largest median of a round so far.
    """

    def __init__(self, weighting: str, weighted_by_key: str, max_value: float, max_ratio: float) -> None:
        self._weighting, self._weighted_by_key = weighting, weighted_by_key
        self._max_value, self._max_ratio = max_value, max_ratio
        self.usual: float | None = None

    def sound(self, k: int, orders: Mapping[int, Order], replies: Iterable[Message]) -> list[Contribution]:
        """The contributions that count, in the order of nodes; the others are told, one line each."""
        read: dict[int, Contribution] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in read:
                    raise ReplyError("it answered already")
                read[node] = self._read(k, node, orders.get(node), reply.content)
            except FedmpddError as error:
                _log_drop(k, node, str(error))
        kept = []
        weight = _lower_median([own.weight for own in read.values()])
        # Gradients shrink while a model learns, on some clients sooner: what was usual once is never too large.
        usual = _lower_median([own.magnitude for own in read.values()]) if self.usual is None else self.usual
        for node in sorted(read):
            if usual > 0 and read[node].magnitude > self._max_ratio * usual:
                _log_drop(k, node, f"it is {read[node].magnitude / usual:.3g} times larger than usual")
            elif self._weighting == "examples" and read[node].weight > self._max_ratio * weight:
                _log_drop(k, node, f"it claims {read[node].weight / weight:.3g} times more examples than usual")
            else:
                kept.append(read[node])
        if kept:
            self.usual = max(self.usual or 0.0, _lower_median([own.magnitude for own in kept]))
        return kept

    def _read(self, k: int, node: int, order: Order | None, content: RecordDict) -> Contribution:
        if order is None:
            raise ReplyError("it was not asked in this round")
        record = content.config_records.get(ORDER)
        if record is None:
            raise ReplyError(f"its reply has {sorted(content)}, expected {ORDER!r}: does its app use fedmpdd_mod?")
        values = dict(record)
        frame, number = values.pop(UPDATE, None), values.pop(ROUND, None)
        if number != k:
            raise ReplyError(f"its update is for round {number!r}, this is {k}")
        if not isinstance(frame, bytes):
            raise ReplyError(f"its update is {type(frame).__name__}, expected bytes")
        update = order.make_session().unpack(frame, order.key if order.make_codec().needs_key else None)
        floats = [array for array in update.arrays if array.dtype.kind == "f"]
        largest = max((float(np.abs(array).max(initial=0.0)) for array in floats), default=0.0)
        if largest > self._max_value:
            raise ReplyError(f"a number in it is {largest:.3g}, above max_value = {self._max_value:g}")
        return Contribution(node, update, self._weight(values), values, len(frame))

    def _weight(self, metrics: dict[str, Any]) -> float:
        weight = metrics.get(self._weighted_by_key)
        if self._weighting == "equal" and weight is None:
            return 1.0
        if not isinstance(weight, int | float) or not 0 < weight <= MOST_EXAMPLES:
            raise ReplyError(f"its metric {self._weighted_by_key!r} is {weight!r}, expected a number above 0")
        return float(weight)


def _lower_median(values: list[float]) -> float:
    """Of two the smaller one: half of them may be wrong."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _log_drop(k: int, node: int, reason: str) -> None:
    log(WARNING, "round %s: dropped the update of node %s: %s", k, node, reason)
