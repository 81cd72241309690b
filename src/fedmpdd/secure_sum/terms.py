"""What everybody must agree on before a secure sum starts."""

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError, InputError
from fedmpdd.secure_sum import primitives
from fedmpdd.secure_sum.checks import is_whole
from fedmpdd.secure_sum.neighbours import share_threshold
from fedmpdd.secure_sum.ring import Ring

MOST_CLIENTS = 2**15
MOST_ELEMENTS = 2**31 - 1
RUN_BYTES = 16

_TERMS = struct.Struct("<16sQHHBBHI")  # run, round, clients, threshold, ring bits, signed, neighbours, length
TERMS_BYTES = _TERMS.size
_PAIR = struct.Struct("<HH")


def client_ids(first: int, second: int) -> bytes:
    """Return two clients' numbers as they stand in what is hashed, sealed or signed."""
    return _PAIR.pack(first, second)


def default_threshold(clients: int) -> int:
    """Return ⌊2n/3⌋ + 1: a third of the clients may vanish, and another third may tell the server all they know."""
    return 2 * clients // 3 + 1


def threshold_against(clients: int, colluders: int) -> int:
    """Return the smallest threshold of a round with signatures that so many colluders cannot break.

    Two sets of survivors that are believed have t signatures each. Friends sign both, the others one, so that this
    takes 2·(t − colluders) of n − colluders clients; where 2·t > n + colluders there are not as many.
    """
    return (clients + colluders) // 2 + 1


@dataclass(frozen=True)
class Terms:
    """One secure sum: of `length` integers modulo 2^ring_bits from `clients` clients, numbered from 0.

    run: 16 random bytes that name the training, round: which of its sums this is. A client takes part in a round once.
        With neighbours they also make the order of the circle, so that nobody may choose them.
    threshold: how many must stay to the end, more than half (0: `default_threshold`). As many are needed to lift a
        mask, so that the server cannot lift both masks of a client by telling one half this and the other half that.
    neighbours: with how many others each client shares its secrets, an even number; more than half of them, itself
        counted, lift a mask. `enough_neighbours` for n − threshold drop-outs says how many. 0: with everybody.
    signed: whether clients sign their keys and who survived, against a server that lies about them. Not with
        neighbours.
    """

    run: bytes
    round: int
    clients: int
    length: int
    threshold: int = 0
    ring_bits: int = 32
    neighbours: int = 0
    signed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.run, bytes) or len(self.run) != RUN_BYTES:
            raise InputError(f"run = {self.run!r}: expected {RUN_BYTES} bytes that name the training")
        for name, least, most in (
            ("round", 0, 2**64 - 1),
            ("clients", 2, MOST_CLIENTS),
            ("length", 1, MOST_ELEMENTS),
        ):
            value = getattr(self, name)
            if not is_whole(value, least, most):
                raise InputError(f"{name} = {value!r}: expected an integer from {least} to {most}")
        Ring(self.ring_bits)
        if self.threshold == 0:
            object.__setattr__(self, "threshold", default_threshold(self.clients))
        value = self.threshold
        if not is_whole(value, self.clients // 2 + 1, self.clients):
            raise InputError(
                f"threshold = {value!r} of {self.clients} clients: expected more than half of them, "
                f"{self.clients // 2 + 1} to {self.clients}; {default_threshold(self.clients)} is usual"
            )
        value = self.neighbours
        if not is_whole(value, 0, self.clients - 2) or value % 2:
            raise InputError(
                f"neighbours = {value!r} of {self.clients} clients: expected an even number below {self.clients - 1}, "
                "or 0 for everybody; see enough_neighbours"
            )
        if not isinstance(self.signed, bool):
            raise InputError(f"signed = {self.signed!r}: expected True or False")
        if self.signed and self.neighbours:
            raise InputError(
                f"signed with neighbours = {self.neighbours}: who stands next to whom follows from run and round, "
                "which a server that lies tries until its colluders surround a client, and no signature shows it; "
                "take neighbours = 0"
            )

    @cached_property
    def ring(self) -> Ring:
        """Where the sum is taken."""
        return Ring(self.ring_bits)

    @property
    def share_threshold(self) -> int:
        """How many shares of a secret give it back."""
        return share_threshold(self.neighbours) if self.neighbours else self.threshold

    @property
    def most_holders(self) -> int:
        """How many hold shares of a client's secrets, if all are there: itself, and those it talks to."""
        return self.neighbours + 1 if self.neighbours else self.clients

    def holders(self, client: int) -> list[int]:
        """Return who those are, in order."""
        if not self.neighbours:
            return list(range(self.clients))
        order, positions = self._circle
        around = np.arange(-(self.neighbours // 2), self.neighbours // 2 + 1)
        return sorted(order[(positions[client] + around) % self.clients].tolist())

    @cached_property
    def _circle(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Who stands at each position, and the position of each client: in the order of random words, one each."""
        key = primitives.derive(self.digest, b"circle")
        words = np.frombuffer(primitives.keystream(key, 8 * self.clients), "<u8")
        order = np.argsort(words, kind="stable")
        positions = np.empty_like(order)
        positions[order] = np.arange(self.clients)
        return order, positions

    @cached_property
    def digest(self) -> bytes:
        """Thirty-two bytes that stand for the terms; the first eight are in every message."""
        return primitives.digest(b"terms", self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the terms as they stand in the message that opens a round."""
        return _TERMS.pack(
            self.run,
            self.round,
            self.clients,
            self.threshold,
            self.ring_bits,
            self.signed,
            self.neighbours,
            self.length,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Terms":
        """Read terms of the right length, or raise ContentError."""
        run, round_number, clients, threshold, ring_bits, signed, neighbours, length = _TERMS.unpack(data)
        try:
            terms = cls(run, round_number, clients, length, threshold, ring_bits, neighbours, signed == 1)
        except InputError as error:
            raise ContentError(f"no secure sum has the terms that came: {error}") from None
        if terms.to_bytes() != bytes(data):
            raise ContentError(
                "the terms hold bytes that this package never writes; expected 0 or 1: drop this message"
            )
        return terms
