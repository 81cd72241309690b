"""What a round's replies are worth: each is read and checked before it counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.logger import log
from numpy.typing import NDArray

from fedmpdd.errors import FedmpddError, ReplyError
from fedmpdd.flower.buffers import STATISTICS
from fedmpdd.flower.instructions import ORDER, ROUND, UNCHANGED, UPDATE, RoundInstructions
from fedmpdd.uplink import Candidate, Screening

MOST_EXAMPLES = 2**53  # that a client may claim: beyond it sums of claims lose their last digits
LEAST_EXAMPLES = 2.0**-53  # metrics that are no counts may weigh too; products with smaller ones could vanish


@dataclass(frozen=True)
class Contribution(Candidate):
    """What one node gave to a round."""

    metrics: dict[str, Any] = field(default_factory=dict)
    frame_bytes: int = 0
    statistics: NDArray[np.float32] | None = None  # of batch norm, where the server averages them
    unchanged: tuple[str, ...] = ()  # arrays that came back as they were sent


class Replies:
    """Reads the replies of a round, and has them screened.

    Args:
        weighting: "examples" or "equal".
        weighted_by_key: the metric that says how many examples a node has.
        screening: what drops updates that are too large.

    """

    def __init__(self, weighting: str, weighted_by_key: str, screening: Screening) -> None:
        self._weighting, self._weighted_by_key = weighting, weighted_by_key
        self.screening = screening

    def contributions(
        self, k: int, orders: Mapping[int, RoundInstructions], replies: Iterable[Message]
    ) -> list[Contribution]:
        """Return the contributions that count, in the order of nodes; the others are logged, one line each."""
        read: dict[int, Contribution] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in read:
                    raise ReplyError("it answered already")
                read[node] = self._read(k, node, orders.get(node), reply.content)
            except FedmpddError as error:
                _log_drop(k, node, str(error))
        kept, rejections = self.screening.screen([read[node] for node in sorted(read)], len(orders))
        for rejection in rejections:
            _log_drop(k, rejection.client, rejection.reason)
        return [read[one.client] for one in kept]

    def _read(self, k: int, node: int, order: RoundInstructions | None, content: RecordDict) -> Contribution:
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
        sent, unchanged = values.pop(STATISTICS, None), values.pop(UNCHANGED, None)
        buffers = order.layout.buffers
        statistics = buffers.read_statistics(sent) if buffers.averaged else None
        session = order.make_uplink().session(0)
        update = session.unpack(frame, order.key if session.assigns_key else None)
        return Contribution(
            node,
            update,
            self._weight(values),
            values,
            len(frame) + (0 if statistics is None else statistics.nbytes),
            statistics,
            tuple(map(str, unchanged)) if isinstance(unchanged, list) else (),
        )

    def _weight(self, metrics: dict[str, Any]) -> float:
        weight = metrics.get(self._weighted_by_key)
        if self._weighting == "equal" and weight is None:
            return 1.0
        if not isinstance(weight, int | float) or not LEAST_EXAMPLES <= weight <= MOST_EXAMPLES:
            raise ReplyError(
                f"its metric {self._weighted_by_key!r} is {weight!r}, expected a number above 0, up to 2^53"
            )
        return float(weight)


def _log_drop(k: int, node: int, reason: str) -> None:
    log(WARNING, "round %s: dropped the update of node %s: %s", k, node, reason)
