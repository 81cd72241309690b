"""What nodes are sent of the model, all or what the rounds that they missed added: docs/flower.md, "The downlink"."""

from collections import Counter, deque
from dataclasses import dataclass, replace
from functools import cache
from logging import INFO, WARNING
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.logger import log

from fedmpdd.codecs.mpdd import BITS
from fedmpdd.errors import CodecError, ConfigError
from fedmpdd.flower.instructions import CATCH_UP, ORDER, ReplicaSettings, RoundInstructions
from fedmpdd.flower.layout import FLAT, Float32, ParameterLayout, pack_flat
from fedmpdd.flower.replay import FACTOR_BYTES, model_hash, pack_round, pack_vectors
from fedmpdd.server.replica import Replica
from fedmpdd.uplink import check_parts
from fedmpdd.uplink.codec_config import CodecConfig
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.catch_up import PER_BUNDLE, PER_MESSAGE, CatchUp

DownlinkKind = Literal["model", "replay"]
MOST_FAILURES = 2  # in a row, of a node that was to follow: it computes otherwise, or forgets all between rounds


@dataclass(frozen=True)
class Delivery:
    """What one node is sent of the model: arrays, or what rounds added; and what it needs to follow from there on."""

    arrays: ArrayRecord | None = None
    rounds: bytes | None = None
    follow: ReplicaSettings | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the model or of the rounds alone."""
        if self.rounds is not None:
            return len(self.rounds)
        return 0 if self.arrays is None else 4 * self.arrays[FLAT].shape[0]

    def content(self, order: RoundInstructions, config: ConfigRecord, arrays_key: str, config_key: str) -> RecordDict:
        """Return the message with the node's order; few records, since each takes a request of its own."""
        text = order.as_text(with_layout=self.rounds is None)
        if self.rounds is not None:
            return RecordDict({config_key: ConfigRecord({**config, ORDER: text, CATCH_UP: self.rounds})})
        assert self.arrays is not None
        return RecordDict({arrays_key: self.arrays, config_key: ConfigRecord({**config, ORDER: text})})


class Models:
    """The model to every node in every round."""

    def begin(self, number: int, server: Replica[Float32], expected: int) -> None:
        """Begin a round with this model; `expected` bytes are what it will add, as far as is known."""
        self._parcel = Delivery(pack_flat(server.flat))

    def delivery(self, node: int) -> Delivery:
        """Return what to send a node that is asked in this round."""
        return self._parcel

    def confirm(self, node: int) -> None:
        """Take note that a node answered as only one with the model of the round can."""

    def note_failure(self, node: int) -> None:
        """Take note that a node could not use what it was sent."""

    def add(self, bundle: Bundle, factor: float, flat: Float32) -> None:
        """Take note of what the round added, and of the model that it led to."""


class Followers(Models):
    """Nodes that keep the model: each is sent what the rounds since the one that it has added, where that is less.

    Where a node begins to follow it is sent what the server's optimiser keeps too. Whether a node has the model of a
    round is known once its reply to it came, and not before.

    follow: all but the hash of a round's model.
    """

    def __init__(self, d: int, follow: ReplicaSettings) -> None:
        self._follow = follow
        self._model_bytes = 4 * d
        self._round = 0  # the round at work
        self._rounds: deque[bytes] = deque()  # what those before it added, as far back as that is less than the model
        self._kept = 0  # bytes of these,
        self._total = 0  # and of all since the start
        self._has: dict[int, int] = {}  # by node: the round whose starting model it is known to have,
        self._asked: dict[int, int] = {}  # what the total was when it was asked last,
        self._failures: Counter[int] = Counter()  # and how often it could not follow, in a row
        self._sent: dict[int, Delivery] = {}  # in this round

    def begin(self, number: int, server: Replica[Float32], expected: int) -> None:
        current = model_hash(server.flat)
        if (number, current) != (self._round, self._follow.model):
            # The first round, or somebody changed the model between rounds: nobody has it.
            self._has.clear()
            self._rounds.clear()
            self._round, self._kept = number, 0
            self._follow = replace(self._follow, model=current)
        self._expected = PER_BUNDLE + FACTOR_BYTES + expected
        # Made once for all nodes, and only if one needs it: in most rounds there is no model to pack.
        self._alone = cache(lambda: Delivery(pack_flat(server.flat)))
        self._whole = cache(lambda: Delivery(pack_vectors(server), follow=self._follow))
        self._since = cache(self._missed)
        self._sent = {}

    def delivery(self, node: int) -> Delivery:
        # What a node misses from one time to the next. If that is more than a model, it need not follow.
        between = self._total - self._asked[node] if node in self._asked else self._expected
        self._asked[node] = self._total
        if self._failures[node] >= MOST_FAILURES:
            delivery = self._alone()
        elif node in self._has and self._round - self._has[node] <= len(self._rounds):
            delivery = self._since(self._has[node])
        else:
            delivery = self._whole() if between < self._model_bytes else self._alone()
        self._sent[node] = delivery
        return delivery

    def _missed(self, first: int) -> Delivery:
        """What gets a node from the starting model of that round to that of the round at work."""
        bundles = tuple(self._rounds)[len(self._rounds) - (self._round - first) :]
        message: CatchUp[Any] = CatchUp(first, bundles)
        return Delivery(rounds=message.pack(), follow=self._follow)

    def confirm(self, node: int) -> None:
        delivery = self._sent.get(node, Delivery())
        if delivery.follow is not None:
            self._has[node] = self._round
        if delivery.rounds is not None:
            del self._failures[node]

    def note_failure(self, node: int) -> None:
        if self._sent.pop(node, None) is None:  # it was not asked, or says it twice
            return
        self._has.pop(node, None)
        self._failures[node] += 1
        if self._failures[node] < MOST_FAILURES:
            log(INFO, "round %s: node %s lost the model; it is sent one the next time", self._round, node)
        else:
            log(WARNING, "round %s: node %s cannot follow; it is sent the model from now on", self._round, node)

    def add(self, bundle: Bundle, factor: float, flat: Float32) -> None:
        self._rounds.append(pack_round(bundle, factor))
        size = PER_BUNDLE + len(self._rounds[-1])
        self._kept += size
        self._total += size
        while self._rounds and PER_MESSAGE + self._kept > self._model_bytes:
            self._kept -= PER_BUNDLE + len(self._rounds.popleft())
        self._round += 1
        self._follow = replace(self._follow, model=model_hash(flat))


def check_downlink(kind: str, bits: int | None, codec: CodecConfig | None) -> None:
    """Raise ConfigError for settings that do not fit together; `codec` is None where it is to be chosen."""
    if kind not in ("model", "replay"):
        raise ConfigError(f'downlink = {kind!r}: expected "model" or "replay"')
    if bits is None:
        return
    if bits not in BITS or isinstance(bits, bool):
        raise ConfigError(f"downlink_bits = {bits!r}: expected one of {', '.join(map(str, BITS))}")
    if codec is None:
        raise ConfigError(f'downlink_bits = {bits} needs a codec by name, such as "mpdd:m=400:keys=shared"')
    try:
        check_parts(codec.build(), codec.keys, mean_bits=bits)
    except CodecError as error:
        raise ConfigError(f"downlink_bits = {bits}: {error}") from None


def make_downlink(kind: DownlinkKind, layout: ParameterLayout, follow: ReplicaSettings) -> Models:
    """Return the downlink of a start with this model, or raise ConfigError if it cannot be followed."""
    if kind == "model":
        return Models()
    other = [(name, dtype) for name, dtype in zip(layout.names, layout.dtypes, strict=True) if dtype != "float32"]
    if other:
        name, dtype = other[0]
        raise ConfigError(
            f'downlink = "replay", and array {name!r} of the model is {dtype}: expected float32, in which server and '
            'nodes compute the same bits. Convert the model, or use downlink = "model"'
        )
    return Followers(layout.d, follow)
