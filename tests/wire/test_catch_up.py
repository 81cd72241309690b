"""Messages of catching up, as far as they come from outside; what they are for is tested with the engines."""

import struct
import tracemalloc
import zlib
from typing import NamedTuple

import pytest

from fedmpdd.errors import FrameLengthError
from fedmpdd.wire.catch_up import CatchUp, unpack_catch_up


class Header(NamedTuple):
    """A header that says it is about a model of d coordinates."""

    d: int

    def pack(self) -> bytes:
        return b"head"


def sealed(kind: int, count: int, body: bytes = b"") -> bytes:
    message = struct.pack("<4sBBHII", b"FMPC", 1, kind, 0, 7, count) + body
    return message + struct.pack("<I", zlib.crc32(message))


@pytest.mark.parametrize("d", [0, -1])
def test_a_model_without_coordinates_is_refused(d: int) -> None:
    """Any number of empty vectors would fit the length of such a message."""
    message = sealed(2 + 128, 2**20, b"head")
    tracemalloc.start()
    with pytest.raises(FrameLengthError):
        unpack_catch_up(message, parse_header=lambda data: (Header(d), 4))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_bundles_that_are_claimed_and_not_there_cost_nothing() -> None:
    tracemalloc.start()
    for body in (b"", bytes(4), b"\xff" * 4):
        with pytest.raises(FrameLengthError):
            unpack_catch_up(sealed(1, 2**32 - 1, body))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_messages_go_through_bytes() -> None:
    message: CatchUp[Header] = CatchUp(7, (b"one", b""))
    assert unpack_catch_up(message.pack()) == message
