"""What the benchmark over MQTT counts bytes with, and the packets of its clients."""

import pytest

from benchmarks.mqtt.counter import Stream
from benchmarks.mqtt.swarm import CONNACK, PUBACK, PUBLISH, packet, raise_limit
from fedmpdd.errors import RunError


def kinds(stream: Stream) -> list[tuple[str, int]]:
    return [(one.kind, one.nbytes) for one in stream.messages]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_packets_are_counted_whole_however_they_are_cut(size: int) -> None:
    data = packet(CONNACK, bytes(3)) + packet(PUBLISH, bytes(200)) + packet(PUBACK, bytes(2))
    stream = Stream()
    for i in range(0, len(data), size):
        stream.take(data[i : i + size])
    assert kinds(stream) == [("connack", 5), ("publish", 203), ("puback", 4)]
    assert stream.total == len(data)


def test_records_of_tls_are_told_from_packets() -> None:
    stream = Stream()
    stream.take(b"\x16\x03\x03\x00\x02ab" + b"\x17\x03\x03\x00\x15" + bytes(21) + b"\x17\x03")
    assert kinds(stream) == [("set-up", 7), ("tls", 26)]
    assert stream.total == 35


def test_more_files_than_this_user_may_have_are_refused_with_a_number() -> None:
    with pytest.raises(RunError, match="1,000,000,000 open files"):
        raise_limit(10**9)
