"""A connection that comes back by itself: what each side of a training talks to the broker through."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from fedmpdd.errors import RunError
from fedmpdd.mqtt.broker import Broker

_log = logging.getLogger("fedmpdd")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 15.0  # seconds before connecting again; a broker that restarts is not stormed
SHORT_S = 5.0  # a connection that was lost before: broker and way to it are not well yet
MOST_SHORT = 3  # such connections in a row, from which on another process may be the reason
_TAKEN_OVER = "taken over"  # another connection has the same identifier: they would throw each other out for ever
_FINAL = ("not authori", "bad user", "banned", "unsupported protocol", "certificate", "not valid", _TAKEN_OVER)


class Connection:
    """One side's connection.

    Args:
        broker: to connect to.
        identifier: by which the broker knows this side again.
        topics: to subscribe to, at least one: by the answer it is known that the connection lasts.
        receive: called with topic and payload of every message.
        will: topic and payload that the broker publishes when the connection is lost.
        connected: called after every connection was made, before messages come.

    """

    def __init__(
        self,
        broker: Broker,
        identifier: str,
        topics: Iterable[str],
        receive: Callable[[str, bytes], None],
        *,
        will: tuple[str, bytes] | None = None,
        connected: Callable[[], None] | None = None,
    ) -> None:
        self._broker, self._identifier = broker, identifier
        self._topics, self._receive = list(topics), receive
        self._will, self._connected = will, connected
        self._client: Any = None
        self._aliases: dict[str, int] = {}
        self._ready = asyncio.Event()
        self._pause = FIRST_PAUSE
        self._begun: float | None = None  # when the connection was made that is here, or was lost just now
        self._short = 0  # connections in a row that were lost at once
        self.count = 0  # connections so far

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises:
            RunError: the first connection could not be made, or the broker refuses this side for good.

        """
        while True:
            try:
                await self._talk()
            except _errors() as error:
                text = _words_of(error)
                if self.count == 0 or any(words in text.lower() for words in _FINAL):
                    raise RunError(f"{self._broker} cannot be used: {text}; {_remedy(text)}") from None
                words = "connecting again" + self._judge()
                _log.warning("%s: the connection of %s is lost: %s; %s", self._broker, self._identifier, text, words)
            finally:
                self._ready.clear()
                self._client = None
            # Some later than others: a broker that begins anew is not to be asked by all of them at once.
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _judge(self) -> str:
        """See how long the connection lasted that was lost, and return words where none of the last ones did."""
        if self._begun is not None:
            self._short = self._short + 1 if time.monotonic() - self._begun < SHORT_S else 0
            if self._short < MOST_SHORT:
                self._pause = FIRST_PAUSE
        self._begun = None
        # Brokers such as mosquitto 2.0.11 do not say that they ended one connection for another.
        return "; if another process is this client, or this server, too, stop one of them" * (
            self._short >= MOST_SHORT
        )

    async def _talk(self) -> None:
        """Connect, and take messages until the connection is lost."""
        async with self._broker.connection(self._identifier, self._will) as client:
            client.pending_calls_threshold = 100_000
            await self._begin(client)
            async for message in client.messages:
                self._receive(message.topic.value, message.payload)

    async def _begin(self, client: Any) -> None:
        self._aliases.clear()
        # A broker that ends a connection as soon as it made it would go unnoticed otherwise.
        await client.subscribe([(topic, 1) for topic in self._topics])
        self._client = client
        self._begun = time.monotonic()
        self.count += 1
        self._ready.set()
        if self._connected is not None:
            self._connected()

    async def subscribe(self, topic: str, *, again: bool = False) -> None:
        """Subscribe to a topic too, as long as this connection lasts; again: and whenever it was made anew."""
        import aiomqtt

        if again:
            self._topics.append(topic)
        await self._ready.wait()
        try:
            await self._client.subscribe([(topic, 1)])
        except (aiomqtt.MqttError, AttributeError) as error:  # it was lost in between
            if not again:
                raise
            _log.info("%s: %s is subscribed to later: %s", self._broker, topic, _words_of(error))

    async def unsubscribe(self, topic: str) -> None:
        """Leave a topic."""
        await self._ready.wait()
        await self._client.unsubscribe(topic)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False, alias: bool = False) -> bool:
        """Publish with QoS 1, and return whether the broker has it; who publishes decides whether to do it again.

        topic: of the message. payload: its bytes. retain: whether the broker keeps it for who comes later.
        alias: whether the topic is sent once in a connection, and a number of two bytes from then on.
        """
        await self._ready.wait()
        try:
            await self._send(topic, payload, retain, alias)
        except _errors(ValueError, AttributeError) as error:  # it was lost in between
            _log.info("%s: a message of %s did not arrive: %s", self._broker, self._identifier, _words_of(error))
            return False
        return True

    async def _send(self, topic: str, payload: bytes, retain: bool, alias: bool) -> None:
        name, properties = self._alias_of(topic) if alias else (topic, None)
        await self._client.publish(name, payload, qos=1, retain=retain, properties=properties)

    def _alias_of(self, topic: str) -> tuple[str, Any]:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        make: Any = Properties  # paho's own types say nothing of it
        properties = make(PacketTypes.PUBLISH)
        known = topic in self._aliases
        properties.TopicAlias = self._aliases.setdefault(topic, len(self._aliases) + 1)
        return "" if known else topic, properties


class LeanConnection(Connection):
    """A server's connection: ten thousand clients send to it, and aiomqtt takes most of its time for a message."""

    async def _talk(self) -> None:
        async with self._broker.lean_connection(self._identifier, self._receive) as client:
            await self._begin(client)
            await client.listen()

    async def _send(self, topic: str, payload: bytes, retain: bool, alias: bool) -> None:
        await self._client.publish(topic, payload, retain=retain)


def _errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """What shows that a connection is lost, of aiomqtt too where that is installed, and others."""
    try:
        from aiomqtt import MqttError
    except ModuleNotFoundError:
        return (OSError, *others)
    return (OSError, MqttError, *others)


def _words_of(error: BaseException) -> str:
    """What an error says, and what the broker gave as the reason where the library keeps it behind another error."""
    words = str(error) or type(error).__name__
    reason = getattr(error.__cause__, "rc", None)
    return words if reason is None else f"{words}: {reason}"


def _remedy(text: str) -> str:
    """What to do about an error, in words."""
    lower = text.lower()
    if "certificate" in lower or "ssl" in lower or "tls" in lower:
        return "check the certificates: --ca, --certificate and --key, and the name that the broker's is for"
    if "not authori" in lower or "bad user" in lower:
        return "check user name and password, and what the broker's ACL allows"
    if _TAKEN_OVER in lower:
        return "another process is this client, or this server, already; stop one of them"
    if "protocol" in lower:
        return "the broker must speak MQTT 5"
    return "is a broker running there? Start one, or name another with --broker"
