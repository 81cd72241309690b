"""A proxy between a client and its broker that counts every byte by message: MQTT packets, or records of TLS.

TCP's own headers are not seen. Of TLS one sees records, and mosquitto and Python write one packet into one record, so
that the sizes of records tell the packets apart.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread

CHUNK = 65_536
HANDSHAKE, APPLICATION = 0x16, 0x17  # types of records
TLS_EXTRA = 22  # bytes of a record of TLS 1.3 beside what is in it: 5 of head, 1 of type, 16 of tag
PACKETS = {0: "?", 1: "connect", 2: "connack", 3: "publish", 4: "puback", 8: "subscribe", 9: "suback"}
PACKETS |= {10: "unsubscribe", 11: "unsuback", 12: "pingreq", 13: "pingresp", 14: "disconnect"}


@dataclass(frozen=True)
class Message:
    """A packet or a record on the wire: what it is, and all of its bytes."""

    kind: str
    nbytes: int
    head: bytes


@dataclass
class Stream:
    """One direction of a connection, cut into its messages."""

    messages: list[Message] = field(default_factory=list)
    total: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    _is_tls: bool | None = None

    def take(self, data: bytes) -> None:
        """Count bytes that crossed the socket."""
        self.total += len(data)
        if self._is_tls is None:
            self._is_tls = data[0] in (HANDSHAKE, 0x14, 0x15, APPLICATION)  # of MQTT's first bytes none is such a one
        self._rest += data
        while (size := (_record_bytes if self._is_tls else _packet_bytes)(self._rest)) is not None:
            if len(self._rest) < size:
                return
            head = bytes(self._rest[:64])
            kind = ("tls" if head[0] == APPLICATION else "set-up") if self._is_tls else PACKETS.get(head[0] >> 4, "?")
            self.messages.append(Message(kind, size, head))
            del self._rest[:size]


def _record_bytes(data: bytearray) -> int | None:
    return 5 + int.from_bytes(data[3:5], "big") if len(data) >= 5 else None


def _packet_bytes(data: bytearray) -> int | None:
    size = 0
    for i in range(1, min(5, len(data))):
        size |= (data[i] & 127) << 7 * (i - 1)
        if data[i] < 128:
            return 1 + i + size
    return None


@dataclass
class Leg:
    """What crossed a client's socket."""

    up: Stream = field(default_factory=Stream)
    down: Stream = field(default_factory=Stream)


async def _serve(legs: list[Leg], target: tuple[str, int], ready: Callable[[int], None], stop: asyncio.Event) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leg = Leg()
        legs.append(leg)
        far_reader, far_writer = await asyncio.open_connection(*target)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, stream: Stream) -> None:
            with suppress(ConnectionError, asyncio.CancelledError):
                while data := await source.read(CHUNK):
                    stream.take(data)
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, far_writer, leg.up), pump(far_reader, writer, leg.down))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1000)
    ready(server.sockets[0].getsockname()[1])
    await stop.wait()
    server.close()


@contextmanager
def counting(host: str, port: int) -> Iterator[tuple[int, list[Leg]]]:
    """Listen at a port of loopback as long as the block lasts; yield it, and a leg for each connection that came."""
    legs: list[Leg] = []
    listening, address = Event(), [0]
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def ready(number: int) -> None:
        address[0] = number
        listening.set()

    def work() -> None:
        loop.run_until_complete(_serve(legs, (host, port), ready, stop))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = Thread(target=work, daemon=True)
    thread.start()
    listening.wait()
    try:
        yield address[0], legs
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
