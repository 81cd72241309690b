"""A proxy in front of a SuperLink that says everything a client answers twice."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import h11


class Repeater:
    """Passes requests on; once a reply is complete, all requests that made it are sent a second time."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self.repeated = 0
        self._reply: list[bytes] = []

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader, h11.Connection(h11.SERVER)):
                raw, target = request
                if target.endswith(("push-messages", "push-object")):
                    self._reply.append(raw)
                else:
                    await self._repeat()
                writer.write(await self._ask(raw))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def _repeat(self) -> None:
        reply, self._reply = self._reply, []
        for raw in reply:
            await self._ask(raw)
        self.repeated += len(reply) > 0

    async def _ask(self, raw: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(raw)
            await writer.drain()
            connection = h11.Connection(h11.CLIENT)
            connection.send(
                h11.Request(method="POST", target="/", headers=[("Host", "there"), ("Content-Length", "0")])
            )
            connection.send(h11.EndOfMessage())
            found = await _read(reader, connection)
        finally:
            writer.transport.abort()
        if found is None:
            raise ConnectionError("the SuperLink hung up")
        return found[0]

    async def serve(self, stop: asyncio.Event, ready: threading.Event) -> None:
        """Listen until told to stop."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        ready.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, connection: h11.Connection) -> tuple[bytes, str] | None:
    """Return one whole message as it came, and its target or status; None where the other side has ended."""
    raw, name = b"", ""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65_536)
            if not data:
                return None
            raw += data
            connection.receive_data(data)
        elif isinstance(event, h11.Request):
            name = event.target.decode()
        elif isinstance(event, h11.Response):
            name = str(event.status_code)
        elif isinstance(event, h11.EndOfMessage):
            return raw, name


@contextmanager
def repeater(port: int, target: int) -> Iterator[Repeater]:
    """Run a repeater in a thread of its own."""
    one, ready = Repeater(port, target), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(one.serve(stop, ready)))
    thread.start()
    try:
        assert ready.wait(10)
        yield one
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
