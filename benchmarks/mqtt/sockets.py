"""Bytes on a client's socket: of an update, its acknowledgement, and a round, with TLS and without."""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

from benchmarks.mqtt.counter import TLS_EXTRA, Leg, counting
from benchmarks.mqtt.mosquitto import Mosquitto
from fedmpdd.mqtt import Client, Server
from fedmpdd.uplink.codec_config import parse_codec

D = 13_426  # of LeNet
ACK = 4  # bytes of an MQTT acknowledgement without a reason
UPDATE_GOAL = {False: 40, True: 100}


@dataclass(frozen=True)
class Row:
    """Bytes on the socket of one client, medians over rounds, connection set-up apart."""

    codec: str
    d: int
    clients: int
    tls: bool
    keys: str
    mean_bits: int | None
    rounds: int
    frame: int  # the bare frame alone
    update: int  # as it is published
    update_ack: int  # the broker's answer
    round: int  # the message of a round, to one client
    round_ack: int
    set_up: int  # of the connection, both ways

    @property
    def of_update(self) -> int:
        """An update and its acknowledgement."""
        return self.update + self.update_ack

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return {**asdict(self), "update_and_ack": self.of_update, "goal": UPDATE_GOAL[self.tls]}


def run(text: str, *, clients: int = 50, rounds: int = 40) -> Iterator[Row]:
    """Measure, without and with TLS, independent keys and shared ones with 8 bits down."""
    for tls in (False, True):
        yield measure(text, clients, rounds, tls=tls)
    yield measure(text, clients, rounds, tls=False, keys="shared", mean_bits=8)


def measure(
    text: str, clients: int, rounds: int, *, tls: bool, keys: Any = "derived", mean_bits: int | None = None
) -> Row:
    """Train on made-up gradients, one client behind the counter, and take its bytes apart."""
    codec = parse_codec(text).build()
    random = np.random.default_rng(0)
    gradients = random.standard_normal((8, D)).astype(np.float32)
    initial = np.zeros(D, np.float32)

    def gradient(flat: Any, round_number: int, client: int) -> Any:
        return gradients[(round_number + client) % 8]

    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name) / "broker", tls=tls) as mosquitto:
        broker = mosquitto.broker
        with counting("127.0.0.1", broker.port) as (port, legs):
            counted = Client(replace(broker, port=port), "bytes", [0], gradient, initial=initial)
            others = Client(broker, "bytes", list(range(1, clients)), gradient, initial=initial)
            threads = [Thread(target=one.run) for one in (counted, others)]
            server = Server(
                broker, "bytes", initial, codec, Path(name) / "run", clients=clients, rounds=rounds, lr=1e-3,
                seed=7, keys=keys, mean_bits=mean_bits,
            )  # fmt: skip
            for thread in threads:
                thread.start()
            server.run()
            for thread in threads:
                thread.join()
        (leg,) = legs
    frame = codec.bytes_per_update(D)
    update, update_ack, round_bytes, round_ack, set_up = _apart(leg, rounds, TLS_EXTRA if tls else 0)
    return Row(
        text, D, clients, tls, keys, mean_bits, rounds, frame, update, update_ack, round_bytes, round_ack, set_up
    )


def _apart(leg: Leg, rounds: int, extra: int) -> tuple[int, int, int, int, int]:
    """Sizes of the messages of a round in the second half of the training, and all bytes that are of no round."""
    up = [one.nbytes for one in leg.up.messages if one.kind in ("publish", "puback", "tls")]
    down = [one.nbytes for one in leg.down.messages if one.kind in ("publish", "puback", "tls")]
    half = rounds // 2
    updates = [size for size in up if size > ACK + extra][-half:-1]  # not the last one, which says goodbye
    acks = [size for size in down if size <= ACK + extra + 2][-half:-1]
    messages = [size for size in down if size > ACK + extra + 2][-half:-1]
    answers = [size for size in up if size <= ACK + extra][-half:-1]
    sizes = tuple(int(median(part)) for part in (updates, acks, messages, answers))
    total = leg.up.total + leg.down.total
    return *sizes, total - rounds * sum(sizes)  # type: ignore[return-value]
