"""Real processes, killed in the middle of rounds: the training ends in the model that it would have had."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from fedmpdd.mqtt.federation import over_mqtt
from fedmpdd.server.journal import JOURNAL, JournalReader
from fedmpdd.simulation import load_config, make_federation
from fedmpdd.simulation.replay import model_sha256
from tests.mqtt.mosquitto import Mosquitto

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0
COMMAND = [sys.executable, "-c", "from fedmpdd.cli import main; main()"]
SETTINGS = ["demo", "codec=peaks:m=7:keys=derived", "clients=6", "participation=0.5", "gradients=loop", "device=cpu"]
SETTINGS += ["rounds=60", "evaluate_every=60", "seed=5"]


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The hash of the local engine's model."""
    config = over_mqtt(load_config(SETTINGS[0], SETTINGS[1:]))
    federation = make_federation(config)
    for _ in range(config.rounds):
        federation.run_round()
    return model_sha256(federation.flat)


class Process:
    """A command of fedmpdd, what it says, and a way to end it."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            self._lines += iter(stream.readline, "")

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def result(self) -> str:
        """What it said, once it ended well."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert code == 0, self.text
        return self.text

    def failure(self) -> str:
        """What it said, once it ended badly."""
        assert self._process.wait(PATIENCE_S) != 0
        self._reader.join(PATIENCE_S)
        return self.text

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Let it do nothing until it goes on."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join(PATIENCE_S)


class Site:
    """The processes of a training at a broker."""

    def __init__(self, broker: Mosquitto, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self._all: list[Process] = []

    def _start(self, *arguments: str) -> Process:
        process = Process(["mqtt", *arguments, "--broker", self.broker.address, "--name", "site"], self.folder)
        self._all.append(process)
        return process

    def serve(self, *options: str) -> Process:
        return self._start("serve", *SETTINGS, "--out", "run", *options)

    def resume(self) -> Process:
        return self._start("serve", "--resume", "run")

    def client(self, numbers: str) -> Process:
        return self._start("client", *SETTINGS, "--clients", numbers)

    def rounds(self) -> int:
        """How many are in the journal."""
        path = self.folder / "run" / JOURNAL
        if not path.exists():
            return 0
        with JournalReader(path) as journal:
            return sum(1 for _ in journal)

    def wait_for_progress(self, rounds: int) -> None:
        """Wait until so many more rounds are in the journal."""
        goal, end, pause = self.rounds() + rounds, time.monotonic() + PATIENCE_S, threading.Event()
        while self.rounds() < goal:
            assert time.monotonic() < end, "\n".join(process.text for process in self._all)
            pause.wait(0.02)

    def end(self) -> None:
        for process in self._all:
            process.end()


@pytest.fixture
def site(mosquitto_alone: Mosquitto, tmp_path: Path) -> Iterator[Site]:
    site = Site(mosquitto_alone, tmp_path)
    yield site
    site.end()


def sha256_of(said: str) -> str:
    match = re.search(r"model sha256 ([0-9a-f]{64})", said)
    assert match is not None, said
    return match[1]


def test_three_commands_train_what_the_local_engine_trains(site: Site, undisturbed: str) -> None:
    server, clients = site.serve(), [site.client("0-2"), site.client("3,4-5")]
    assert sha256_of(server.result()) == undisturbed
    for client in clients:
        assert "the training is over" in client.result()


def test_a_server_that_is_killed_in_the_middle_of_rounds_goes_on(site: Site, undisturbed: str) -> None:
    """A client that does nothing keeps the round open while the server is killed."""
    server, clients = site.serve(), [site.client("0-2"), site.client("3-5")]
    for _ in range(3):
        site.wait_for_progress(5)
        clients[1].stop()
        server.kill()
        clients[1].go_on()
        server = site.resume()
    assert sha256_of(server.result()) == undisturbed
    for client in clients:
        assert "the training is over" in client.result()


def test_a_broker_that_is_killed_and_forgets_everything(site: Site, undisturbed: str) -> None:
    server, clients = site.serve(), [site.client("0-2"), site.client("3-5")]
    for _ in range(3):
        site.wait_for_progress(5)
        site.broker.kill()
        site.broker.start()
    assert sha256_of(server.result()) == undisturbed
    for client in clients:
        assert "the training is over" in client.result()


def test_a_client_that_is_killed_comes_back_and_catches_up(site: Site, undisturbed: str) -> None:
    server, staying = site.serve(), site.client("0-2")
    killed = site.client("3-5")
    site.wait_for_progress(10)
    killed.kill()
    back = site.client("3-5")
    assert sha256_of(server.result()) == undisturbed
    for client in (staying, back):
        assert "the training is over" in client.result()


def test_server_and_broker_killed_together(site: Site, undisturbed: str) -> None:
    server, clients = site.serve(), [site.client("0-2"), site.client("3-5")]
    site.wait_for_progress(5)
    site.broker.kill()
    server.kill()
    site.broker.start()
    assert sha256_of(site.resume().result()) == undisturbed
    for client in clients:
        assert "the training is over" in client.result()


def test_wrong_uses_of_the_commands_are_one_line(site: Site) -> None:
    site.broker.stop()
    nowhere = site.client("0")
    refused = {
        nowhere: "cannot be used",
        site.client("0-x"): "expected numbers and ranges, such as 0-24,30",
        site.serve("arrivals.max_age=300"): "max_age",
        site.serve("journal=false"): "once it is in the journal",
    }
    for process, words in refused.items():
        said = process.failure()
        assert words in said
        assert "Traceback" not in said
    site.broker.start()
