"""Addresses of brokers, who one is there, and what is wrong with either."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.mqtt.broker import Broker
from tests.mqtt.certificates import Authority


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("mqtt://localhost", Broker("localhost")),
        ("mqtts://broker.example/", Broker("broker.example", 8883, tls=True)),
        ("mqtt://ada:a%40b@127.0.0.1:1884", Broker("127.0.0.1", 1884, username="ada", password="a@b")),
        ("mqtt://{client}@[::1]:2000", Broker("::1", 2000, username="{client}")),
    ],
)
def test_an_address_is_read(address: str, expected: Broker) -> None:
    assert Broker.parse(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "", "localhost", "localhost:1883", "http://localhost", "mqtt:", "mqtt://", "mqtt://:1883", "mqtt://a:x",
        "mqtt://a:99999", "mqtt://a/topic", "mqtt://a?x=1", "mqtt://[::1", "mqtt://a:0", "mqtt://a#part",
    ],
)  # fmt: skip
def test_what_is_no_address_is_said_in_one_line(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^broker '.*': expected mqtt://host:port.*mqtt://localhost:1883$"):
        Broker.parse(address)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"host": ""}, "host = ''"),
        ({"host": 5}, "host = 5"),
        ({"port": "a"}, "port = 'a'"),
        ({"port": 99_999}, "port = 99999"),
        ({"keepalive": -1}, "keepalive = -1"),
        ({"ca": 5}, "ca of the broker is no text"),
    ],
    ids=str,
)
def test_arguments_that_are_none_of_a_broker(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Broker(**{"host": "localhost", **arguments})


@pytest.mark.parametrize("address", [None, 5, b"mqtt://localhost"])
def test_an_address_is_a_text(address: Any) -> None:
    with pytest.raises(ConfigError, match="expected mqtt://host:port"):
        Broker.of(address)


def test_a_password_is_in_no_message() -> None:
    assert "hush" not in str(Broker.parse("mqtt://ada:hush@localhost"))
    assert "hush" not in repr(Broker.parse("mqtt://ada:hush@localhost"))
    with pytest.raises(ConfigError) as caught:
        Broker.parse("mqtt://ada:hush@localhost/x")
    assert "hush" not in str(caught.value)


def test_certificates_without_tls_are_refused() -> None:
    with pytest.raises(ConfigError, match="these are for TLS"):
        Broker.parse("mqtt://localhost", ca="ca.pem")


def test_every_client_has_what_is_its_own() -> None:
    broker = Broker("h", tls=True, username="node-{client}", password="p{client}", certificate="{client}.pem")
    assert broker.as_client(12) == Broker("h", tls=True, username="node-12", password="p12", certificate="12.pem")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    pytest.importorskip("cryptography", reason="the extra `privacy` is not installed")
    return Authority(tmp_path_factory.mktemp("authority"))


def test_certificates_are_loaded(authority: Authority) -> None:
    certificate, key = authority.issue("5")
    context = Broker("h", tls=True, ca=str(authority.ca), certificate=str(certificate), key=str(key)).context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert Broker("h").context() is None


def test_files_that_are_no_certificates_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("6")
    _, other = authority.issue("7")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ca": "nowhere.pem"}, "ca nowhere.pem is no file"),
        ({"ca": str(tmp_path)}, "is no file"),
        ({"ca": str(text)}, "holds no certificates"),
        ({"certificate": str(text)}, "cannot be used"),
        ({"certificate": "nowhere.pem"}, "certificate nowhere.pem is no file"),
        ({"certificate": str(certificate)}, "cannot be used"),  # and no key
        ({"certificate": str(certificate), "key": str(other)}, "belong together"),
        ({"certificate": str(certificate), "key": str(text)}, "cannot be used"),
    ]
    for options, words in wrong:
        with pytest.raises(ConfigError, match=words) as caught:
            Broker("h", tls=True, **options).context()
        assert "\n" not in str(caught.value)
    assert Broker("h", tls=True, certificate=str(certificate), key=str(key)).context() is not None
