"""The server's connection, in a thread of its own: retained messages that a broker may lose, and updates that come."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fedmpdd.errors import FedmpddError, RunError
from fedmpdd.mqtt.broker import Broker
from fedmpdd.mqtt.connection import FIRST_PAUSE, LeanConnection
from fedmpdd.mqtt.topics import Topics

_log = logging.getLogger("fedmpdd")
DROPPED = "$SYS/broker/publish/messages/dropped"  # mosquitto's count of messages that it threw away
PATIENCE_S = 30.0  # for the first connection, and for the last messages
SLOWEST = 20_000  # bytes a second at which a model may still reach the broker


class Post:
    """Publishes for a server, and hands it what clients send.

    Args:
        broker: to connect to.
        topics: of the training.
        receive: called with a client's number and what it sent, in the thread of the connection.
        fail: called with a sentence where the connection ends for good.

    """

    def __init__(
        self, broker: Broker, topics: Topics, receive: Callable[[int, bytes], None], fail: Callable[[str], None]
    ) -> None:
        self._broker, self._topics = broker, topics
        self._receive, self._fail = receive, fail
        self._updates = topics.update("")
        self._retained: dict[str, bytes] = {}
        self._present: set[int] = set()
        self._kept_terms: bytes | None = None
        self._dropped: int | None = None
        self._ready = threading.Event()
        self._problem: FedmpddError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: LeanConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name="fedmpdd-mqtt", daemon=True)

    @property
    def present(self) -> frozenset[int]:
        """The clients that are connected, as far as they said so."""
        return frozenset(self._present)

    def start(self) -> bytes | None:
        """Connect, and return the terms that the broker has retained for this training; None for none.

        Raises:
            RunError: the broker cannot be reached, or refuses.

        """
        self._thread.start()
        if not self._ready.wait(PATIENCE_S) and self._problem is None:
            raise RunError(f"{self._broker} did not answer within {PATIENCE_S:.0f} s; is it an MQTT 5 broker?")
        if self._problem is not None:
            raise self._problem
        return self._kept_terms

    def publish(self, messages: Sequence[tuple[str, bytes]], *, retain: bool = True, wait: bool = False) -> None:
        """Publish messages in their order; retained ones again whenever the broker was away.

        wait: return only when the broker has them.
        """
        if retain:
            self._retained.update(messages)
            for topic in [topic for topic, payload in messages if not payload]:
                self._retained.pop(topic, None)  # it was cleared
        if self._loop is None:
            raise RunError("the server is not connected; call start first")
        sending = asyncio.run_coroutine_threadsafe(self._send(messages, retain, until_there=wait), self._loop)
        if not wait:
            return
        patience = PATIENCE_S + sum(len(payload) for _, payload in messages) / SLOWEST
        try:
            sending.result(patience)
        except TimeoutError:
            sending.cancel()
            raise RunError(
                f"{self._broker} did not take the server's messages within {patience:.0f} s; go on with the run once "
                "it is back"
            ) from None

    async def _send(self, messages: Sequence[tuple[str, bytes]], retain: bool, *, until_there: bool = False) -> None:
        assert self._connection is not None
        for topic, payload in messages:
            while not await self._connection.publish(topic, payload, retain=retain) and until_there:
                await asyncio.sleep(FIRST_PAUSE)  # for the connection to notice, too, that it is none

    async def _send_retained(self) -> None:
        """Write again what a broker may have lost: at each topic what belongs there by then, and nothing older."""
        for topic in list(self._retained):
            await self._send([(topic, self._retained.get(topic, b""))], True)

    def close(self) -> None:
        """End the connection, once what was published is with the broker."""
        if self._loop is None or self._task is None or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE_S)

    # ---------------------------------------------------------------------------------------- in the thread

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except FedmpddError as error:
            self._problem = error
            self._fail(str(error))
        except Exception as error:  # a fault of ours: without this line the round would wait for ever
            _log.exception("%s: the server's connection has failed", self._broker)
            self._problem = RunError(
                f"{self._broker}: the server's connection has failed: {error!r}; go on with the run"
            )
            self._fail(str(self._problem))
        self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        topics = self._topics
        wanted = [topics.update("+"), topics.presence("+"), topics.terms, DROPPED]
        self._connection = LeanConnection(
            self._broker, f"fedmpdd-{topics.name}-server", wanted, self._hear, connected=self._connected
        )
        self._task = asyncio.create_task(self._connection.run())
        await self._task

    def _connected(self) -> None:
        assert self._loop is not None
        if self._connection is not None and self._connection.count > 1:
            _log.info("%s: connected again; its retained messages are written again", self._broker)
            self._again = self._loop.create_task(self._send_retained())
        else:
            self._loop.call_later(1.0, self._ready.set)  # time for retained terms to come, if there are none

    def _hear(self, topic: str, payload: Any) -> None:
        if topic.startswith(self._updates):  # first, since thousands of them come for one of the others
            client = self._topics.client_of(topic)
            if client is not None:
                self._receive(client, bytes(payload))
            return
        if topic == DROPPED:
            self._note_dropped(payload)
            return
        if topic == self._topics.terms:
            self._kept_terms = bytes(payload)
            self._ready.set()
            return
        client = self._topics.client_of(topic)
        if client is None:
            return
        if topic == self._topics.presence(client):
            (self._present.add if payload == b"1" else self._present.discard)(client)

    def _note_dropped(self, payload: Any) -> None:
        try:
            count = int(payload)
        except ValueError:
            return
        if self._dropped is not None and count > self._dropped:
            _log.warning(
                "%s threw away %s messages; allow it more: max_queued_messages and max_inflight_messages "
                "(docs/mqtt.md)",
                self._broker,
                count - self._dropped,
            )
        self._dropped = count
