"""The counting proxy in front of a small HTTP server, and of one that speaks something else."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("h11", reason="the extra `flower` is not installed")

from fedmpdd.flower.socket_counter import SocketCounter, serve

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def measure(
    talk: Callable[[SocketCounter, list[int]], "asyncio.Future[None] | object"], answers: bytes = ANSWER
) -> SocketCounter:
    """Run a far server that answers every request, the proxy in front of it, and a conversation through it."""
    meter, ports, far = SocketCounter(), [free_port(), free_port()], free_port()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(answers)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", far)
        ready = asyncio.Event()
        proxy = asyncio.create_task(serve(meter, ports, ("127.0.0.1", far), ready))
        await asyncio.wait_for(ready.wait(), 10)
        await asyncio.wait_for(talk(meter, ports), 10)  # type: ignore[arg-type]
        proxy.cancel()
        await asyncio.gather(proxy, return_exceptions=True)
        server.close()
        await server.wait_closed()

    asyncio.run(main())
    return meter


async def say(port: int, *messages: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for message in messages:
        writer.write(message)
        await writer.drain()
        assert await reader.readexactly(len(ANSWER)) == ANSWER
    writer.close()
    await writer.wait_closed()


def test_requests_are_told_apart_and_counted(tmp_path: Path) -> None:
    push, part = request("/fleet/push-messages", b"x" * 50), request("/fleet/push-object", b"y" * 700)
    poll = request("/fleet/pull-messages", b"")

    async def talk(meter: SocketCounter, ports: list[int]) -> None:
        await say(ports[0], poll, push, part)
        await say(ports[1], poll)

    meter = measure(talk)
    first, second = meter.summary().values()
    if first["replies"] == 0:
        first, second = second, first
    assert first["replies"] == 1
    assert first["up"] == len(push) + len(part) + len(poll)
    assert first["up_replies"] == first["up_per_reply"] == len(push) + len(part)
    assert first["up_replies_headers"] == first["up_replies"] - 750
    assert first["up_polls"] == len(poll)
    assert first["down"] == 3 * len(ANSWER)
    assert second == {**second, "replies": 0, "up": len(poll), "up_per_reply": None}
    (reply,) = meter.replies()
    assert (reply["reply"], reply["requests"], reply["up"], reply["body"]) == (1, 2, len(push) + len(part), 750)
    assert reply["framing"] == reply["up"] - 750
    meter.write(tmp_path / "requests.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(row["name"] for row in rows) == ["pull-messages", "pull-messages", "push-messages", "push-object"]


def test_messages_are_told_apart_too() -> None:
    poll, part = request("/fleet/pull-messages", b""), request("/fleet/pull-object", b"name")
    beat, push = request("/fleet/send-node-heartbeat", b""), request("/fleet/push-object", b"y" * 700)

    async def talk(meter: SocketCounter, ports: list[int]) -> None:
        await say(ports[0], poll, poll, part, beat, part, push, poll, part)
        await say(ports[1], poll)

    meter = measure(talk)
    rows = [(row["message"], row["requests"], row["down"]) for row in meter.messages()]
    assert rows == [(1, 3, 3 * len(ANSWER)), (2, 2, 2 * len(ANSWER))]


def test_a_request_in_many_pieces_is_one() -> None:
    whole = request("/fleet/push-object", b"z" * 1000)

    async def talk(meter: SocketCounter, ports: list[int]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        for begin in range(0, len(whole), 100):
            writer.write(whole[begin : begin + 100])
            await writer.drain()
            await asyncio.sleep(0.002)
        await reader.readexactly(len(ANSWER))
        writer.close()
        await writer.wait_closed()

    (found,) = measure(talk).requests
    assert (found.name, found.up, found.up_body) == ("push-object", len(whole), 1000)


@pytest.mark.parametrize("first", [b"\x16\x03\x01 client hello", b"\x00\x01 neither HTTP nor TLS"])
def test_what_is_not_http_is_counted_all_the_same(first: bytes) -> None:
    async def talk(meter: SocketCounter, ports: list[int]) -> None:
        await say(ports[0], first, b"more")

    meter = measure(talk)
    assert sum(row.up for row in meter.requests) == len(first) + 4
    assert sum(row.down for row in meter.requests) == 2 * len(ANSWER)
    assert all(row.up_body == 0 for row in meter.requests)


def test_nobody_at_the_other_end_ends_the_connection() -> None:
    meter, port, far = SocketCounter(), free_port(), free_port()

    async def main() -> None:
        ready = asyncio.Event()
        proxy = asyncio.create_task(serve(meter, [port], ("127.0.0.1", far), ready))
        await asyncio.wait_for(ready.wait(), 10)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await writer.wait_closed()
        proxy.cancel()
        await asyncio.gather(proxy, return_exceptions=True)

    asyncio.run(main())
    assert meter.requests == []
