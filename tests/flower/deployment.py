"""A real deployment for tests: SuperLink and SuperNodes on loopback, each in a process of its own, gone afterwards."""

import contextlib
import ctypes
import datetime
import ipaddress
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_BIN = Path(sys.executable).parent
_MARK = "FEDMPDD_TEST_DEPLOYMENT"  # in the environment of all processes: Flower detaches some from their parents
_NAME = "test"  # of the connection
_START_S, _COMMAND_S, _STOP_S = 60.0, 60.0, 15.0
_PR_SET_PDEATHSIG = 1


class DeploymentError(RuntimeError):
    """A deployment that did not do what it should, with the end of the log that says why."""


@dataclass
class Node:
    """A SuperNode."""

    name: str
    process: "subprocess.Popen[bytes]"
    node_id: int | None  # as registered


@dataclass
class Run:
    """What is left of a run."""

    log: str
    status: str
    seconds: float


@dataclass
class Deployment:
    """A SuperLink and the nodes that were added; use `deployment`, which also ends it."""

    folder: Path
    secure: bool
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.outside = Outside()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = _environment(self.folder / "home", self.mark, self.outside.address)
        connection = f'[superlink]\ndefault = "{_NAME}"\n\n[superlink.{_NAME}]\naddress = "127.0.0.1:{self.port}"\n'
        if self.secure:
            make_certificates(self.folder)
            connection += f'root-certificates = "{self.folder / "ca.crt"}"\n'
        else:
            connection += "insecure = true\n"
        (self.folder / "home").mkdir()
        (self.folder / "home" / "config.toml").write_text(connection, encoding="utf-8")

    # ------------------------------------------------------------------------------------------- processes

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        tls = ["--insecure"]
        if self.secure:
            files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
            tls = [part for option, name in files.items() for part in (option, str(self.folder / name))]
            tls.append("--enable-supernode-auth")
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        link = self._start(
            "superlink", ["flower-superlink", "--disable-runtime-dependency-installation", *address, *tls]
        )
        self._wait(lambda: _listens(self.port), link, "superlink", "it does not listen")

    def add_node(self, node_config: str, *, registered: bool = True, through: int | None = None) -> Node:
        """Start a SuperNode; in a secure deployment with a key of its own, which the SuperLink is told, or not.

        through: a port, other than the SuperLink's own, that leads to it.
        """
        name = f"supernode-{len(self.nodes)}"
        tls, node_id = ["--insecure"], None
        if self.secure:
            make_key(self.folder / name)
            if registered:
                answer = self.flwr("supernode", "register", f"{self.folder / name}.pub", _NAME, "--format", "json")
                node_id = int(json.loads(answer)["node-id"])
            tls = ["--root-certificates", str(self.folder / "ca.crt")]
            tls += ["--auth-supernode-private-key", str(self.folder / name)]
        link = ["--superlink", f"127.0.0.1:{through or self.port}", "--port", str(free_port())]
        process = self._start(name, ["flower-supernode", *link, *tls, "--node-config", node_config])
        self.nodes.append(Node(name, process, node_id))
        return self.nodes[-1]

    def log_of(self, name: str) -> str:
        """Return what a process wrote so far, it and those it started."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def wait_for_log(self, node: Node, text: str) -> None:
        """Wait until a node writes this."""
        self._wait(lambda: text in self.log_of(node.name), None, node.name, f"it does not say {text!r}")

    # -------------------------------------------------------------------------------------------- commands

    def flwr(self, *arguments: str, timeout: float = _COMMAND_S, with_errors: bool = False) -> str:
        """Return what a `flwr` command writes, perhaps with its standard error; it must succeed."""
        command = [str(_BIN / "flwr"), *arguments]
        process = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        end = time.monotonic() + timeout
        late = False
        while True:
            self._reap()
            try:
                output, errors = process.communicate(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                if not late and time.monotonic() > end:
                    late = True
                    os.killpg(process.pid, signal.SIGKILL)
        if late or process.returncode:
            problem = f"took over {timeout} s" if late else f"ended with {process.returncode}"
            raise DeploymentError(f"{command} {problem}\n{_tail((output + (errors or b'')).decode())}")
        return output.decode()

    def run(self, app: Path, config: str, *, timeout: float) -> Run:
        """Submit an app, wait for its end, and return what the server logged."""
        started = time.monotonic()
        log = self.flwr("run", str(app), _NAME, "--stream", "--run-config", config, timeout=timeout, with_errors=True)
        (latest, *_) = sorted(self.runs(), key=lambda one: str(one["pending-at"]), reverse=True)
        return Run(log, str(latest["status"]), time.monotonic() - started)

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that the SuperLink knows."""
        found: list[dict[str, Any]] = json.loads(self.flwr("list", _NAME, "--format", "json"))["runs"]
        return found

    def listed_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that the SuperLink knows."""
        found: list[dict[str, Any]] = json.loads(self.flwr("supernode", "list", _NAME, "--format", "json"))["nodes"]
        return found

    # -------------------------------------------------------------------------------------------- the end

    def stop(self) -> None:
        """End all processes, politely and then not, and make sure that none is left."""
        self.outside.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            left = self._left_after(_STOP_S)
            if not left:
                return
        raise DeploymentError(f"processes {left} cannot be ended")

    def living(self) -> list[int]:
        """Return all processes of this deployment, whoever started them."""
        self._reap()
        mark = f"{_MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it just ended, or is somebody else's
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found or [process.pid for process in self._processes if process.poll() is None]

    def _reap(self) -> None:
        """A process that ended stays until somebody looks, and as long its children think that they are needed."""
        for process in self._processes:
            process.poll()

    def _left_after(self, seconds: float) -> list[int]:
        end = time.monotonic() + seconds
        while (left := self.living()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def _start(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(_BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._processes.append(process)
        return process

    def _wait(
        self, done: Callable[[], bool], process: "subprocess.Popen[bytes] | None", name: str, problem: str
    ) -> None:
        end = time.monotonic() + _START_S
        while not done():
            self._reap()
            if process is not None and process.poll() is not None:
                raise DeploymentError(f"{name} ended with {process.returncode}\n{_tail(self.log_of(name))}")
            if time.monotonic() > end:
                raise DeploymentError(f"{name}: {problem} after {_START_S} s\n{_tail(self.log_of(name))}")
            time.sleep(0.1)


@contextlib.contextmanager
def deployment(folder: Path, *, nodes: int = 2, secure: bool = True) -> Iterator[Deployment]:
    """A SuperLink and so many SuperNodes, with TLS and node authentication if secure; an empty folder for its files."""
    one = Deployment(folder, secure)
    try:
        one.start_link()
        for number in range(nodes):
            one.add_node(f"partition-id={number} num-partitions={nodes}")
        yield one
    finally:
        one.stop()


class Outside:
    """A proxy that leads nowhere, and remembers who wanted to go there: a deployment must work offline."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._refuse, daemon=True).start()

    def _refuse(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(1)
                    with contextlib.suppress(OSError):
                        self.asked.append(connection.recv(200).decode(errors="replace"))

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing alone does not
        self._socket.close()


def make_key(path: Path) -> None:
    """Write a node's key pair, as `ssh-keygen -t ecdsa -b 384` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    ssh = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def make_certificates(folder: Path) -> None:
    """Write an authority, ca.crt, and the certificate of a server on loopback that it signed, server.crt and .key."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedmpdd test authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)

    def start(name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            # Python 3.13 is strict: it wants the names of keys, and what the authority's is for.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )

    signs = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"), False)
    signs |= dict.fromkeys(("key_agreement", "crl_sign", "encipher_only", "decipher_only"), False)
    usage = x509.KeyUsage(**signs, key_cert_sign=True)
    root = start(issuer, authority, is_authority=True).add_extension(usage, critical=True)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    own = start(subject, server, is_authority=False).add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "server.crt").write_bytes(own.sign(authority, hashes.SHA256()).public_bytes(pem))
    private = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(private)


def _environment(home: Path, mark: str, proxy: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {
        **kept,
        _MARK: mark,
        "PATH": os.pathsep.join([str(_BIN), os.environ.get("PATH", "")]),  # Flower starts its parts by name
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds, else 1
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "NO_PROXY": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",  # several nodes share this machine
    }


def _die_with_parent() -> None:
    """Even if the tests are killed, so that they cannot clean up, nothing stays."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-40:])
