"""A connection with the few packets of MQTT 5 that a server of trainings needs: a tenth of aiomqtt's time a message.

It subscribes and publishes with QoS 1 and acknowledges what comes, all that came at once in one write. The
specification is OASIS MQTT Version 5.0; the numbers of its sections stand where a rule comes from it.
"""

import asyncio
import itertools
import logging
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, cast

_log = logging.getLogger("fedmpdd")
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x40, 0x82, 0x90
UNSUBSCRIBE, UNSUBACK, PING, PONG, DISCONNECT = 0xA2, 0xB0, 0xC0, 0xD0, 0xE0
RETAIN, QOS_1, QOS_2 = 0x01, 0x02, 0x04  # flags of PUBLISH (3.3.1)
REFUSED = 0x80  # reasons from here on are errors (2.4)
REASONS = {
    0x81: "malformed packet",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8D: "keep alive timeout",
    0x8E: "session taken over by another connection",
    0x95: "packet too large",
    0x97: "quota exceeded",
    0x99: "payload format invalid",
}
# Bytes of a property's value by its number (2.2.2.2); -1 for a string, -2 for two of them, 0 for a variable integer.
_PROPERTIES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
    **dict.fromkeys((0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F), -1),
    0x0B: 0,
    0x26: -2,
}
SESSION_EXPIRY, KEEP_ALIVE, RECEIVE_MAXIMUM = 0x11, 0x13, 0x21
# What the broker may send before the first is acknowledged. Where a client does not say it, mosquitto takes 20, and
# throws away what comes while a thousand more wait.
MOST_IN_FLIGHT = 65_535
Receive = Callable[[str, bytes], None]


def packet(kind: int, body: bytes) -> bytes:
    """Return an MQTT packet: its kind, the length of its body, and the body.

    >>> packet(PUBACK, bytes(2)).hex()
    '40020000'
    """
    return bytes([kind]) + variable(len(body)) + body


def variable(number: int) -> bytes:
    """Return a variable byte integer (1.5.5).

    >>> variable(321).hex()
    'c102'
    """
    result = bytearray()
    while number > 127:
        result.append(number % 128 | 128)
        number //= 128
    return bytes(result) + bytes([number])


def string(text: str | bytes) -> bytes:
    """Return a string, or bytes, with its length before it (1.5.4)."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">H", len(data)) + data


def read_variable(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """Return a variable byte integer and where it ends; None where it is not all there yet."""
    number = 0
    for i in range(4):
        if at + i >= len(data):
            return None
        number |= (data[at + i] & 127) << 7 * i
        if data[at + i] < 128:
            return number, at + i + 1
    raise ConnectionError("the broker sent a length of more than four bytes")


def read_properties(data: bytes) -> dict[int, int]:
    """Return the properties whose values are whole numbers, of the packet part that begins with them."""
    size, at = _need(read_variable(data, 0))
    end, values = at + size, {}
    while at < end:
        kind = data[at]
        width, at = _PROPERTIES.get(kind, 256), at + 1
        if width == 256:
            raise ConnectionError(f"the broker sent a property of number {kind}, which MQTT 5 does not have")
        if width > 0:
            values[kind] = int.from_bytes(data[at : at + width], "big")
            at += width
        elif width == 0:
            values[kind], at = _need(read_variable(data, at))
        for _ in range(-width):
            at += 2 + int.from_bytes(data[at : at + 2], "big")
    return values


def _need(value: tuple[int, int] | None) -> tuple[int, int]:
    if value is None:
        raise ConnectionError("the broker sent a packet that ends early")
    return value


class LeanClient(asyncio.Protocol):
    """A connection to a broker; `async with` makes it and ends it.

    Args:
        host: of the broker.
        port: of it.
        identifier: by which the broker knows this side again.
        receive: called with topic and payload of every message.
        username: who one is.
        password: for that.
        tls: what TLS needs; None without it.
        keepalive: seconds without a message after which a sign of life is sent.
        session_s: how long the broker keeps what it has for this side when it is away.
        timeout: seconds that the broker may take for an answer.

    Raises:
        OSError: the connection cannot be made, or the broker refuses it.

    """

    def __init__(
        self,
        host: str,
        port: int,
        identifier: str,
        receive: Receive,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        keepalive: int = 60,
        session_s: int = 3600,
        timeout: float = 20.0,
    ) -> None:
        self._host, self._port, self._identifier, self._receive = host, port, identifier, receive
        self._username, self._password, self._tls = username, password, tls
        self._keepalive, self._session_s, self._timeout = keepalive, session_s, timeout
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._waiting: dict[tuple[int, int], asyncio.Future[bytes]] = {}  # kind of an answer and its number
        self._numbers = itertools.cycle(range(1, 65_536))
        self._heard = 0.0
        self._lost: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._lost = loop.create_future()
        names = self._host if self._tls is not None else None
        async with asyncio.timeout(self._timeout):
            await loop.create_connection(lambda: self, self._host, self._port, ssl=self._tls, server_hostname=names)
        try:
            answer = await self._ask(CONNACK, 0, packet(CONNECT, self._greeting()))
            if len(answer) < 3 or answer[1] >= REFUSED:
                raise ConnectionError(_reason(answer[1] if len(answer) > 1 else 0x81))
            values = read_properties(answer[2:])
        except BaseException:
            self._close()
            raise
        self._keepalive = values.get(KEEP_ALIVE, self._keepalive)
        self._places = asyncio.Semaphore(values.get(RECEIVE_MAXIMUM, 65_535))
        self._pinging = loop.create_task(self._ping())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pinging.cancel()
        self._write(packet(DISCONNECT, b""))
        self._close()

    def _greeting(self) -> bytes:
        """The body of CONNECT (3.1), with the old session if there is one."""
        flags = (0x80 if self._username is not None else 0) | (0x40 if self._password is not None else 0)
        properties = struct.pack(">BIBH", SESSION_EXPIRY, self._session_s, RECEIVE_MAXIMUM, MOST_IN_FLIGHT)
        head = string("MQTT") + struct.pack(">BBH", 5, flags, self._keepalive)
        texts = [self._identifier, *(one for one in (self._username, self._password) if one is not None)]
        return head + variable(len(properties)) + properties + b"".join(map(string, texts))

    # ------------------------------------------------------------------------------------------------ what one does

    async def listen(self) -> None:
        """Wait until the connection is lost, and raise an OSError that says why."""
        assert self._lost is not None
        await asyncio.shield(self._lost)

    async def subscribe(self, topics: Sequence[tuple[str, int]]) -> None:
        """Subscribe to topics, each with its QoS; a refusal is logged."""
        body = b"\x00" + b"".join(string(topic) + bytes([qos]) for topic, qos in topics)
        answer = await self._ask_numbered(SUBSCRIBE, SUBACK, b"", body)
        size, at = _need(read_variable(answer, 2))
        reasons = answer[at + size :]
        for (topic, _), reason in zip(topics, reasons, strict=False):
            if reason >= REFUSED:
                _log.warning("the broker refuses the topic %s: %s", topic, _reason(reason))

    async def unsubscribe(self, topic: str) -> None:
        """Leave a topic."""
        await self._ask_numbered(UNSUBSCRIBE, UNSUBACK, b"", b"\x00" + string(topic))

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish with QoS 1, and return when the broker has it; raise an OSError where it refuses."""
        async with self._places:
            kind = PUBLISH | QOS_1 | (RETAIN if retain else 0)
            answer = await self._ask_numbered(kind, PUBACK, string(topic), b"\x00" + payload)
        if len(answer) > 2 and answer[2] >= REFUSED:
            raise ConnectionError(_reason(answer[2]))

    async def _ask_numbered(self, kind: int, wanted: int, before: bytes, after: bytes) -> bytes:
        number = next(one for one in self._numbers if (wanted, one) not in self._waiting)
        return await self._ask(wanted, number, packet(kind, before + struct.pack(">H", number) + after))

    async def _ask(self, wanted: int, number: int, data: bytes) -> bytes:
        """Write a packet, and return the body of its answer."""
        assert self._lost is not None
        if self._lost.done():
            self._lost.result()
        answer = asyncio.get_running_loop().create_future()
        self._waiting[wanted, number] = answer
        try:
            self._write(data)
            async with asyncio.timeout(self._timeout):
                return cast(bytes, await answer)
        finally:
            self._waiting.pop((wanted, number), None)

    async def _ping(self) -> None:
        """Show signs of life, and notice where none come from the broker."""
        while self._keepalive:
            await asyncio.sleep(self._keepalive / 2)
            if time.monotonic() - self._heard > 1.5 * self._keepalive:
                self._lose(ConnectionError("the broker shows no sign of life"))
            self._write(packet(PING, b""))

    # ------------------------------------------------------------------------------------------------ what comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc if isinstance(exc, OSError) else ConnectionError("the broker closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        if self._rest:
            data = self._rest + data
        acknowledgements: list[bytes] = []
        try:
            end = 0
            for kind, body, end in _packets(data):  # noqa: B007  # where the last whole packet ended
                self._take(kind, body, acknowledgements)
        except (ConnectionError, IndexError, UnicodeDecodeError, struct.error) as error:
            self._lose(error if isinstance(error, ConnectionError) else ConnectionError("the broker sent no MQTT 5"))
            return
        self._rest = data[end:]
        if acknowledgements:
            self._write(b"".join(acknowledgements))

    def _take(self, kind: int, body: bytes, acknowledgements: list[bytes]) -> None:
        if kind & 0xF0 == PUBLISH:
            after = 2 + (body[0] << 8 | body[1])
            topic = body[2:after].decode()
            if kind & QOS_1:
                acknowledgements.append(b"\x40\x02" + body[after : after + 2])
                after += 2
            size = body[after]
            if size > 127:
                size, after = _need(read_variable(body, after))
                after -= 1
            self._receive(topic, body[after + 1 + size :])
            return
        if kind & 0xF0 == DISCONNECT:
            raise ConnectionError(_reason(body[0] if body else 0))
        number = 0 if kind == CONNACK else int.from_bytes(body[:2], "big")
        answer = self._waiting.get((kind, number))
        if answer is not None and not answer.done():
            answer.set_result(body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _lose(self, error: OSError) -> None:
        """Tell everybody who waits that the connection is no more."""
        for answer in [*self._waiting.values(), self._lost]:
            if answer is not None and not answer.done():
                cast(Any, answer).set_exception(error)
                answer.exception()  # somebody may have stopped waiting for it
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _packets(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Cut bytes into packets: kind, body, and where each ends."""
    at = 0
    while (length := read_variable(data, at + 1)) is not None:
        size, begin = length
        if begin + size > len(data):
            return
        at_kind, at = at, begin + size
        yield data[at_kind], data[begin:at], at


def _reason(number: int) -> str:
    return REASONS.get(number, f"the broker ended it with reason {number:#04x}")
