"""A mosquitto of a benchmark's own: on a free port of loopback, in a folder of its own, stopped by its process id."""

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from fedmpdd.errors import MissingDependencyError, RunError
from fedmpdd.mqtt import Broker

PATIENCE_S = 20.0
# What ten thousand clients need: see docs/results/mqtt.md for what each of the lines is for.
SETTINGS: Mapping[str, str] = {
    "max_queued_messages": "0",
    "max_inflight_messages": "0",
    "sys_interval": "1",
    "set_tcp_nodelay": "true",
}
DEFAULTS: Mapping[str, str] = {"sys_interval": "1"}


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Mosquitto:
    """A broker that lives as long as a `with` block; it can be killed and started again in between.

    Args:
        folder: for its configuration, its log and its certificates.
        settings: lines of its configuration.
        tls: whether it takes encrypted connections only.

    """

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS, *, tls: bool = False) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin")
        if program is None:
            raise MissingDependencyError("mosquitto is not installed: make mosquitto, or apt-get install mosquitto")
        self._program, self._folder, self.port = program, folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        # As root it would become another user, who may not read a folder of the benchmark.
        lines = {"allow_anonymous": "true", "persistence": "false", "user": getpass.getuser(), **settings}
        text = f"listener {self.port} 127.0.0.1\n"
        if tls:
            make_certificates(folder)
            text += f"cafile {folder}/ca.pem\ncertfile {folder}/broker.pem\nkeyfile {folder}/broker.key\n"
        text += "".join(f"{name} {value}\n" for name, value in lines.items())
        (folder / "mosquitto.conf").write_text(text, encoding="utf-8")
        ca = str(folder / "ca.pem") if tls else None
        self.broker = Broker("localhost" if tls else "127.0.0.1", self.port, tls, ca=ca)

    def start(self) -> None:
        """Start it, and return when it listens."""
        with (self._folder / "mosquitto.log").open("ab") as log:
            command = [self._program, "-c", str(self._folder / "mosquitto.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RunError(f"mosquitto did not start; {self._folder}/mosquitto.log says why")

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def make_certificates(folder: Path) -> None:
    """Make an authority, and a certificate of a broker on localhost, valid for a day, with the program openssl."""
    if (folder / "broker.pem").exists():
        return

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    openssl(
        "req", "-x509", *curve, "-days", "1", "-subj", "/CN=benchmark", *usage, "-keyout", "ca.key", "-out", "ca.pem"
    )
    openssl("req", *curve, "-subj", "/CN=localhost", "-keyout", "broker.key", "-out", "broker.csr")
    (folder / "names").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n", encoding="utf-8"
    )
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names"]
    openssl("x509", "-req", "-in", "broker.csr", *signing, "-out", "broker.pem")
