"""A proxy that counts: every byte between SuperNodes and their SuperLink, by client and by request.

Each client gets a port of its own here and is told that the SuperLink is there. Requests are recognised where the
connection is plain HTTP; of TLS the bytes are counted, and no more can be said.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h11

CHUNK = 65_536
TLS = 0x16  # the first byte of a TLS connection
REPLIES = ("push-messages", "push-object")  # requests that carry what a client has to say
PULL, PULL_PART = "pull-messages", "pull-object"  # requests for what there is to do
POLLS = (PULL, "send-node-heartbeat")  # requests that ask whether there is anything to do


@dataclass
class Request:
    """One request of a client and what came back; bytes as they crossed the socket."""

    client: str
    name: str  # the last word of its path; "tls" where that cannot be seen
    started: float
    up: int = 0
    up_body: int = 0
    down: int = 0


@dataclass
class SocketCounter:
    """All requests so far."""

    requests: list[Request] = field(default_factory=list)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Per client: bytes up and down, and what they were for."""
        result: dict[str, dict[str, Any]] = {}
        for client in sorted({request.client for request in self.requests}):
            of_client = [request for request in self.requests if request.client == client]
            replies = [request for request in of_client if request.name in REPLIES]
            answers = sum(request.name == "push-messages" for request in of_client)
            result[client] = {
                "replies": answers,
                "up": sum(request.up for request in of_client),
                "down": sum(request.down for request in of_client),
                "up_replies": sum(request.up for request in replies),
                "up_replies_headers": sum(request.up - request.up_body for request in replies),
                "up_polls": sum(request.up for request in of_client if request.name in POLLS),
                "up_per_reply": sum(request.up for request in replies) / answers if answers else None,
            }
        return result

    def replies(self) -> list[dict[str, Any]]:
        """Every reply, client by client: one a round. Framing is what is not in the bodies of its requests."""
        result: list[dict[str, Any]] = []
        for client in sorted({request.client for request in self.requests}):
            number = 0
            for request in (request for request in self.requests if request.client == client):
                if request.name == "push-messages":
                    number += 1
                    result.append({"client": client, "reply": number, "requests": 0, "up": 0, "body": 0, "framing": 0})
                if request.name in REPLIES and number:
                    row = result[-1]
                    row["requests"] += 1
                    row["up"] += request.up
                    row["body"] += request.up_body
                    row["framing"] += request.up - request.up_body
        return result

    def messages(self) -> list[dict[str, Any]]:
        """Every message to a client, client by client: the poll that told of it, and the requests for what is in it."""
        result: list[dict[str, Any]] = []
        for client in sorted({request.client for request in self.requests}):
            number, poll, begun = 0, 0, False
            for request in (request for request in self.requests if request.client == client):
                if request.name == PULL:
                    poll, begun = request.down, False  # perhaps of nothing, and then the next one counts
                if request.name == PULL_PART:
                    if not begun:
                        number, begun = number + 1, True
                        result.append({"client": client, "message": number, "requests": 1, "down": poll})
                    result[-1]["requests"] += 1
                    result[-1]["down"] += request.down
        return result

    def write(self, path: Path) -> None:
        """Write all requests, one JSON object a line."""
        lines = (json.dumps(asdict(request)) for request in self.requests)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


class _Watcher:
    """Follows one connection's requests without taking part in them."""

    def __init__(self, meter: SocketCounter, client: str) -> None:
        self._meter = meter
        self._client = client
        self._parser: h11.Connection | None = None
        self._current: Request | None = None
        self._plain: bool | None = None  # not known before the first byte

    def up(self, data: bytes) -> None:
        """Count bytes from the client."""
        if self._plain is None:
            self._plain = data[0] != TLS
        if not self._plain:
            if self._current is None:
                self._begin("tls")
            self._now().up += len(data)
            return
        if self._parser is None:
            self._parser = h11.Connection(h11.SERVER)
            self._begin("?")
        request = self._now()
        request.up += len(data)
        try:
            self._parser.receive_data(data)
            while (event := self._parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    request.name = event.target.decode("ascii", "replace").split("?")[0].rsplit("/", 1)[-1]
                elif isinstance(event, h11.Data):
                    request.up_body += len(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._parser = None  # the next byte begins the next request
                    return
        except h11.RemoteProtocolError:
            self._plain, request.name = False, "?"  # not HTTP/1.1 after all: bytes alone from here on

    def down(self, data: bytes) -> None:
        """Count bytes to the client: they answer the request at work."""
        if self._current is None:
            self._begin("?")
        self._now().down += len(data)

    def _begin(self, name: str) -> None:
        self._current = Request(self._client, name, time.time())
        self._meter.requests.append(self._current)

    def _now(self) -> Request:
        assert self._current is not None
        return self._current


async def serve(
    meter: SocketCounter, ports: Sequence[int], target: tuple[str, int], ready: asyncio.Event | None = None
) -> None:
    """Listen on loopback, a port per client, and pass everything on until cancelled."""

    open_now: set[asyncio.Task[None]] = set()

    async def accept(port: int) -> asyncio.Server:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(_pass_on(reader, writer, target, _Watcher(meter, str(port))))
            open_now.add(task)
            task.add_done_callback(open_now.discard)

        return await asyncio.start_server(connected, "127.0.0.1", port)

    servers = [await accept(port) for port in ports]
    if ready is not None:
        ready.set()
    try:
        await asyncio.gather(*(server.serve_forever() for server in servers))
    finally:
        for server in servers:
            server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int], watcher: _Watcher
) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection(*target)
    except OSError:
        await _close(writer)
        return

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, count: Any) -> None:
        with suppress(ConnectionError):
            while data := await source.read(CHUNK):
                count(data)
                sink.write(data)
                await sink.drain()
        with suppress(OSError, RuntimeError):
            sink.write_eof()

    try:
        await asyncio.gather(pump(reader, far_writer, watcher.up), pump(far_reader, writer, watcher.down))
    finally:
        await asyncio.gather(_close(writer), _close(far_writer))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
