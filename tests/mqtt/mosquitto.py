"""A broker of a test: mosquitto on a free port of loopback, which is started, killed and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

EXECUTABLE = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PATIENCE_S = 20.0
# What docs/mqtt.md says about many clients; no test runs without it.
LIMITS = ("max_inflight_messages 0", "max_queued_messages 0")


def need_mosquitto() -> None:
    """Skip a test where there is no broker or no client of it."""
    pytest.importorskip("aiomqtt", reason="the extra `mqtt` is not installed")
    if EXECUTABLE is None:
        pytest.skip("mosquitto is not installed: make mosquitto")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Mosquitto:
    """A broker without persistence.

    Args:
        folder: for its configuration and log.
        listener: lines of the configuration after the listener's; by default everybody may connect.

    """

    def __init__(self, folder: Path, listener: Sequence[str] = ("allow_anonymous true",)) -> None:
        self.port = free_port()
        self._folder = folder
        self._config = folder / "mosquitto.conf"
        lines = ["user root", *LIMITS, "sys_interval 1", f"listener {self.port} 127.0.0.1", *listener]
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        assert EXECUTABLE is not None
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen([EXECUTABLE, "-c", str(self._config)], stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < end, self.log()
                time.sleep(0.01)

    def log(self) -> str:
        return (self._folder / "mosquitto.log").read_text()

    def kill(self) -> None:
        """As by a power cut: what it kept in memory is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None
