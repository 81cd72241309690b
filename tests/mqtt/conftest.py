from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mqtt.mosquitto import Mosquitto, need_mosquitto


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker that the tests of a module share: each has a training of another name."""
    need_mosquitto()
    broker = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    yield broker
    broker.stop()


@pytest.fixture
def mosquitto_alone(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that a test has for itself, to kill it."""
    need_mosquitto()
    broker = Mosquitto(tmp_path)
    yield broker
    broker.stop()
