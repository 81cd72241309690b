"""An engine over MQTT 5: clients far away, each update a few bytes on the socket. docs/mqtt.md has the protocol."""

from fedmpdd.mqtt.broker import Broker
from fedmpdd.mqtt.client import Client
from fedmpdd.mqtt.server import Server
from fedmpdd.uplink.arrivals import Arrivals

__all__ = ["Arrivals", "Broker", "Client", "Server"]
