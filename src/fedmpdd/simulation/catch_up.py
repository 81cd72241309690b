"""What a client of the local engine is sent before a round: fedmpdd.wire.catch_up, with the header of a journal."""

from fedmpdd.server.journal import Header, parse_header
from fedmpdd.wire import catch_up
from fedmpdd.wire.catch_up import PER_BUNDLE, PER_MESSAGE, message_bytes

__all__ = ["PER_BUNDLE", "PER_MESSAGE", "CatchUp", "message_bytes", "unpack_catch_up"]

CatchUp = catch_up.CatchUp[Header]


def unpack_catch_up(data: bytes | memoryview, d: int | None = None) -> CatchUp:
    """Read a message, or raise the WireError that says what is wrong with it; `d` of who knows it already."""
    return catch_up.unpack_catch_up(data, d, parse_header)
