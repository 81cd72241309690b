"""The server's reader of packets, against a broker on paper that says what it is told to."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from fedmpdd.mqtt.lean import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBLISH,
    QOS_1,
    SUBACK,
    LeanClient,
    packet,
    read_properties,
    read_variable,
    string,
    variable,
)

WELCOME = packet(CONNACK, bytes([0, 0, 0]))


def published(topic: str, payload: bytes, number: int = 7) -> bytes:
    return packet(PUBLISH | QOS_1, string(topic) + struct.pack(">H", number) + b"\x00" + payload)


async def talking(answers: list[bytes], work: Callable[[LeanClient], Awaitable[None]]) -> None:
    """Connect to a broker that gives these answers, one to each thing it reads."""
    is_over = asyncio.Event()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(65_536)
            writer.write(answer)
        while await reader.read(65_536):
            pass
        writer.close()
        await writer.wait_closed()
        is_over.set()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        try:
            async with LeanClient("127.0.0.1", port, "me", lambda topic, payload: None) as client:
                await work(client)
        finally:
            await is_over.wait()


async def nothing(client: LeanClient) -> None:
    """Stay connected for no time at all."""


async def until_lost(client: LeanClient) -> None:
    await client.listen()


@pytest.mark.parametrize("number", [0, 127, 128, 16_383, 16_384, 268_435_455])
def test_a_variable_integer_comes_back(number: int) -> None:
    data = variable(number)
    assert read_variable(data, 0) == (number, len(data))
    assert read_variable(data[:-1], 0) is None


def test_five_bytes_are_no_length() -> None:
    with pytest.raises(ConnectionError, match="more than four bytes"):
        read_variable(b"\xff\xff\xff\xff\x01", 0)


def test_properties_of_all_kinds_are_passed_over() -> None:
    texts = b"\x1f" + string("words") + b"\x26" + string("a") + string("b")
    values = b"\x21\x00\x14" + texts + b"\x24\x01" + b"\x0b\x81\x01"
    assert read_properties(variable(len(values)) + values) == {0x21: 20, 0x24: 1, 0x0B: 129}


def test_a_property_that_mqtt_does_not_have_is_refused() -> None:
    with pytest.raises(ConnectionError, match="property of number 127"):
        read_properties(b"\x02\x7f\x00")


def test_messages_that_are_cut_anywhere_arrive_whole_and_are_acknowledged() -> None:
    data = published("up/3", b"one", 1) + published("up/4", bytes(300), 2)

    async def run() -> tuple[list[bytes], list[bytes]]:
        heard: list[bytes] = []
        read: list[bytes] = []
        came, is_over = asyncio.Event(), asyncio.Event()

        async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65_536)
            writer.write(WELCOME)
            for i in range(0, len(data), 50):
                writer.write(data[i : i + 50])
                await writer.drain()
                await asyncio.sleep(0)
            while chunk := await reader.read(65_536):
                read.append(chunk)
            writer.close()
            await writer.wait_closed()
            is_over.set()

        def receive(topic: str, payload: bytes) -> None:
            heard.append(topic.encode() + payload)
            if len(heard) == 2:
                came.set()

        server = await asyncio.start_server(broker, "127.0.0.1", 0)
        async with server:
            async with LeanClient("127.0.0.1", server.sockets[0].getsockname()[1], "me", receive):
                await came.wait()
            await is_over.wait()
        return read, heard

    read, heard = asyncio.run(run())
    assert heard == [b"up/3one", b"up/4" + bytes(300)]
    assert b"".join(read).startswith(packet(PUBACK, b"\x00\x01") + packet(PUBACK, b"\x00\x02"))


@pytest.mark.parametrize(("reason", "words"), [(0x87, "not authorized"), (0x84, "protocol version"), (0xEE, "0xee")])
def test_a_broker_that_refuses_says_why(reason: int, words: str) -> None:
    with pytest.raises(ConnectionError, match=words):
        asyncio.run(talking([packet(CONNACK, bytes([0, reason, 0]))], nothing))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (packet(DISCONNECT, b"\x8e"), "taken over"),
        (b"\x30\xff\xff\xff\xff\xff", "more than four bytes"),
        (packet(PUBLISH | QOS_1, b"\x00"), "no MQTT 5"),
        (packet(PUBLISH, string(b"\xff\xfe") + b"\x00"), "no MQTT 5"),
    ],
)
def test_nonsense_ends_the_connection_with_words(data: bytes, words: str) -> None:
    with pytest.raises(ConnectionError, match=words):
        asyncio.run(talking([WELCOME + data], until_lost))


def test_a_topic_that_is_refused_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def subscribe(client: LeanClient) -> None:
        await client.subscribe([("up/+", 1), ("$SYS/x", 1)])

    asyncio.run(talking([WELCOME, packet(SUBACK, b"\x00\x01\x00\x01\x87")], subscribe))
    assert "refuses the topic $SYS/x: not authorized" in caplog.text
    assert "up/+" not in caplog.text


def test_a_message_that_the_broker_refuses_did_not_arrive() -> None:
    async def publish(client: LeanClient) -> None:
        await client.publish("round", b"data", retain=True)

    asyncio.run(talking([WELCOME, packet(PUBACK, b"\x00\x01")], publish))
    with pytest.raises(ConnectionError, match="quota"):
        asyncio.run(talking([WELCOME, packet(PUBACK, b"\x00\x01\x97")], publish))
