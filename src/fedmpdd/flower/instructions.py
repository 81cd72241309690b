"""What the server asks of a client in a round, as it stands in the message, and what it expects back."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from fedmpdd.codecs import Codec, make_codec
from fedmpdd.directions import Key, check_key
from fedmpdd.documents import parse_json
from fedmpdd.errors import InputError, OrderError
from fedmpdd.flower.layout import ParameterLayout
from fedmpdd.server.step import StepRule
from fedmpdd.uplink import ErrorFeedback, Protection, RobustMean, Uplink
from fedmpdd.wire.frames import VERSION

ORDER = "fedmpdd"  # the key of the order in the ConfigRecord of a message, and of the ConfigRecord in a reply
CATCH_UP = "fedmpdd.catch-up"  # beside the order, in the place of a model: what later rounds added to an earlier one
UPDATE, ROUND, UNCHANGED = "update", "round", "unchanged"  # keys in a reply; everything else in it is a metric

Returned = Literal["model", "gradient"]
_MOST_TEXT = 2**24  # characters of an order: 200,000 arrays with names of 40 letters


@dataclass(frozen=True)
class ReplicaSettings:
    """All that a client needs to know of the server to take its steps too.

    model: the hash of the model that the round starts from, see `model_hash`. arrays: what the train function calls
    the model's record. rule, lr: the server's step. mean_bits: bundles hold one update, the mean of all, with scalars
    of so many bits.
    """

    model: str
    arrays: str
    rule: StepRule
    lr: float
    mean_bits: int | None = None

    def __post_init__(self) -> None:
        """Raise OrderError for a step that nobody here can take."""
        if not isinstance(self.lr, int | float) or not math.isfinite(self.lr):
            raise OrderError(f"the server steps by {self.lr!r}, expected a finite number")


@dataclass(frozen=True)
class RoundInstructions:
    """One client's part of a round.

    returns: what the user's train function gives back. key: assigned by the server, or None where the client draws a
    seed from its operating system and sends it along. follow: the client is to keep the model for the next time.
    secure: clip and noise_multiplier of a secure sum that the update goes into; empty where it goes alone.
    """

    round: int
    codec: dict[str, Any]
    layout: ParameterLayout
    returns: Returned
    key: Key | None = None
    error_feedback: bool = False
    protection: dict[str, float] = field(default_factory=dict)
    follow: ReplicaSettings | None = None
    secure: dict[str, float] = field(default_factory=dict)

    def for_client(self, key: Key | None) -> "RoundInstructions":
        """Return the order with this client's key."""
        return replace(self, key=key)

    def make_codec(self) -> Codec:
        """Return the codec of this round."""
        return self._codec_of(self.round)

    def bundle_codec(self, number: int) -> Codec:
        """Return the codec of the updates in the bundle of a round."""
        codec = self._codec_of(number)
        if self.follow is None or self.follow.mean_bits is None:
            return codec
        if codec.scalar_codec is None:
            raise OrderError(f"downlink_bits = {self.follow.mean_bits}: {codec} has no scalars to take the mean of")
        return codec.scalar_codec.with_bits(self.follow.mean_bits)

    def _codec_of(self, number: int) -> Codec:
        parameters = dict(self.codec)
        return make_codec(parameters.pop("name"), parameters).for_shapes(self.layout.shapes).at_round(number - 1)

    def make_uplink(
        self, *, shared: bool = False, mean_bits: int | None = None, robust: RobustMean | None = None
    ) -> Uplink:
        """Return the path of an update that answers this order; how the server takes the mean is its own affair.

        shared: whether all clients of the round have this key. A client alone cannot tell, and need not.
        """
        codec = self.make_codec()
        protection = Protection(codec, **self.protection) if self.protection else None
        memory = ErrorFeedback(codec) if self.error_feedback else None
        keys = "sent" if self.key is None else "shared" if shared else "partitioned"
        return Uplink(
            codec, self.layout.d, keys, memory=memory, protection=protection, mean_bits=mean_bits, robust=robust
        )

    def as_text(self, *, with_layout: bool = True) -> str:
        """Return the order as it travels; a client that follows has the layout already."""
        values = {"wire": VERSION, **asdict(self), "layout": self.layout.as_values()}
        if not with_layout:
            del values["layout"]
        if self.follow is None:
            del values["follow"]
        if not self.secure:
            del values["secure"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: object, known: ParameterLayout | None = None) -> "RoundInstructions":
        """Read an order, or raise OrderError; where it comes without a layout, it is about the one that is known."""
        if not isinstance(text, str):
            raise OrderError(f"the order is a {type(text).__name__}, expected text: is the strategy fedmpdd's?")
        try:
            values = parse_json(text, largest=_MOST_TEXT)
            wire = values.pop("wire")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise OrderError(f"the order cannot be read: {error}") from None
        if wire != VERSION:
            raise OrderError(f"the server's frames have version {wire}, this client's {VERSION}: install one release")
        try:
            layout = ParameterLayout.from_values(values.pop("layout")) if "layout" in values else known
            if layout is None:
                raise OrderError("it says nothing of the model's arrays, and there is no model here yet")
            _check_types(values)
            key, follow = values.pop("key"), values.pop("follow", None)
            if follow is not None:
                follow = ReplicaSettings(**{**follow, "rule": StepRule(**follow["rule"])})
            order = cls(layout=layout, key=None if key is None else check_key(Key(*key)), follow=follow, **values)
            order.make_uplink()
        except (InputError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise OrderError(f"the order of the server cannot be followed: {error}") from None
        return order


def _check_types(values: dict[str, Any]) -> None:
    """Raise OrderError unless what came as JSON has the types that an order has."""
    number, returns = values.get("round"), values.get("returns")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
        raise OrderError("its round is no integer from 0 to 2^32 − 1")
    if returns not in ("model", "gradient"):
        raise OrderError(f"it asks for {str(returns)[:40]!r}, expected 'model' or 'gradient'")
    for name, kind in (("codec", dict), ("protection", dict), ("secure", dict), ("error_feedback", bool)):
        if not isinstance(values.get(name, kind()), kind):
            raise OrderError(f"its {name} is a {type(values[name]).__name__}, expected a {kind.__name__}")
    for value in (*values.get("protection", {}).values(), *values.get("secure", {}).values()):
        float(value)  # an integer of thousands of digits is none
