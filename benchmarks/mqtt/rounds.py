"""Milliseconds of a synchronous round: one server, 50 connections in two processes, LeNet, mosquitto on loopback."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.mqtt.mosquitto import Mosquitto
from fedmpdd.mqtt import Broker, Client, Server
from fedmpdd.mqtt.client import Encoder
from fedmpdd.mqtt.federation import Farewell, MqttFederation, over_mqtt, prepare_with
from fedmpdd.mqtt.terms import Terms
from fedmpdd.runs.folders import Run
from fedmpdd.simulation.config import RunConfig, codec_config, parse_config
from fedmpdd.uplink.codec_config import parse_codec

D = 13_426  # of LeNet
GOAL_MS = 50.0
WARM_UP = 10  # rounds that do not count
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """How long rounds took, in milliseconds."""

    codec: str
    keys: str
    gradients: str  # "ready": made up before; "LeNet": computed on digits in every round
    clients: int
    processes: int
    rounds: int
    median_ms: float
    p90_ms: float
    gradients_ms: float  # of the slower process, with their encoding; 0 where they were ready
    beside_ms: float  # a round without them, median
    server_cpu_ms: float  # of a round, all threads, median
    client_cpu_ms: float  # of a round, the busiest process, gradients included
    load: float  # of the machine when it was over

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return {**asdict(self), "goal_ms": GOAL_MS}


def config_of(text: str, clients: int, rounds: int) -> RunConfig:
    """LeNet on the bundled digits, one example a client, never evaluated."""
    values: dict[str, Any] = {"dataset": "mnist-5k", "model": "lenet", "clients": clients, "batch": 1, "device": "cpu"}
    values |= {"rounds": rounds, "evaluate_every": 10**6, "gradients": "layers", "lr": 0.01}
    return codec_config(parse_config({**values, "codec": {"name": "mpdd", "m": 400}}), text)


class TimedEncoder:
    """An encoder that says how long each round took it.

    Args:
        encoder: what does the work.
        taken: seconds by round, added to.

    """

    def __init__(self, encoder: Encoder, taken: dict[int, float]) -> None:
        self._encoder, self._taken = encoder, taken

    def updates(self, round_number: int, flat: Float32, clients: Any) -> list[bytes]:
        """See fedmpdd.mqtt.client.Encoder."""
        begun = time.perf_counter()
        payloads = self._encoder.updates(round_number, flat, clients)
        self._taken[round_number] = time.perf_counter() - begun
        return payloads


def ready_gradients() -> Callable[[Float32, int, int], Float32]:
    """Return a function of gradients that take no time."""
    gradients = np.random.default_rng(0).standard_normal((64, D)).astype(np.float32)
    return lambda flat, round_number, client: gradients[(7 * round_number + client) % 64]


def _client_process(address: str, numbers: list[int], config: RunConfig | None, results: Any) -> None:
    """Be some clients, and send back how long each round's gradients took, and how much processor time all took."""
    taken: dict[int, float] = {}
    if config is None:
        initial = np.zeros(D, np.float32)
        client = Client(Broker.parse(address), "rounds", numbers, ready_gradients(), initial=initial)
    else:
        import torch

        torch.set_num_threads(1)
        prepare = prepare_with(config)

        def timed(terms: Terms) -> tuple[Encoder, Float32 | None]:
            encoder, initial = prepare(terms)
            return TimedEncoder(encoder, taken), initial

        client = Client(Broker.parse(address), "rounds", numbers, prepare=timed)
    results.put("ready")
    begun = time.process_time()
    client.run()
    results.put((taken, time.process_time() - begun))


def measure(
    text: str = "peaks:m=14", *, clients: int = 50, processes: int = 2, rounds: int = 200, is_real: bool = False
) -> Row:
    """Time rounds. is_real: with gradients of LeNet; else with such as are there already."""
    total = rounds + WARM_UP
    config = over_mqtt(config_of(text, clients, total)) if is_real else None
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder) / "broker") as mosquitto:
        numbers = [list(range(i * clients // processes, (i + 1) * clients // processes)) for i in range(processes)]
        workers = [
            spawn.Process(target=_client_process, args=(str(mosquitto.broker), part, config, results), daemon=True)
            for part in numbers
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            results.get()
        used: list[float] = []

        def note(*_: object) -> None:
            ends.append(time.perf_counter())
            used.append(time.process_time())

        if config is None:
            codec = parse_codec(text)
            server = Server(
                mosquitto.broker, "rounds", np.zeros(D, np.float32), codec.build(), Path(folder) / "run",
                clients=clients, rounds=total, lr=1e-3, seed=7,
            )  # fmt: skip
            server.run(note)
        else:
            run = Run.create(
                Path(folder) / "run", config,
                engine=lambda settings, task: MqttFederation(settings, task, mosquitto.broker, "rounds"),
            )  # fmt: skip
            run.train(note, callbacks=[Farewell()])
        said = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
    times = np.diff(ends)[-rounds:]
    first = total - len(times)
    slower = [max((taken.get(k, 0.0) for taken, _ in said), default=0.0) for k in range(first, total)]
    beside = times - slower
    return Row(
        text, "derived", "LeNet" if is_real else "ready", clients, processes, rounds,
        1e3 * median(times), 1e3 * quantiles(times, n=10)[-1], 1e3 * median(slower), 1e3 * median(beside),
        1e3 * median(np.diff(used)[-rounds:]), 1e3 * max(cpu for _, cpu in said) / total, os.getloadavg()[0],
    )  # fmt: skip
