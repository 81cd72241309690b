"""What a client insists on, whatever the server's order says.

Codec, clip and noise come with the server's order. A client that relies on their privacy must not take the server's
word for it: it states what it needs, and answers with an error otherwise.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedmpdd.codecs import Codec
from fedmpdd.errors import ConfigError, OrderError
from fedmpdd.flower.order import Order

SENT = "fedmpdd.sent"  # in the node's own state: how many updates it has sent
_COUNT = "updates"


@dataclass(frozen=True)
class ClientPolicy:
    """Conditions that an order of the server must meet. What is None is not asked for.

    Args:
        codecs: names of codecs that the client will use, such as ("mpdd",).
        largest_clip: the largest `clip` of the scalars. An order without clipping is refused.
        least_noise: the smallest `noise_multiplier`, the deviation of the noise in units of the clipping bound. It
            needs `largest_clip`, since noise without clipping hides nothing.
        most_updates: how many updates this node sends in all: ε grows with every one of them. The count is kept in
            the node's state, which Flower keeps for one series of runs, as long as the SuperNode lives. A run outside
            the series counts anew.
        metrics: names of the metrics that may leave the node; the others are cut off, since they carry no noise.

    Example:
        >>> policy = ClientPolicy(codecs=("mpdd",), largest_clip=2.0, least_noise=0.5, most_updates=50)
        >>> app.train(mods=[make_mod(policy)])(train)  # doctest: +SKIP

    """

    codecs: Collection[str] | None = None
    largest_clip: float | None = None
    least_noise: float | None = None
    most_updates: int | None = None
    metrics: Collection[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.codecs, str) or isinstance(self.metrics, str):
            raise ConfigError("codecs and metrics of a ClientPolicy are collections of names, such as ('mpdd',)")
        for name in ("largest_clip", "least_noise"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} = {value!r}: expected a finite number above 0, or None")
        if self.least_noise is not None and self.largest_clip is None:
            raise ConfigError("least_noise needs largest_clip: noise hides nothing that is not clipped")
        if self.most_updates is not None and self.most_updates < 1:
            raise ConfigError(f"most_updates = {self.most_updates}: expected at least one, or None")

    def check(self, order: Order, codec: Codec, state: RecordDict) -> None:
        """Raise OrderError unless the client will do what an order asks.

        Args:
            order: of the server.
            codec: the codec of this round.
            state: the node's own state, which knows how many updates were sent.

        """
        if codec.noise_from_key and order.key is not None:
            raise OrderError(
                f"the noise of {codec.name} is drawn from the key, and the server has assigned {order.key}: whoever "
                "knows the key takes the noise off again; the server must use keys=sent"
            )
        if self.codecs is not None and codec.name not in self.codecs:
            raise OrderError(f"the order's codec is {codec.name}, this client allows {', '.join(self.codecs)}")
        if self.largest_clip is not None:
            self._check_protection(order, self.largest_clip)
        sent = updates_sent(state)
        if self.most_updates is not None and sent >= self.most_updates:
            raise OrderError(f"this client has sent {sent} updates, as many as it will in all")

    def _check_protection(self, order: Order, largest_clip: float) -> None:
        clip = order.protection.get("clip")
        if clip is None or not clip <= largest_clip:
            raise OrderError(f"the order's clip is {clip}, this client insists on at most {largest_clip}")
        noise = order.protection.get("noise_multiplier", 0.0)
        if self.least_noise is not None and not noise >= self.least_noise:
            raise OrderError(
                f"the order's noise_multiplier is {noise}, this client insists on at least {self.least_noise}"
            )


def updates_sent(state: RecordDict) -> int:
    """Return how many updates a node has sent, by its own state."""
    count = state.config_records.get(SENT, ConfigRecord()).get(_COUNT, 0)
    return count if isinstance(count, int) else 0


def count_update(state: RecordDict) -> None:
    """Take note, before it leaves, that an update is sent."""
    state[SENT] = ConfigRecord({_COUNT: updates_sent(state) + 1})
