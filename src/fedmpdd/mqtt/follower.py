"""A model that follows the server's by the messages of rounds, whatever order they come in, and from wherever."""

import enum
import hashlib
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import ContentError, OrderError
from fedmpdd.mqtt.messages import Part, RoundMessage, join_parts, read_part
from fedmpdd.mqtt.terms import TAG_BYTES, Terms
from fedmpdd.server.replica import Replica
from fedmpdd.wire.catch_up import CatchUp, unpack_catch_up

Float32 = NDArray[np.float32]
TAIL = 64  # rounds of which the broker keeps what they added
SNAPSHOT_EVERY = 32  # rounds between two models that the broker keeps: the tail goes further back

_log = logging.getLogger("fedmpdd")


class Lack(enum.Enum):
    """What a follower needs before it has the model of the newest round."""

    NOTHING = "nothing"
    ROUND = "a round"
    TAIL = "what the rounds since its model added"
    MODEL = "a model"


def model_sha256(flat: Float32) -> str:
    """SHA-256 of a flat float32 model, little-endian."""
    return hashlib.sha256(flat.astype("<f4", copy=False).tobytes()).hexdigest()


def model_tag(flat: Float32) -> bytes:
    """The first bytes of the hash of a model: enough against accidents."""
    return bytes.fromhex(model_sha256(flat))[:TAG_BYTES]


class Follower:
    """Keeps the model of the newest round that it heard of.

    Args:
        terms: of the training.
        initial: the model that the training began with, where it is known; else one is asked for.

    Raises:
        OrderError: the initial model is not that of the terms.

    """

    def __init__(self, terms: Terms, initial: Float32 | None = None) -> None:
        self.terms = terms
        self.newest: RoundMessage | None = None
        self._replica: Replica[Float32] | None = None
        self._waiting: dict[int, RoundMessage] = {}  # rounds whose predecessor is not here yet
        self._parts: dict[int, Part] = {}
        self._is_snapshot = False  # whether the model is one that came whole, as it came
        self._tail_is_short = False  # whether the broker's tail turned out not to reach back to the model
        if initial is not None:
            if (begun := model_sha256(initial)) != terms.model_sha256:
                raise OrderError(
                    f"the training began with the model {terms.model_sha256[:16]}…, the one here is {begun[:16]}…: "
                    "another initialisation, version of PyTorch or kind of CPU; let the client ask for the model"
                )
            self._replica = terms.replica(initial.astype(np.float32, copy=True))

    @property
    def flat(self) -> Float32:
        """The model of the newest round; ask for it when nothing is lacking."""
        assert self._replica is not None
        return self._replica.flat

    @property
    def lack(self) -> Lack:
        """What is missing before the model of the newest round is here."""
        if self.newest is None:
            return Lack.ROUND
        if self._replica is None:
            return Lack.MODEL
        behind = self.newest.round - self._replica.next_round
        if behind == 0:
            return Lack.NOTHING
        if self._tail_is_short:
            return Lack.MODEL
        if self._is_snapshot:  # the broker's tail reaches back to the snapshot that it has
            return Lack.TAIL
        tail = behind * len(self.newest.bundle or b"")  # about: rounds of a training are alike
        is_short = behind <= TAIL and tail < 4 * self.terms.d * self.terms.vectors
        return Lack.TAIL if is_short else Lack.MODEL

    def give_up_tail(self) -> None:
        """Take note that the tail came and does not lead to the newest round: a whole model is asked for then."""
        self._tail_is_short = True

    def hear_round(self, data: bytes) -> RoundMessage:
        """Take the message of a round, the newest or one of the tail, and go as far as is known.

        Raises:
            WireError: it is damaged, or of another training.

        """
        message = RoundMessage.unpack(data, self.terms)
        newest = self.newest
        if newest is None or message.round > newest.round or (message.round == newest.round and not newest.is_over):
            newest = self.newest = message  # the tail has the last round as it was before the training was over
        if message.bundle is not None and (self._replica is None or message.round > self._replica.next_round):
            self._waiting[message.round] = message
            for number in [one for one in self._waiting if one < newest.round - TAIL - SNAPSHOT_EVERY]:
                del self._waiting[number]  # no model that the broker keeps is so old
        self._go_on()
        return message

    def hear_part(self, data: bytes) -> None:
        """Take a part of a model; once all parts of one are here, go on from it.

        Raises:
            WireError: it is damaged, or of another training.

        """
        part = read_part(data, self.terms)
        if self._replica is not None and part.round <= self._replica.next_round:
            return
        self._parts[part.number] = part
        alike = [one for one in self._parts.values() if (one.sha256, one.parts) == (part.sha256, part.parts)]
        if len(alike) < part.parts:
            return
        self._parts.clear()
        message: CatchUp[Any] = unpack_catch_up(join_parts(sorted(alike, key=lambda one: one.number)), self.terms.d)
        if len(message.vectors) != self.terms.vectors:
            raise ContentError(f"{len(message.vectors)} vectors came; model and optimiser are {self.terms.vectors}")
        vectors = tuple(np.array(vector) for vector in message.vectors)
        self._replica = self.terms.replica(vectors[0], message.round)
        self._replica.load(vectors, message.round)
        self._is_snapshot, self._tail_is_short = True, False
        self._go_on()

    def _go_on(self) -> None:
        """Take the rounds that follow the model, as far as they are here."""
        replica = self._replica
        if replica is None:
            return
        while (message := self._waiting.pop(replica.next_round + 1, None)) is not None:
            assert message.bundle is not None
            replica.apply(message.bundle, self.terms.bundle_codec(message.round - 1))
            self._is_snapshot = self._tail_is_short = False
            self._check(message)
            if self._replica is None:
                return
        for number in [number for number in self._waiting if number <= replica.next_round]:
            del self._waiting[number]
        if self.newest is not None and self.newest.round == replica.next_round:
            self._check(self.newest)

    def _check(self, message: RoundMessage) -> None:
        """Give the model up if it is not the server's: a whole one is asked for then."""
        assert self._replica is not None
        if message.model_tag != (here := model_tag(self._replica.flat)):
            _log.warning(
                "round %s: the model here has hash %s…, the server's %s…; asking for a whole one",
                message.round,
                here.hex(),
                message.model_tag.hex(),
            )
            self._replica = None


def snapshot(replica: Replica[Float32]) -> bytes:
    """Return a model with all that who follows it needs, for `pack_parts`."""
    message: CatchUp[Any] = CatchUp(replica.next_round, vectors=replica.vectors)
    return message.pack()
