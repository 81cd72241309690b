"""TLS with client certificates, and a broker's ACL: the configuration that docs/mqtt.md shows, as it stands there."""

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedmpdd.errors import RunError
from fedmpdd.mqtt import Broker, Client, Server
from tests.mqtt.beside import PATIENCE_S, beside
from tests.mqtt.mosquitto import Mosquitto, need_mosquitto
from tests.mqtt.test_training import make_server, on_paper
from tests.mqtt.trainings import MODEL, Float32, gradient, update

pytest.importorskip("cryptography", reason="the extra `privacy` is not installed")
from tests.mqtt.certificates import Authority

pytestmark = [
    pytest.mark.slow,
    # paho leaves sockets open where TLS fails, and they are collected in whatever test comes next
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PAGE = Path(__file__).parents[2] / "docs" / "mqtt.md"


def block_of_the_page(first_line: str) -> list[str]:
    """The lines of the page's configuration that begins so."""
    blocks: list[str] = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return next(block for block in blocks if block.startswith(first_line)).splitlines()


class Site:
    """A broker that believes one authority, with the ACL of the page."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.issue("broker")
        acl = folder / "acl"
        acl.write_text("\n".join(block_of_the_page("# acl")) + "\n")
        acl.chmod(0o600)
        files = {"ca.pem": self.authority.ca, "broker.pem": certificate, "broker.key": key, "acl": acl}
        lines = block_of_the_page("# mosquitto.conf")
        lines = [line for line in lines if not line.startswith(("listener", "persistence", "autosave", "max_", "#"))]
        for name, path in files.items():
            lines = [line.replace(f"/etc/mosquitto/{name}", str(path)) for line in lines]
        self.mosquitto = Mosquitto(folder, lines)

    def broker(self, name: str) -> Broker:
        """How somebody of this name connects; "{client}" for a client's number."""
        ca = self.authority.ca
        certificate, key = f"{ca.parent}/{name}.pem", f"{ca.parent}/{name}.key"
        return Broker("127.0.0.1", self.mosquitto.port, tls=True, ca=str(ca), certificate=certificate, key=key)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_mosquitto()
    site = Site(tmp_path_factory.mktemp("tls"))
    for name in ("server", *map(str, range(6))):
        site.authority.issue(name)
    yield site
    site.mosquitto.stop()


def test_a_training_with_certificates_comes_to_the_same_model(site: Site, tmp_path: Path) -> None:
    server = make_server(site.broker("server"), "secure", tmp_path)
    clients = [
        beside(Client(site.broker("{client}"), "secure", numbers, gradient).run) for numbers in ([0, 1], [2, 3, 4, 5])
    ]
    flat = server.run()
    assert flat.tobytes() == on_paper(server).tobytes()
    assert [client.result(PATIENCE_S).tobytes() for client in clients] == [flat.tobytes()] * 2


def test_a_client_that_speaks_as_another_has_no_effect(site: Site, tmp_path: Path) -> None:
    """Client 5 writes what it likes, wherever it likes; the broker passes on what is in its own topics alone."""
    import aiomqtt

    name = "liar"
    server = make_server(site.broker("server"), name, tmp_path, rounds=4, per_round=6)
    liar = site.broker("5")

    async def lie(topic: str, forged: bytes) -> None:
        """In a connection of its own: mosquitto ends it when somebody writes where they may not."""
        async with liar.connection("liar") as client:
            await client.publish(f"fedmpdd/{name}/{topic}", forged, qos=1, retain="up" not in topic, timeout=0.5)

    lies = {f"up/{other}": update(server.terms, 5 * MODEL, 1, other) for other in range(3)}
    lies |= {"here/0": b"0", "round": b"forged", "terms": b"forged", "missing": b"x", "tail/1": b"x", "model/0": b"x"}

    def lying(flat: Float32, round_number: int, client: int) -> Float32:
        if client == 5 and round_number == 1:
            for topic, forged in lies.items():
                with contextlib.suppress(aiomqtt.MqttError):
                    asyncio.run(lie(topic, forged))
        return gradient(flat, round_number, client)

    first = beside(Client(site.broker("{client}"), name, [5], lying).run)
    others = beside(Client(site.broker("{client}"), name, range(5), gradient).run)
    trained = beside(server.run)
    assert first.result(PATIENCE_S).tobytes() == on_paper(server).tobytes()
    flat = trained.result(PATIENCE_S)
    assert flat.tobytes() == on_paper(server).tobytes()
    assert others.result(PATIENCE_S).tobytes() == flat.tobytes()


def test_those_whom_the_broker_does_not_know_are_refused_in_one_line(site: Site, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stranger = Authority(elsewhere)
    certificate, key = stranger.issue("0")
    good = site.broker("0")
    wrong = {
        "another authority than the broker's": replace(good, ca=str(stranger.ca)),
        "no certificate": replace(good, certificate=None, key=None),
        "a stranger's certificate": replace(good, certificate=str(certificate), key=str(key)),
        "no TLS": Broker("127.0.0.1", good.port),
    }
    for what, broker in wrong.items():
        with pytest.raises(RunError, match="cannot be used") as caught:
            Client(broker, "t", [0], gradient).run()
        assert "\n" not in str(caught.value), what
    with pytest.raises(RunError, match="check the certificates"):
        Client(wrong["another authority than the broker's"], "t", [0], gradient).run()


def test_a_wrong_password_is_one_line(tmp_path: Path) -> None:
    need_mosquitto()
    tool = shutil.which("mosquitto_passwd")
    if tool is None:
        pytest.skip("mosquitto_passwd is not installed")
    passwords = tmp_path / "passwords"
    subprocess.run([tool, "-c", "-b", str(passwords), "ada", "right"], check=True, capture_output=True)
    passwords.chmod(0o600)
    broker = Mosquitto(tmp_path, ["allow_anonymous false", f"password_file {passwords}"])
    try:
        for address in (f"mqtt://ada:wrong@127.0.0.1:{broker.port}", broker.address):
            for run in (Client(address, "t", [0], gradient).run, make_server(address, "t", tmp_path / "run").run):
                with pytest.raises(RunError, match="check user name and password") as caught:
                    run()
                assert "wrong" not in str(caught.value).replace("wrong@", "")
        right = f"mqtt://ada:right@127.0.0.1:{broker.port}"
        client = beside(Client(right, "t", range(6), gradient).run)
        server: Server = make_server(right, "t", tmp_path / "run")
        assert server.run().tobytes() == client.result(PATIENCE_S).tobytes()
    finally:
        broker.stop()
