"""Ten thousand clients in one process: raw sockets and the few packets of MQTT 5 that a client needs, loopback only."""

import asyncio
import logging
import resource
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmpdd.errors import RunError
from fedmpdd.mqtt.messages import marked_clients
from fedmpdd.mqtt.topics import Topics

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x40, 0x82, 0x90
QOS_1 = 0x02
AT_ONCE = 200  # connections that are being made at a time
SESSION_S = 3600
PATIENCE_S = 120.0

_log = logging.getLogger("fedmpdd")


def raise_limit(needed: int) -> None:
    """Allow this process and its children so many open files, or raise RunError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RunError(f"{needed:,} open files are needed, and this user may have {hard:,}: raise ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def packet(kind: int, body: bytes) -> bytes:
    """Return an MQTT packet.

    >>> packet(PUBACK, bytes(2)).hex()
    '40020000'
    """
    size, length = len(body), b""
    while size > 127:
        length += bytes([size % 128 + 128])
        size //= 128
    return bytes([kind]) + length + bytes([size]) + body


def text(words: str) -> bytes:
    """Return a string as MQTT has it."""
    data = words.encode()
    return struct.pack(">H", len(data)) + data


class Member(asyncio.Protocol):
    """One client's connection.

    Args:
        swarm: that it belongs to.
        number: of the client.
        topics: that it subscribes to.

    """

    def __init__(self, swarm: "Swarm", number: int, topics: Sequence[str]) -> None:
        self._swarm, self._number, self._topics = swarm, number, topics
        self._transport: Any = None
        self._rest = b""
        self._mid = 0
        self._has_alias = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        session = struct.pack(">BBI", 5, 0x11, SESSION_S)
        body = text("MQTT") + bytes([5, 0]) + struct.pack(">H", 0) + session
        transport.write(packet(CONNECT, body + text(f"swarm-{self._swarm.name}-{self._number}")))

    def connection_lost(self, exc: Exception | None) -> None:
        self._swarm.lost += 1
        if not self.ready.done():
            self.ready.set_exception(RunError(f"the broker closed the connection of client {self._number}: {exc}"))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while at + 2 <= len(data):
            size, shift, head = 0, 0, at + 1
            while head < len(data):
                size |= (data[head] & 127) << shift
                shift, head = shift + 7, head + 1
                if data[head - 1] < 128:
                    break
            else:
                break
            if head + size > len(data):
                break
            self._take(data[at], data[head : head + size])
            at = head + size
        self._rest = data[at:]

    def _take(self, kind: int, body: bytes) -> None:
        if kind == PUBACK:
            self._swarm.acknowledged += 1
        elif kind & 0xF0 == PUBLISH:
            size = int.from_bytes(body[:2], "big")
            topic, at = body[2 : 2 + size].decode(), 2 + size
            if kind & 0x06:
                self._transport.write(packet(PUBACK, body[at : at + 2]))
                at += 2
            self._swarm.hear(self._number, topic, body[at + 1 + body[at] :])
        elif kind == CONNACK:
            if body[1]:
                self.ready.set_exception(RunError(f"the broker refuses client {self._number}: reason {body[1]}"))
                return
            if not self._topics:
                self._begin()
                return
            wanted = b"".join(text(topic) + b"\x01" for topic in self._topics)
            self._transport.write(packet(SUBSCRIBE, b"\x00\x01\x00" + wanted))
        elif kind == SUBACK:
            self._begin()

    def _begin(self) -> None:
        presence = text(self._swarm.topics.presence(self._number)) + struct.pack(">H", self._next_mid())
        self._transport.write(packet(PUBLISH | QOS_1 | 1, presence + b"\x001"))
        self.ready.set_result(None)

    def _next_mid(self) -> int:
        self._mid = self._mid % 65_535 + 1
        return self._mid

    def publish(self, payload: bytes) -> None:
        """Send an update; its topic goes once, an alias from then on."""
        topic = b"\x00\x00" if self._has_alias else text(self._swarm.topics.update(self._number))
        self._has_alias = True
        head = topic + struct.pack(">HBBH", self._next_mid(), 3, 0x23, 1)
        self._transport.write(packet(PUBLISH | QOS_1, head + payload))

    def close(self) -> None:
        """End the connection."""
        self._transport.abort()


class Swarm:
    """Many clients of a training, whose updates were made before.

    Args:
        name: of the training.
        port: of the broker, on loopback.
        clients: how many.
        payloads: bare frames, taken in turns.
        listens: whether every client hears of rounds; else one connection does, for all.
        ahead: updates that may be on their way beyond those of the round that begins; None where all clients answer
            every round once, and once more when they are asked again.
        enough: updates of a round, where `ahead` is given.

    """

    def __init__(
        self,
        name: str,
        port: int,
        clients: int,
        payloads: Sequence[bytes],
        *,
        listens: bool = False,
        ahead: int | None = None,
        enough: int = 0,
    ) -> None:
        self.topics, self.name = Topics(name), name
        self._port, self._clients, self._payloads = port, clients, payloads
        self._listens, self._ahead, self._enough = listens, ahead, enough
        self._members: list[Member] = []
        self.sent = self.sent_again = self.acknowledged = self.lost = self.rounds_heard = 0
        self._round = -1
        self._is_over = asyncio.Event()
        self._next = 0
        self._due: deque[int] = deque()
        self._wake = asyncio.Event()

    async def connect(self) -> float:
        """Connect everybody, and return how many seconds that took."""
        begun = time.monotonic()
        loop, places = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)
        alone = [self.topics.round, self.topics.missing]

        async def join(number: int) -> Member:
            async with places:
                # One that does not listen is asked again all the same.
                topics = alone if self._listens or number == 0 else []
                _, member = await loop.create_connection(lambda: Member(self, number, topics), "127.0.0.1", self._port)
                await asyncio.wait_for(member.ready, PATIENCE_S)
                return member

        self._members = list(await asyncio.gather(*(join(number) for number in range(self._clients))))
        return time.monotonic() - begun

    def hear(self, number: int, topic: str, payload: bytes) -> None:
        """Take a message that came to a client."""
        if topic == self.topics.missing:
            if number == 0:
                _, missing = marked_clients(payload, self._clients)
                self.sent_again += len(missing)
                self._due.extend(sorted(missing))
                self._wake.set()
            return
        if topic != self.topics.round:
            return
        if not payload:  # the retained message of a training before was cleared
            return
        (round_number,) = struct.unpack_from("<I", payload, 4)
        self.rounds_heard += 1
        if payload[1] & 32:
            self._is_over.set()
            self._wake.set()
            return
        if self._listens and self._ahead is None:
            self._round = round_number
            self._due.append(number)
            self._wake.set()
        elif number == 0 and round_number > self._round:
            self._round = round_number
            if self._ahead is None:
                self._due.extend(range(self._clients))
            self._wake.set()

    async def work(self) -> None:
        """Send updates until the training is over."""
        while not self._is_over.is_set():
            await self._wake.wait()
            self._wake.clear()
            if self._ahead is not None and self._round >= 0:
                limit = self._round * self._enough + self._enough + self._ahead
                count = max(0, limit - self.sent)
                self._due.extend((self._next + i) % self._clients for i in range(count))
                self._next = (self._next + count) % self._clients
            while self._due:
                for _ in range(min(100, len(self._due))):
                    number = self._due.popleft()
                    payload = self._payloads[number % len(self._payloads)]
                    self._members[number].publish(struct.pack("<H", self._round % 2**16) + payload)
                    self.sent += 1
                await asyncio.sleep(0)  # let acknowledgements in

    def close(self) -> None:
        """End all connections."""
        for member in self._members:
            member.close()


def payloads_of(codec: Any, d: int, count: int = 64) -> list[bytes]:
    """Return bare frames of made-up gradients."""
    from fedmpdd.directions import Key
    from fedmpdd.wire.frames import payload_of

    random = np.random.default_rng(1)
    return [payload_of(codec.encode(random.standard_normal(d).astype(np.float32), Key(n + 1))) for n in range(count)]


def run_swarm(make: Callable[[], Swarm], say: Callable[[Any], None]) -> None:
    """Be a swarm until its training is over; say how it went."""

    async def run() -> None:
        swarm = make()
        say(("connected", await swarm.connect()))
        await swarm.work()
        counts = {"sent": swarm.sent, "sent_again": swarm.sent_again, "acknowledged": swarm.acknowledged}
        say(("over", {**counts, "rounds_heard": swarm.rounds_heard, "lost_connections": swarm.lost}))
        swarm.close()

    asyncio.run(run())
