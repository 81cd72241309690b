"""Bytes on all clients' sockets of a whole training: LeNet on MNIST until 80 % of the test digits are right."""

import multiprocessing
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.mqtt.counter import counting
from benchmarks.mqtt.mosquitto import Mosquitto
from fedmpdd.mqtt import Broker, Client
from fedmpdd.mqtt.federation import Farewell, MqttFederation, over_mqtt, prepare_with
from fedmpdd.runs.driver import Callback, Training
from fedmpdd.runs.folders import Run
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.engine import RoundMetrics

TARGET = 0.8
MOST_ROUNDS = 1000
NAME = "lenet"
CODECS: dict[str, dict[str, Any]] = {
    "mpdd:m=100:bits=1:family=hadamard:keys=shared": {"m": 100, "keys": "shared", "downlink_bits": 4},
    "mpdd:m=400:bits=1:family=hadamard:keys=shared": {"m": 400, "keys": "shared", "downlink_bits": 4},
    "mpdd:m=400:bits=1:family=hadamard": {"m": 400, "keys": "derived", "downlink_bits": None},
}


def config_of(codec: str, clients: int, dataset: str) -> RunConfig:
    """The training of docs/results/tables/both-ways.md, on MNIST, where all clients are asked in every round."""
    parameters = dict(CODECS[codec])
    bits = parameters.pop("downlink_bits")
    values: dict[str, Any] = {
        "dataset": dataset,
        "model": "lenet",
        "clients": clients,
        "batch": 1,
        "lr": 0.1,
        "rounds": MOST_ROUNDS,
        "evaluate_every": 8,
        "gradients": "layers",
        "downlink": "replay",
        "codec": {"name": "mpdd", "bits": 1, "family": "hadamard", **parameters},
    }
    return parse_config({**values, "downlink_bits": bits} if bits else values)


class StopAtTarget(Callback):
    """Ends a training at the first evaluation that reaches the target."""

    accuracy: float | None = None

    def after_round(self, training: Training, metrics: RoundMetrics) -> None:
        self.accuracy = metrics.accuracy if metrics.accuracy is not None else self.accuracy
        training.is_over = metrics.accuracy is not None and metrics.accuracy >= TARGET


def _clients(address: str, config: RunConfig, results: Any) -> None:
    import torch

    torch.set_num_threads(1)
    client = Client(Broker.parse(address), NAME, list(range(config.clients)), prepare=prepare_with(config))
    results.put("ready")
    client.run()


def measure(codec: str, clients: int, dataset: str) -> dict[str, Any]:
    """Train to the target with every client behind the counter, and return all bytes."""
    config = over_mqtt(config_of(codec, clients, dataset))
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name) / "broker") as mosquitto:
        broker = mosquitto.broker
        with counting("127.0.0.1", broker.port) as (port, legs):
            behind = str(replace(broker, port=port))
            worker = spawn.Process(target=_clients, args=(behind, config, results), daemon=True)
            worker.start()
            results.get(timeout=300)
            run = Run.create(
                Path(name) / "run", config,
                engine=lambda settings, task: MqttFederation(settings, task, broker, NAME),
            )  # fmt: skip
            stop = StopAtTarget()
            summary = run.train(callbacks=[stop, Farewell()])
            worker.join(60)
        up, down = sum(leg.up.total for leg in legs), sum(leg.down.total for leg in legs)
    rounds = summary["rounds"]
    return {
        "codec": codec,
        "downlink_bits": CODECS[codec]["downlink_bits"],
        "dataset": dataset,
        "clients": clients,
        "connections": len(legs),
        "rounds": rounds,
        "accuracy": stop.accuracy,
        "up": up,
        "down": down,
        "both": up + down,
        "a_client_and_round": (up + down) / clients / rounds,
        "model_sha256": summary["model_sha256"],
        "seconds": round(time.monotonic() - begun, 1),
        "load": round(os.getloadavg()[0], 1),
    }
