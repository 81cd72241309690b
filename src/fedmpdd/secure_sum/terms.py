"""What everybody must agree on before a secure sum starts."""

import struct
from dataclasses import dataclass
from functools import cached_property

from fedmpdd.errors import ContentError, InputError
from fedmpdd.secure_sum import primitives
from fedmpdd.secure_sum.ring import Ring

MOST_CLIENTS = 2**15
MOST_ELEMENTS = 2**31 - 1
RUN_BYTES = 16

_TERMS = struct.Struct("<16sQHHB3xI")  # run, round, clients, threshold, ring bits, zeros, length
TERMS_BYTES = _TERMS.size


def default_threshold(clients: int) -> int:
    """Return ⌊2n/3⌋ + 1: a third of the clients may vanish, and another third may tell the server all they know."""
    return 2 * clients // 3 + 1


@dataclass(frozen=True)
class Terms:
    """One secure sum: of `length` integers modulo 2^ring_bits from `clients` clients, numbered from 0.

    run: 16 bytes that name the training, round: which of its sums this is. A client takes part in a round once.
    threshold: how many must stay to the end, more than half (0: `default_threshold`). As many are needed to lift a
        mask, so that the server cannot lift both masks of a client by telling one half this and the other half that.
    """

    run: bytes
    round: int
    clients: int
    length: int
    threshold: int = 0
    ring_bits: int = 32

    def __post_init__(self) -> None:
        if not isinstance(self.run, bytes) or len(self.run) != RUN_BYTES:
            raise InputError(f"run = {self.run!r}: expected {RUN_BYTES} bytes that name the training")
        for name, least, most in (
            ("round", 0, 2**64 - 1),
            ("clients", 2, MOST_CLIENTS),
            ("length", 1, MOST_ELEMENTS),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise InputError(f"{name} = {value!r}: expected an integer from {least} to {most}")
        Ring(self.ring_bits)
        if self.threshold == 0:
            object.__setattr__(self, "threshold", default_threshold(self.clients))
        value = self.threshold
        if not isinstance(value, int) or isinstance(value, bool) or not self.clients // 2 < value <= self.clients:
            raise InputError(
                f"threshold = {value!r} of {self.clients} clients: expected more than half of them, "
                f"{self.clients // 2 + 1} to {self.clients}; {default_threshold(self.clients)} is usual"
            )

    @cached_property
    def ring(self) -> Ring:
        """Where the sum is taken."""
        return Ring(self.ring_bits)

    @cached_property
    def digest(self) -> bytes:
        """Thirty-two bytes that stand for the terms; the first eight are in every message."""
        return primitives.digest(b"terms", self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the terms as they stand in the message that opens a round."""
        return _TERMS.pack(self.run, self.round, self.clients, self.threshold, self.ring_bits, self.length)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Terms":
        """Read terms of the right length, or raise ContentError."""
        run, round_number, clients, threshold, ring_bits, length = _TERMS.unpack(data)
        try:
            terms = cls(run, round_number, clients, length, threshold, ring_bits)
        except InputError as error:
            raise ContentError(f"no secure sum has the terms that came: {error}") from None
        if terms.to_bytes() != bytes(data):
            raise ContentError("the terms hold bytes that this package never writes; expected zeros: drop this message")
        return terms
