"""Rounds over a broker, as a server has them: it begins one, waits for updates, and says what the one before added."""

import logging
import secrets
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import RunError
from fedmpdd.mqtt.broker import Broker
from fedmpdd.mqtt.follower import SNAPSHOT_EVERY, TAIL, model_tag, snapshot
from fedmpdd.mqtt.gatherer import Counted, Gatherer
from fedmpdd.mqtt.messages import Contribution, RoundMessage, mark_clients, pack_parts
from fedmpdd.mqtt.post import Post
from fedmpdd.mqtt.terms import Terms
from fedmpdd.mqtt.topics import Topics
from fedmpdd.server.replica import Replica

if TYPE_CHECKING:  # it needs a package that others do not
    from fedmpdd.mqtt.secure import SumGatherer

_log = logging.getLogger("fedmpdd")


class Rounds:
    """A training at a broker.

    What a round added must be on the disk before the next begins: that is what acknowledges its updates.

    Args:
        broker: to connect to.
        name: of the training.
        terms: of it.
        replaces: whether another training of that name, which the broker still has, may be replaced.

    """

    def __init__(self, broker: Broker, name: str, terms: Terms, *, replaces: bool = False) -> None:
        self._broker, self._terms, self._replaces = broker, terms, replaces
        self._topics = Topics(name)
        self._gatherer = self._make_gatherer(name)
        self._post = Post(broker, self._topics, self._gatherer.receive, self._gatherer.fail)
        self._start = 0
        self._round = 0
        self._packed: tuple[int, bytes] | None = None  # the message of a round, by its number
        self._snapshot = 0  # the round of the model that the broker has
        self._tail: deque[tuple[int, int]] = deque()  # the rounds whose messages it has, and their bytes
        self._model_bytes = 4 * terms.d * terms.vectors

    def _make_gatherer(self, name: str) -> "Gatherer | SumGatherer":
        if not self._terms.secure:
            return Gatherer(self._terms, self._ask_again)
        from fedmpdd.mqtt.secure import SumGatherer

        return SumGatherer(name, self._terms, self._send_to)

    def begin(self, replica: Replica[NDArray[np.float32]], past: Sequence[RoundMessage] = ()) -> None:
        """Connect, and publish all that a client needs, also one that comes later.

        Args:
            replica: the model as it is now.
            past: the messages of the last rounds, after a restart; the last begins the round of the model.

        Raises:
            RunError: the broker cannot be reached, or has another training of this name.

        """
        kept = self._post.start()
        packed, topics = self._terms.pack(), self._topics
        if kept and kept != packed and not self._replaces:
            raise RunError(
                f"{self._broker} has another training named {topics.name!r}; choose another --name, or --replace it"
            )
        # By another number clients see that a server began anew, which lacks what it did not acknowledge.
        self._start, self._packed = secrets.randbelow(256), None
        for message in past[-1 - self._terms.arrivals.max_age :]:
            self._gatherer.remember(message.contributions)
        if not past:  # what the broker has of an earlier training with these terms says that it is over
            self._post.publish([(topics.round, b"")], retain=True, wait=True)
        model, tail = self._parts(replica), []
        for message in past[-TAIL:]:
            tail += self._tail_of(message.round, self._pack(message))
        self._post.publish([(topics.terms, packed), *tail, *model], wait=True)

    def round(self, number: int, replica: Replica[NDArray[np.float32]], added: RoundMessage | None) -> Counted:
        """Begin a round, wait for its updates, and return those that count.

        Args:
            number: of the round.
            replica: the model that it starts from.
            added: the message of this round where the one before added something; None in the first.

        """
        self._open(number, replica, added)
        return self._gatherer.wait()

    def prepare(self, number: int, replica: Replica[NDArray[np.float32]], added: RoundMessage | None) -> int:
        """Pack the message that begins a round, ahead of `round`, and return its length; arguments are those of it."""
        if self._packed is None or self._packed[0] != number:
            self._packed = number, self._pack(added or RoundMessage(number, model_tag(replica.flat)))
        return len(self._packed[1])

    def _open(self, number: int, replica: Replica[NDArray[np.float32]], added: RoundMessage | None) -> None:
        topics = self._topics
        self._round = number
        self._gatherer.open(number)
        self.prepare(number, replica, added)
        assert self._packed is not None
        message = self._packed[1]
        messages = [(topics.round, message)]
        if added is not None:
            messages += self._tail_of(number, message)
        # Whoever begins with a snapshot catches up with less than another one.
        since = sum(size for one, size in self._tail if one > self._snapshot)
        if number and (number - self._snapshot >= SNAPSHOT_EVERY or since >= self._model_bytes):
            messages += self._parts(replica)
        self._post.publish(messages)

    def _tail_of(self, number: int, message: bytes) -> list[tuple[str, bytes]]:
        """What changes of the tail with a round's message: it comes, and those go that a model is shorter than."""
        self._tail.append((number, len(message)))
        changes = [(self._topics.tail(number % TAIL), message)]
        total = sum(size for _, size in self._tail)
        while len(self._tail) > TAIL or (total > self._model_bytes and self._tail[0][0] <= self._snapshot):
            first, size = self._tail.popleft()
            total -= size
            if first > number - TAIL:  # else the new message is in its place
                changes.append((self._topics.tail(first % TAIL), b""))
        return changes

    def end(self, number: int, replica: Replica[NDArray[np.float32]], added: RoundMessage | None) -> None:
        """Tell clients that the training is over, and leave its last model with the broker."""
        message = added or RoundMessage(number, model_tag(replica.flat))
        packed = self._pack(message._replace(is_over=True))
        messages = [(self._topics.round, packed), *self._parts(replica)]
        self._post.publish(messages, wait=True)

    def close(self) -> None:
        """End the connection; the broker keeps what was retained."""
        self._post.close()

    @property
    def drops(self) -> dict[str, int]:
        """How many updates did not count, by reason."""
        return dict(self._gatherer.drops)

    def _pack(self, message: RoundMessage) -> bytes:
        return message._replace(start=self._start).pack(self._terms)

    def _parts(self, replica: Replica[NDArray[np.float32]]) -> list[tuple[str, bytes]]:
        self._snapshot = replica.next_round
        parts = pack_parts(replica.next_round, snapshot(replica), self._terms)
        return [(self._topics.model(number), part) for number, part in enumerate(parts)]

    def _send_to(self, messages: Sequence[tuple[int | None, bytes]]) -> None:
        """Send messages of a secure sum, each to a client or to all."""
        topics = self._topics
        self._post.publish([(topics.sum, message) for client, message in messages if client is None])
        one_each = [(topics.to(client), message) for client, message in messages if client is not None]
        self._post.publish(one_each, retain=False)

    def _ask_again(self, clients: list[int]) -> str:
        here = self._post.present
        away = [client for client in clients if client not in here]
        message = mark_clients(self._round, clients, self._terms.clients)
        self._post.publish([(self._topics.missing, message)], retain=False)
        return f"; {len(away)} of them are not connected: {', '.join(map(str, away[:10]))}" if away else ""


def message_of(number: int, sha256: str, bundle: bytes, contributions: Sequence[Contribution]) -> RoundMessage:
    """Return the message of the round that begins after another one was put on the disk.

    number: of the round that begins. sha256: of its model. bundle: what the round before added. contributions: to it.
    """
    return RoundMessage(number, bytes.fromhex(sha256)[:4], bundle, tuple(contributions))
