"""What a server leaves with the broker: enough to catch up with, and no more than is of use."""

from typing import Any

import numpy as np
import pytest

from fedmpdd.mqtt import Broker
from fedmpdd.mqtt.follower import SNAPSHOT_EVERY, TAIL
from fedmpdd.mqtt.rounds import Rounds
from fedmpdd.mqtt.terms import Terms
from fedmpdd.mqtt.topics import Topics

D = 100


class Shelf:
    """The retained messages of a broker, by the end of their topics, and how often a model was written."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.models = 0

    def publish(self, messages: Any, **options: Any) -> None:
        for topic, payload in messages:
            name = topic.removeprefix("fedmpdd/shelf/")
            self.models += name == "model/0"
            if payload:
                self.kept[name] = payload
            else:
                self.kept.pop(name, None)


def served(monkeypatch: pytest.MonkeyPatch, rounds: int, message_bytes: int) -> Shelf:
    """What is left after so many rounds with messages of this length."""
    terms = Terms({"name": "fedsgd"}, ((D,),), seed=1, clients=1, per_round=1, model_sha256="0" * 64)
    server, shelf = Rounds(Broker("nowhere.invalid"), "shelf", terms), Shelf()
    monkeypatch.setattr(server, "_post", shelf)
    replica = terms.replica(np.zeros(D, np.float32))
    for number in range(1, rounds + 1):
        replica.next_round = number
        monkeypatch.setattr(server, "_packed", (number, bytes([number % 256]) * message_bytes))
        server._open(number, replica, added=object())  # type: ignore[arg-type]
    return shelf


def tail_of(shelf: Shelf) -> list[str]:
    return sorted(name for name in shelf.kept if name.startswith("tail/"))


def test_of_short_messages_the_whole_ring_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = served(monkeypatch, 2 * TAIL, message_bytes=3)
    assert len(tail_of(shelf)) == TAIL
    assert shelf.models == 2 * TAIL // SNAPSHOT_EVERY


@pytest.mark.parametrize("message_bytes", [50, 130, 4 * D, 4 * D + 1, 10_000])
def test_of_long_ones_no_more_than_two_models_and_a_message(
    monkeypatch: pytest.MonkeyPatch, message_bytes: int
) -> None:
    rounds = 200
    shelf = served(monkeypatch, rounds, message_bytes)
    tail = tail_of(shelf)
    assert len(tail) * message_bytes <= 2 * 4 * D + message_bytes
    snapshot = int.from_bytes(shelf.kept["model/0"][4:8], "little")
    for number in range(snapshot + 1, rounds + 1):  # who begins with the model finds all that came since
        assert shelf.kept[f"tail/{number % TAIL}"] == bytes([number % 256]) * message_bytes
    assert Topics("shelf").tail(rounds % TAIL).removeprefix("fedmpdd/shelf/") in tail
