"""What the server asks of a client in a round, as it stands in the message, and what it expects back."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from fedmpdd.codecs import MPDD, Codec, Private, make_codec
from fedmpdd.directions import Key, check_key
from fedmpdd.errors import InputError, OrderError
from fedmpdd.flower.layout import Layout
from fedmpdd.wire import VERSION, Session

ORDER = "fedmpdd"  # the key of the order in the ConfigRecord of a message, and of the ConfigRecord in a reply
UPDATE, ROUND = "update", "round"  # keys in a reply; everything else in it is a metric

Returned = Literal["model", "gradient"]


@dataclass(frozen=True)
class Order:
    """One client's part of a round.

    returns: what the user's train function gives back. key: assigned by the server, or None where the client draws a
    seed from its operating system and sends it along.
    """

    round: int
    codec: dict[str, Any]
    layout: Layout
    returns: Returned
    key: Key | None = None
    error_feedback: bool = False
    protection: dict[str, float] = field(default_factory=dict)

    def for_client(self, key: Key | None) -> "Order":
        """Return the order with this client's key."""
        return replace(self, key=key)

    def make_codec(self) -> Codec:
        """Return the codec of this round."""
        parameters = dict(self.codec)
        return make_codec(parameters.pop("name"), parameters).for_shapes(self.layout.shapes).at_round(self.round - 1)

    def make_protection(self, codec: Codec) -> Private | None:
        """Return what protects updates, if anything does."""
        if not self.protection:
            return None
        if not isinstance(codec, MPDD):
            raise OrderError(f"{', '.join(self.protection)}: only mpdd has scalars to protect, the codec is {codec}")
        return Private(codec, **self.protection)

    def make_session(self) -> Session:
        """Return the session that frames of this order belong to."""
        return Session(self.make_codec(), self.layout.d, sends_seed=self.key is None)

    def as_text(self) -> str:
        """Return the order as it travels."""
        return json.dumps({"wire": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: object) -> "Order":
        """Read an order, or raise OrderError."""
        if not isinstance(text, str):
            raise OrderError(f"the order is a {type(text).__name__}, expected text: is the strategy fedmpdd's?")
        try:
            values = json.loads(text)
            wire = values.pop("wire")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise OrderError(f"the order cannot be read: {error}") from None
        if wire != VERSION:
            raise OrderError(f"the server's frames have version {wire}, this client's {VERSION}: install one release")
        try:
            layout = values.pop("layout")
            names, shapes, dtypes = (tuple(layout[key]) for key in ("names", "shapes", "dtypes"))
            key = values.pop("key")
            order = cls(
                layout=Layout(names, tuple(tuple(map(int, shape)) for shape in shapes), dtypes),
                key=None if key is None else check_key(Key(*key)),
                **values,
            )
            order.make_protection(order.make_session().codec)
        except (InputError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise OrderError(f"the order of the server cannot be followed: {error}") from None
        return order
