"""Clients with different links over MQTT: by the length of a frame the server knows which codec it is of."""

from pathlib import Path

import numpy as np
import pytest

from fedmpdd.codecs import Peaks
from fedmpdd.errors import CodecError, ConfigError
from fedmpdd.mqtt import Client, Server
from fedmpdd.mqtt.gatherer import Gatherer
from fedmpdd.mqtt.messages import Contribution, pack_update
from fedmpdd.mqtt.terms import Terms
from fedmpdd.uplink import mixed_mean
from fedmpdd.wire.frames import payload_of
from tests.mqtt.beside import PATIENCE_S, beside
from tests.mqtt.mosquitto import Mosquitto

D = 7850
CODECS = [Peaks(7), Peaks(28)]
TABLES = tuple({"name": "peaks", "m": codec.m} for codec in CODECS)


def terms_of(**changes: object) -> Terms:
    values: dict[str, object] = {
        "clients": 4,
        "per_round": 4,
        "seed": 3,
        "links": TABLES,
        "model_sha256": "0" * 64,
        **changes,
    }
    return Terms(TABLES[0], ((D,),), **values)  # type: ignore[arg-type]


def gradient(client: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(client).standard_normal(D).astype(np.float32)


def test_terms_with_links_come_back_as_they_were() -> None:
    terms = terms_of(link_spread=2.5)
    assert Terms.unpack(terms.pack()) == terms
    assert [session.frame_bytes() for session in terms.sessions] == [9, 33]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"keys": "shared"}, CodecError, "same error"),
        ({"keys": "partitioned"}, CodecError, "slots of different lengths"),
        ({"links": (TABLES[0], {"name": "mpdd", "m": 40, "bits": 1})}, ConfigError, "codec of another size"),
        ({"link_spread": "wide"}, ConfigError, "middle"),
        ({"links": (), "link_spread": -1.0}, ConfigError, "0 or more"),
        ({"links": (TABLES[0], {"name": "signsgd"})}, CodecError, "does not state the error"),
    ],
)
def test_links_that_cannot_be_are_refused_by_who_knows_why(
    changes: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        terms_of(**changes)


def test_a_frame_is_read_with_the_codec_of_its_length() -> None:
    terms = terms_of()
    gatherer = Gatherer(terms)
    gatherer.open(0)
    sent = []
    for client in range(4):
        codec = CODECS[client // 2]  # not that of its number: the length says it
        update = codec.encode(gradient(client), terms.key(0, client))
        sent.append(update)
        gatherer.receive(client, pack_update(0, payload_of(update)))
    gatherer.receive(0, pack_update(0, bytes(10)))  # of no codec
    counted = gatherer.wait()
    assert counted.updates == sent
    assert counted.contributions == tuple(map(Contribution, range(4)))
    assert sum(gatherer.drops.values()) == 1


def test_a_training_with_links_takes_the_mixed_mean(mosquitto: Mosquitto, tmp_path: Path) -> None:
    start = np.zeros(D, np.float32)
    server = Server(mosquitto.address, "links", start, CODECS, tmp_path / "run", clients=4, rounds=2, lr=0.5, seed=9)
    client = beside(Client(mosquitto.address, "links", [0, 1, 2, 3], lambda flat, _, one: gradient(one) - flat).run)
    model = server.run()
    assert client.result(PATIENCE_S).tobytes() == model.tobytes()
    flat = start
    for number in range(2):
        updates = [CODECS[one % 2].encode(gradient(one) - flat, server.terms.key(number, one)) for one in range(4)]
        flat = flat - 0.5 * mixed_mean(updates, CODECS).estimate()
    assert flat.tobytes() == model.tobytes()
