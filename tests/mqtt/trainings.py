"""Trainings that tests know all of: terms, clients' gradients, and a server that needs no network."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.mqtt.follower import Follower, model_sha256
from fedmpdd.mqtt.gatherer import weights_of
from fedmpdd.mqtt.messages import Contribution, RoundMessage, pack_update
from fedmpdd.mqtt.rounds import message_of
from fedmpdd.mqtt.terms import Terms
from fedmpdd.uplink import Uplink
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.frames import payload_of
from tests.conftest import gaussian

Float32 = NDArray[np.float32]
SHAPES = ((6, 40), (10,))
D = 250
MODEL: Float32 = gaussian(D, seed=1)
PEAKS = {"name": "peaks", "m": 4, "group": 16, "family": "rademacher"}
SIGNS = {"name": "mpdd", "m": 12, "bits": 1, "family": "hadamard"}
TARGETS = gaussian(64, D, seed=2)


def make_terms(**changes: Any) -> Terms:
    values: dict[str, Any] = {
        "codec": PEAKS,
        "shapes": SHAPES,
        "seed": 2024,
        "clients": 6,
        "per_round": 4,
        "sampling_seed": 3,
        "rounds": 20,
        "lr": 0.1,
        "model_sha256": model_sha256(MODEL),
    }
    return Terms(**{**values, **changes})


def gradient(flat: Float32, round_number: int, client: int) -> Float32:
    """Of half the squared distance to a point of the client's own: a training of these comes to the points' mean."""
    difference: Float32 = flat - TARGETS[client % len(TARGETS)]
    return difference


def payload(terms: Terms, flat: Float32, round_number: int, client: int) -> bytes:
    """The bare frame of a client in a round that starts from this model."""
    encoded = terms.uplink().encode(
        round_number, gradient(flat, round_number, client)[np.newaxis], [terms.key(round_number, client)], [client]
    )
    return payload_of(encoded.batch.updates()[0])


def update(terms: Terms, flat: Float32, round_number: int, client: int) -> bytes:
    """What that client sends."""
    return pack_update(round_number, payload(terms, flat, round_number, client))


class ServerOnPaper:
    """A server's rounds without a network: it knows all models that were, and the message of each round."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.replica: Any = terms.replica(MODEL.copy())
        self.models: list[Float32] = [MODEL]
        self.messages: list[RoundMessage] = []  # the message of round k + 1 at k
        self._uplink = Uplink(terms.session.codec, terms.d, terms.keys, mean_bits=terms.mean_bits)

    def step(self, contributions: Sequence[Contribution]) -> RoundMessage:
        """Take the updates of these clients, each made from the model of its own round."""
        number, terms = self.replica.next_round, self.terms
        updates = []
        for one in contributions:
            begun = number - one.age
            place = one.client
            if terms.keys == "partitioned":
                place = int(np.searchsorted(terms.sample(begun), one.client))
            frame = payload(terms, self.models[begun], begun, one.client)
            updates.append(terms.session.unpack(frame, begun, place))
        mean = None
        if updates:
            mean = self._uplink.mean(self._uplink.uploads_of(updates), weights_of(contributions, terms))
        self.replica.take(mean)
        bundle = (Bundle() if mean is None else mean.bundle()).pack()
        self.models.append(self.replica.flat.copy())
        self.messages.append(message_of(number + 1, model_sha256(self.replica.flat), bundle, contributions))
        return self.messages[-1]

    def run(self, rounds: int) -> "ServerOnPaper":
        """Hold synchronous rounds in which everybody answers who was asked."""
        for _ in range(rounds):
            self.step([Contribution(int(one)) for one in self.terms.sample(self.replica.next_round)])
        return self

    def first_message(self) -> RoundMessage:
        """The message of round 0, which adds nothing."""
        return RoundMessage(0, bytes.fromhex(model_sha256(MODEL))[:4])

    def packed(self, number: int) -> bytes:
        """The message of a round as it is published."""
        message = self.messages[number - 1] if number else self.first_message()
        return message.pack(self.terms)


def is_at(follower: Follower, flat: Float32) -> bool:
    """Whether a follower has this model, to the bit."""
    return follower.flat.tobytes() == flat.tobytes()
