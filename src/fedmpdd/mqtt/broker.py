"""How to reach a broker: an address, and who one is there."""

import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedmpdd.documents import is_count
from fedmpdd.errors import ConfigError, MissingDependencyError
from fedmpdd.mqtt.lean import LeanClient

PORTS = {"mqtt": 1883, "mqtts": 8883}
SESSION_S = 3600  # how long a broker keeps what it has for somebody who is away
MOST_IN_FLIGHT = 65_535  # messages that a broker may send before the first is acknowledged: its default can be 20


@dataclass(frozen=True)
class Broker:
    """An MQTT 5 broker, and who connects to it.

    Args:
        host: its name or address.
        port: of it.
        tls: whether the connection is encrypted.
        username: who one is; "{client}" in it stands for a client's number, as in the paths below.
        password: for that.
        ca: file with the certificates that the broker's must come from; by default those of the system.
        certificate: file with the certificate of who connects.
        key: file with its key, where that is not in the same file.
        keepalive: seconds without a message after which a sign of life is sent.

    Example:
        >>> Broker.parse("mqtts://broker.example", ca="ca.pem", certificate="{client}.pem").port
        8883

    """

    host: str
    port: int = 1883
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    keepalive: int = 60

    @classmethod
    def parse(cls, address: str, **options: Any) -> "Broker":
        """Read an address, mqtt://user:password@host:port, or mqtts:// for TLS.

        Args:
            address: of the broker.
            options: other arguments of the class, such as ca.

        Raises:
            ConfigError: it is no such address.

        """
        try:
            parts = urlsplit(address if isinstance(address, str) else "")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_more = parts.path not in ("", "/") or parts.query or parts.fragment or port == 0
        shown = re.sub(r"//.*@", "//…@", str(address), flags=re.DOTALL)  # a password is for no log
        if parts.scheme not in PORTS or not parts.hostname or is_more:
            raise ConfigError(
                f"broker {shown!r:.100}: expected mqtt://host:port, or mqtts://host:port for TLS, such as "
                "mqtt://localhost:1883"
            )
        tls = parts.scheme == "mqtts"
        if not tls and any(options.get(name) for name in ("ca", "certificate", "key")):
            raise ConfigError(f"broker {shown!r:.100} with certificates: these are for TLS, mqtts://")
        return cls(
            parts.hostname,
            port or PORTS[parts.scheme],
            tls,
            None if parts.username is None else unquote(parts.username),
            None if parts.password is None else unquote(parts.password),
            **options,
        )

    @classmethod
    def of(cls, broker: "Broker | str") -> "Broker":
        """Return a broker that is given as one or by its address, or raise ConfigError."""
        return broker if isinstance(broker, Broker) else cls.parse(broker)

    def __post_init__(self) -> None:
        """Raise ConfigError for what no connection can be made by."""
        if not isinstance(self.host, str) or not self.host:
            raise ConfigError(f"host = {self.host!r:.80}: expected the name or address of a broker; see Broker.parse")
        if not is_count(self.port) or not 1 <= self.port < 2**16:
            raise ConfigError(f"port = {self.port!r:.40}: expected a number from 1 to 65535")
        if not is_count(self.keepalive) or self.keepalive >= 2**16:
            raise ConfigError(f"keepalive = {self.keepalive!r:.40}: expected whole seconds from 0 to 65535")
        for name in ("username", "password", "ca", "certificate", "key"):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigError(f"{name} of the broker is no text; give a str, or None")

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"

    def as_client(self, number: int) -> "Broker":
        """Return how a client connects."""

        def named(text: str | None) -> str | None:
            return None if text is None else text.replace("{client}", str(number))

        return replace(
            self,
            username=named(self.username),
            password=named(self.password),
            certificate=named(self.certificate),
            key=named(self.key),
        )

    def context(self) -> ssl.SSLContext | None:
        """Return what TLS needs, or raise ConfigError where a file is none; None without TLS."""
        if not self.tls:
            return None
        for what, path in (("ca", self.ca), ("certificate", self.certificate), ("key", self.key)):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"{what} {path} is no file; name one in PEM form")
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as error:
            raise ConfigError(f"ca {self.ca} holds no certificates: {error.reason}; name a file in PEM form") from None
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except (ssl.SSLError, OSError) as error:
                raise ConfigError(
                    f"certificate {self.certificate} and its key cannot be used: {error}; both must be in PEM form, "
                    "and belong together"
                ) from None
        return context

    def connection(self, identifier: str, will: tuple[str, bytes] | None = None) -> Any:
        """Return a client of aiomqtt that is not connected yet.

        Args:
            identifier: by which the broker knows this side again; one connection has it at a time.
            will: topic and payload that the broker publishes, retained, when the connection is lost.

        """
        try:
            import aiomqtt
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"fedmpdd.mqtt needs the package {error.name}, which is missing; pip install 'fedmpdd[mqtt]'"
            ) from None
        make: Any = Properties  # paho's own types say nothing of it
        properties = make(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = SESSION_S
        properties.ReceiveMaximum = MOST_IN_FLIGHT
        return aiomqtt.Client(
            self.host,
            self.port,
            username=self.username,
            password=self.password,
            identifier=identifier,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False,
            properties=properties,
            keepalive=self.keepalive,
            tls_context=self.context(),
            will=None if will is None else aiomqtt.Will(will[0], will[1], qos=1, retain=True),
            # Else an update waits until the acknowledgement before it is confirmed, which Linux does 40 ms later.
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            max_inflight_messages=MOST_IN_FLIGHT,
            timeout=20,
        )

    def lean_connection(self, identifier: str, receive: Callable[[str, bytes], None]) -> LeanClient:
        """Return a connection with few words and fast ones, that is not made yet.

        Args:
            identifier: by which the broker knows this side again; one connection has it at a time.
            receive: called with topic and payload of every message.

        """
        return LeanClient(
            self.host,
            self.port,
            identifier,
            receive,
            username=self.username,
            password=self.password,
            tls=self.context(),
            keepalive=self.keepalive,
            session_s=SESSION_S,
        )
