"""Clients of a training over MQTT: they follow the model, compute what they are asked for, and send a few bytes."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmpdd.documents import is_count
from fedmpdd.errors import ConfigError, FedmpddError, OrderError, WireError
from fedmpdd.mqtt.broker import Broker
from fedmpdd.mqtt.connection import Connection
from fedmpdd.mqtt.follower import Follower, Lack
from fedmpdd.mqtt.messages import Contribution, RoundMessage, marked_clients, pack_update
from fedmpdd.mqtt.terms import Terms
from fedmpdd.mqtt.topics import Topics
from fedmpdd.uplink import SystemNoise
from fedmpdd.uplink.policy import ClientPolicy
from fedmpdd.wire.frames import payload_of

if TYPE_CHECKING:  # it needs a package that others do not
    from fedmpdd.mqtt.secure_client import Members

Float32 = NDArray[np.float32]
Gradient = Callable[[Float32, int, int], Float32]  # the model, the round and a client's number to its gradient
MOST_EARLY = 100  # messages that are kept until the terms are here
TAIL_S = 3.0  # seconds after which the retained messages of a tail are here, if there are more
TAIL_TIME = "tail"  # in the inbox: these seconds are over
LONG_S = 10.0  # without a server's terms after which a client says that it waits, and so again after twice as long
PATIENCE = 2  # rounds that begin without an acknowledgement before an update is sent again

_log = logging.getLogger("fedmpdd")


class Encoder(Protocol):
    """What computes the updates of some clients of this process."""

    def updates(self, round_number: int, flat: Float32, clients: Sequence[int]) -> list[bytes]:
        """Return the bare frames of clients in a round that starts from this model."""


# In a training of secure sums it is a fedmpdd.mqtt.secure_client.SumEncoder too.


class GradientEncoder:
    """Encodes the gradients that somebody's function computes, by the path that all engines take.

    Args:
        terms: of the training.
        gradient: from the model [d], the number of the round and that of the client to the client's gradient [d].

    """

    def __init__(self, terms: Terms, gradient: Gradient) -> None:
        self._terms, self._gradient = terms, gradient
        self._uplinks = [terms.uplink(link) for link in range(len(terms.sessions))]

    def updates(self, round_number: int, flat: Float32, clients: Sequence[int]) -> list[bytes]:
        """See Encoder."""
        gradients = np.stack([self._gradient_of(flat, round_number, one) for one in clients])
        keys = [self._terms.key(round_number, client) for client in clients]
        if len(self._uplinks) == 1:
            batch = self._uplinks[0].encode(round_number, gradients, keys, clients).batch
            return [payload_of(update) for update in batch.updates()]
        payloads = []
        for row, key, client in zip(gradients, keys, clients, strict=True):
            uplink = self._uplinks[client % len(self._uplinks)]
            (update,) = uplink.encode(round_number, row[np.newaxis], [key], [client]).batch.updates()
            payloads.append(payload_of(update))
        return payloads

    def _gradient_of(self, flat: Float32, round_number: int, client: int) -> Float32:
        """What the function gives for a client; it has a model of its own, which it may write to."""
        given = self._gradient(flat.copy(), round_number, client)
        try:
            gradient = np.asarray(given)
        except ValueError:  # lists of different lengths
            gradient = np.empty(0, object)
        if gradient.shape != flat.shape or gradient.dtype.kind not in "fiu":
            raise ConfigError(
                f"gradient(model, {round_number}, {client}) returned {_shown(given)}, expected an array of "
                f"{flat.size:,} real numbers, one for each of the model"
            )
        return gradient.astype(np.float32, copy=False)

    def elements(self, round_number: int, flat: Float32, clients: Sequence[int]) -> list[NDArray[np.uint64]]:
        """See fedmpdd.mqtt.secure_client.SumEncoder."""
        from fedmpdd.mqtt.secure import sum_uplink  # needs a package that others do not

        uplink, rows = sum_uplink(self._terms), []
        for client in clients:
            gradient = self._gradient_of(flat, round_number, client)
            key = self._terms.key(round_number, client)
            rows.append(uplink.elements(gradient[np.newaxis], [key], [SystemNoise()])[0])
        return rows


Prepare = Callable[[Terms], tuple[Encoder, Float32 | None]]  # the terms to an encoder and, if known, the initial model


@dataclass
class _Sent:
    """An update that the server did not acknowledge yet."""

    round: int
    data: bytes
    heard: int = 0  # rounds that began since


class Client:
    """Some clients of a training, in one process with one copy of the model; each has a connection of its own.

    Args:
        broker: to connect to: a Broker, or its address.
        name: of the training.
        numbers: of the clients, each from 0 to one less than there are.
        gradient: from the model [d], the round and a client's number to its gradient [d].
        initial: the model that the training begins with [d], where it is known; else it is fetched.
        prepare: instead of gradient and initial: from the terms to an encoder and the initial model.
        policy: what these clients insist on, whatever the server's terms say; by default nothing.
        on_round: called with the message of every round whose model is here.

    Raises:
        ConfigError: the address, the name or the numbers are none.

    Example:
        >>> client = Client("mqtt://localhost", "site-4", [17], gradient=mine)  # doctest: +SKIP
        >>> model = client.run()  # doctest: +SKIP

    """

    def __init__(
        self,
        broker: Broker | str,
        name: str,
        numbers: Sequence[int],
        gradient: Gradient | None = None,
        *,
        initial: Float32 | None = None,
        prepare: Prepare | None = None,
        policy: ClientPolicy | None = None,
        on_round: Callable[[RoundMessage], None] | None = None,
    ) -> None:
        self._broker = Broker.of(broker)
        self._topics = Topics(name)
        listed = numbers.tolist() if isinstance(numbers, np.ndarray) else numbers
        listed = list(listed) if isinstance(listed, Iterable) else []
        if not listed or len(set(listed)) != len(listed) or any(not is_count(one) or one >= 2**32 for one in listed):
            raise ConfigError(f"numbers = {numbers!s:.80}: expected different numbers of clients, from 0")
        if (gradient is None) == (prepare is None):
            raise ConfigError("expected gradient, a function of model, round and client, or prepare; and one of them")
        for words, function in (("gradient", gradient), ("prepare", prepare), ("on_round", on_round)):
            if function is not None and not callable(function):
                raise ConfigError(f"{words} = {function!r:.60}: expected a function")
        if policy is not None and not isinstance(policy, ClientPolicy):
            raise ConfigError(f"policy = {policy!r:.60}: expected a ClientPolicy")
        if initial is not None and (not isinstance(initial, np.ndarray) or initial.ndim != 1):
            raise ConfigError(f"initial is {_shown(initial)}: expected a vector of float32 [d]")
        self._numbers = listed
        self._prepare: Prepare = prepare or (lambda terms: (GradientEncoder(terms, _given(gradient)), initial))
        self._policy = policy or ClientPolicy()
        self._updates = 0  # of a client, the one that sent most
        self._on_round = on_round
        self._inbox: asyncio.Queue[tuple[str, bytes, int]] = asyncio.Queue()
        self._early: deque[tuple[str, bytes, int]] = deque(maxlen=MOST_EARLY)
        self._connections: dict[int, Connection] = {}
        self._terms: Terms | None = None
        self._follower: Follower | None = None
        self._encoder: Encoder | None = None
        self._heard = b""  # the last message of a round: each connection brings it, and one is enough
        self._members: Members | None = None  # where updates go into secure sums
        self._sent: dict[int, _Sent] = {}
        self._computed = -1  # the last round that was computed
        self._start: int | None = None  # of the server, as its last message said
        self._asks: str | None = None  # the topic that is subscribed to for want of a model
        self._publishing: set[asyncio.Task[Any]] = set()
        self.sent_again = 0  # updates, because they were not acknowledged
        self.given_up = 0  # updates that were too late to be sent again

    def run(self) -> Float32:
        """Take part until the training is over, and return its model [d].

        Raises:
            RunError: the broker cannot be reached, or refuses.
            OrderError: the training is none that this client can take part in.

        """
        return asyncio.run(self.take_part())

    async def take_part(self) -> Float32:
        """Take part as `run` does, in a loop of asyncio that runs already."""
        topics = self._topics
        for number in self._numbers:
            self._connections[number] = Connection(
                self._broker.as_client(number),
                f"fedmpdd-{topics.name}-{number}",
                [topics.terms, topics.round, topics.missing],
                partial(self._take, number),
                will=(topics.presence(number), b"0"),
                connected=partial(self._take, number, "", b""),
            )
        connected = [asyncio.create_task(one.run()) for one in self._connections.values()]
        work: asyncio.Task[None] = asyncio.create_task(self._work())
        silence: asyncio.Task[None] = asyncio.create_task(self._report_silence())
        try:
            done, _ = await asyncio.wait([work, *connected], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            assert self._follower is not None
            await asyncio.gather(*(self._announce(number, b"0") for number in self._numbers))
            return self._follower.flat
        finally:
            tasks: list[asyncio.Task[Any]] = [work, silence, *connected, *self._publishing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report_silence(self) -> None:
        """Say so where no server comes: its name may be another one."""
        pause = LONG_S
        while True:
            await asyncio.sleep(pause)
            if self._terms is not None:
                return
            _log.warning(
                "%s has no training named %r; waiting for its server: is the name right, and does the server run?",
                self._broker,
                self._topics.name,
            )
            pause *= 2

    def _take(self, number: int, topic: str, payload: bytes) -> None:
        self._inbox.put_nowait((topic, payload, number))

    async def _announce(self, number: int, state: bytes) -> bool:
        return await self._connections[number].publish(self._topics.presence(number), state, retain=True)

    # ---------------------------------------------------------------------------------------------- messages

    async def _work(self) -> None:
        """Hear messages and compute, until the training is over."""
        while True:
            topic, payload, number = await self._inbox.get()
            try:
                self._hear(topic, bytes(payload), number)
            except WireError as error:
                _log.warning("client %s: a message at %s does not count: %s", number, topic, error)
            if self._follower is None:
                continue
            await self._ask_for_model()
            if self._follower.lack is Lack.NOTHING and self._inbox.empty() and await self._compute():
                return

    def _hear(self, topic: str, payload: bytes, number: int) -> None:
        topics = self._topics
        if not topic:  # connected
            self._publish_soon(self._announce(number, b"1"))
            if self._connections[number].count > 1:
                self._asks = None
                self._send_again([number])
        elif topic == TAIL_TIME:
            if self._follower is not None and self._follower.lack is Lack.TAIL:
                self._follower.give_up_tail()
        elif not payload:  # a retained message that was cleared
            return
        elif topic == topics.terms:
            self._agree(payload)
        elif self._follower is None:  # the terms come first; what overtakes them is read after them
            self._early.append((topic, payload, number))
        elif topic == topics.round and payload == self._heard:
            return
        elif topic == topics.round or topic.startswith(topics.tail("")):
            before = self._follower.newest
            message = self._follower.hear_round(payload)
            self._heard = payload if topic == topics.round else self._heard
            if topic == topics.round and (before is None or message != before):
                self._take_acknowledgements(message)
        elif topic == topics.missing:
            assert self._terms is not None
            round_number, missing = marked_clients(payload, self._terms.clients)
            mine = [one for one, sent in self._sent.items() if one in missing and sent.round == round_number]
            self._send_again([one for one in mine if one == number])
        elif self._members is not None and topic in (topics.sum, topics.to(number)):
            self._members.hear(number, payload)
        elif topic.startswith(topics.model("")):
            self._follower.hear_part(payload)

    def _agree(self, payload: bytes) -> None:
        """Take the terms, once; others than those that this client works by end its part."""
        if self._terms is not None and payload == self._terms.pack():
            return
        terms = Terms.unpack(payload)
        if self._terms is not None:
            raise OrderError(
                f"training {self._topics.name!r} has other terms now ({', '.join(terms.differences(self._terms))}): "
                "another one began under its name; start the client anew to take part in it"
            )
        if wrong := [one for one in self._numbers if one >= terms.clients]:
            raise OrderError(f"client {wrong[0]} is none of the {terms.clients} of training {self._topics.name!r}")
        encoder, initial = self._prepare(terms)
        self._terms, self._encoder, self._follower = terms, encoder, Follower(terms, initial)
        if terms.secure:
            self._join_sums(terms, encoder)
        while self._early:
            self._inbox.put_nowait(self._early.popleft())

    def _join_sums(self, terms: Terms, encoder: Encoder) -> None:
        from fedmpdd.mqtt.secure_client import Members, SumEncoder  # needs a package that others do not

        if not isinstance(encoder, SumEncoder):
            raise OrderError("the training is one of secure sums, and this client's encoder has no elements()")
        self._members = Members(self._topics.name, terms, encoder, self._policy)
        for number, connection in self._connections.items():
            for topic in (self._topics.to(number), self._topics.sum):
                self._publish_soon(connection.subscribe(topic, again=True))

    def _take_acknowledgements(self, message: RoundMessage) -> None:
        """Forget updates that are on the server's disk, and send those again that it should have by now."""
        assert self._terms is not None
        counted = set(message.contributions)
        again = []
        began_anew = self._start is not None and message.start != self._start
        self._start = message.start
        for number, sent in list(self._sent.items()):
            late = message.round - sent.round
            if Contribution(number, late - 1) in counted:
                del self._sent[number]
                continue
            if late > self._terms.arrivals.max_age:
                del self._sent[number]
                self.given_up += 1
                continue
            sent.heard += 1
            if began_anew or sent.heard >= PATIENCE:
                again.append(number)
        self._send_again(again)

    async def _ask_for_model(self) -> None:
        """Subscribe to what brings the model to the newest round, and leave it once it is here."""
        assert self._follower is not None
        topics, lack = self._topics, self._follower.lack
        wanted = {Lack.TAIL: topics.tail("+"), Lack.MODEL: topics.model("+")}.get(lack)
        if wanted == self._asks:
            return
        connection = self._connections[self._numbers[0]]
        if self._asks is not None:
            await connection.unsubscribe(self._asks)
        self._asks = wanted
        if wanted is not None:
            _log.info("training %s: the model here lacks %s; asking the broker", topics.name, lack.value)
            await connection.subscribe(wanted)
        if lack is Lack.TAIL:
            asyncio.get_running_loop().call_later(TAIL_S, self._take, self._numbers[0], TAIL_TIME, b"")

    # --------------------------------------------------------------------------------------------- updates

    async def _compute(self) -> bool:
        """Compute for the newest round, if that is still to be done; return whether the training is over."""
        assert self._follower is not None
        assert self._terms is not None
        assert self._encoder is not None
        newest = self._follower.newest
        assert newest is not None
        if newest.round > self._computed and self._on_round is not None:
            self._on_round(newest)
        if newest.is_over:
            return True
        if self._members is not None:
            self._computed = newest.round
            for number, data in await asyncio.to_thread(self._members.answers, newest.round, self._follower.flat):
                topic = self._topics.update(number)
                self._publish_soon(self._connections[number].publish(topic, data, alias=True))
            return False
        if newest.round <= self._computed:
            return False
        self._computed = newest.round
        asked = set(self._terms.sample(newest.round).tolist())
        clients = [number for number in sorted(self._numbers) if number in asked]
        if not clients:
            return False
        flat = self._follower.flat
        try:
            self._policy.check(self._terms.order(newest.round), self._updates)
            payloads = await asyncio.to_thread(self._encoder.updates, newest.round, flat, clients)
        except ConfigError:  # the next round would go no better
            raise
        except FedmpddError as error:
            _log.warning("round %s: clients %s cannot send: %s", newest.round, clients[:5], error)
            return False
        self._updates += 1  # of some; of the others it is fewer
        for number, payload in zip(clients, payloads, strict=True):
            self._sent[number] = _Sent(newest.round, pack_update(newest.round, payload))
            self._publish(number)
        return False

    def _send_again(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (sent := self._sent.get(number)) is not None:
                sent.heard = 0
                self.sent_again += 1
                self._publish(number)

    def _publish(self, number: int) -> None:
        data = self._sent[number].data
        self._publish_soon(self._connections[number].publish(self._topics.update(number), data, alias=True))

    def _publish_soon(self, sending: Any) -> None:
        task = asyncio.get_running_loop().create_task(sending)
        self._publishing.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._publishing.discard)


def _shown(value: Any) -> str:
    """Shape and type of what should have been a gradient, in a line."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return f"{type(value).__name__} {value!r:.60}"


def _given(gradient: Gradient | None) -> Gradient:
    assert gradient is not None
    return gradient
