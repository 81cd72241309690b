"""What a client insists on, whatever the server's order says.

Codec, clip and noise come with the server's order. A client that relies on their privacy must not take the server's
word for it: it states what it needs, and answers with an error otherwise.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError, OrderError

if TYPE_CHECKING:  # it needs a package that others do not
    from fedmpdd.secure_sum import Identity, Ledger

FEWEST_CLIENTS = 3  # of a secure sum: see fedmpdd.secure_sum


class Order(NamedTuple):
    """What a server asks of a client's update, as far as a policy looks at it.

    Args:
        codec: of the round.
        key: that the server has assigned; None where the client draws one.
        protection: clip and noise of the update; empty for none.
        secure: clip and noise of the secure sum that it goes into; empty where it goes alone.
        wants_statistics: whether statistics of batch norm go beside it.

    """

    codec: Codec
    key: Key | None = None
    protection: Mapping[str, float] = {}
    secure: Mapping[str, float] = {}
    wants_statistics: bool = False


@dataclass(frozen=True)
class ClientPolicy:
    """Conditions that an order of the server must meet. What is None is not asked for.

    Args:
        codecs: names of codecs that the client will use, such as ("mpdd",).
        largest_clip: the largest `clip` of the scalars. An order without clipping is refused.
        least_noise: the smallest `noise_multiplier`, the deviation of the noise in units of the clipping bound. It
            needs `largest_clip`, since noise without clipping hides nothing.
        most_updates: how many updates this client sends in all: ε grows with every one of them. In Flower the count is
            kept in the node's state, for one series of runs, as long as the SuperNode lives. A run outside the series
            counts anew. Over MQTT it is kept as long as the process lives.
        secure: whether the client sends nothing but masked contributions to secure sums. The clip and noise that it
            insists on are then those of the sum.
        fewest_clients: how many clients a secure sum must be of, this one counted and `colluders` not.
        colluders: how many clients of a sum may be in league with the server; None: none are counted.
        ledger: returns the ledger in which this node writes down what it answered, such as a `FileLedger`. None: it
            lies in the node's state, and ends with the SuperNode.
        identity: returns this node's signing key and everybody's verify keys. With it the client insists on sums whose
            clients sign.
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
    secure: bool = False
    fewest_clients: int = FEWEST_CLIENTS
    colluders: int | None = None
    ledger: Callable[[Any], "Ledger"] | None = None
    identity: Callable[[Any], "Identity"] | None = None

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
        if self.fewest_clients < 2 or (self.colluders or 0) < 0:
            raise ConfigError(
                f"fewest_clients = {self.fewest_clients} and colluders = {self.colluders}: expected at least 2 clients "
                "in a sum, and no fewer than 0 of them in league with the server"
            )

    def check(self, order: Order, sent: int) -> None:
        """Raise OrderError unless the client will do what an order asks.

        Args:
            order: of the server.
            sent: how many updates this client has sent.

        """
        codec = order.codec
        if codec.noise_from_key and order.key is not None:
            raise OrderError(
                f"the noise of {codec.name} is drawn from the key, and the server has assigned {order.key}: whoever "
                "knows the key takes the noise off again; the server must use keys=sent"
            )
        if self.codecs is not None and codec.name not in self.codecs:
            raise OrderError(f"the order's codec is {codec.name}, this client allows {', '.join(self.codecs)}")
        if self.secure and not order.secure:
            raise OrderError("the order asks for a single update, and this client insists on secure sums")
        if order.wants_statistics and (self.secure or self.largest_clip is not None):
            raise OrderError(
                "the order has statistics of batch norm sent beside the update, without noise, and this client insists "
                'on protection; the server must use batch_norm="local", or group norm'
            )
        self.check_protection(order.secure or order.protection, sent)

    def check_protection(self, protection: Mapping[str, float], sent: int) -> None:
        """Raise OrderError unless clip and noise, of an update or of a secure sum, are what the client insists on.

        Args:
            protection: `clip` and `noise_multiplier`, as far as there are any.
            sent: as for `check`.

        """
        if self.largest_clip is not None:
            self._check_clip_and_noise(protection, self.largest_clip)
        if self.most_updates is not None and sent >= self.most_updates:
            raise OrderError(f"this client has sent {sent} updates, as many as it will in all")

    def _check_clip_and_noise(self, protection: Mapping[str, float], largest_clip: float) -> None:
        clip = protection.get("clip")
        if clip is None or not clip <= largest_clip:
            raise OrderError(f"the order's clip is {clip}, this client insists on at most {largest_clip}")
        noise = protection.get("noise_multiplier", 0.0)
        if self.least_noise is not None and not noise >= self.least_noise:
            raise OrderError(
                f"the order's noise_multiplier is {noise}, this client insists on at least {self.least_noise}"
            )
