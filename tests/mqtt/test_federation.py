"""A config's training over a broker: the hash of its model is that of the local engine."""

from typing import Any

import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.mqtt import Broker, Client
from fedmpdd.mqtt.federation import MqttFederation, over_mqtt, prepare_with
from fedmpdd.simulation import RunConfig, make_federation, parse_config
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.simulation.tasks import load_task
from tests.mqtt.beside import PATIENCE_S, beside
from tests.mqtt.mosquitto import Mosquitto

BASE: dict[str, Any] = {
    "dataset": "mnist-5k",
    "model": "logistic",
    "device": "cpu",
    "clients": 6,
    "clients_per_round": 4,
    "batch": 4,
    "lr": 0.2,
    "rounds": 3,
    "evaluate_every": 3,
    "gradients": "loop",
    "seed": 5,
}
CODECS: dict[str, dict[str, Any]] = {
    "sent": {"codec": {"name": "mpdd", "m": 16}},
    "derived": {"codec": {"name": "peaks", "m": 7, "keys": "derived"}, "server": {"optimiser": "adam"}},
    "partitioned": {"codec": {"name": "mpdd", "m": 16, "bits": 1, "family": "hadamard", "keys": "partitioned"}},
    "shared": {"codec": {"name": "mpdd", "m": 16, "keys": "shared"}, "downlink_bits": 8},
    "examples": {
        "codec": {"name": "mpdd", "m": 16},
        "weighting": "examples",
        "partition": {"kind": "dirichlet", "alpha": 0.5},
    },
    "links": {"links": ["peaks:m=7", "peaks:m=28", "mpdd:m=50:bits=1"]},
    "links by examples": {
        "links": ["peaks:m=7", "peaks:m=28"],
        "link_spread": 3.0,
        "weighting": "examples",
        "partition": {"kind": "dirichlet", "alpha": 0.5},
    },
    "memory": {"codec": {"name": "topk", "k": 40, "error_feedback": True}, "clients_per_round": 6},
}


def config_of(**changes: Any) -> RunConfig:
    return over_mqtt(parse_config({**BASE, **changes}))


def run_local(config: RunConfig) -> str:
    federation = make_federation(config)
    for _ in range(config.rounds):
        federation.run_round()
    return model_sha256(federation.flat)


def serve(config: RunConfig, mosquitto: Mosquitto, name: str) -> MqttFederation:
    """Hold all rounds of a config."""
    federation = MqttFederation(config, load_task(config), Broker.parse(mosquitto.address), name)
    try:
        for _ in range(config.rounds):
            federation.run_round()
        federation.end()
    finally:
        federation.close()
    return federation


@pytest.mark.parametrize("name", CODECS)
def test_the_model_is_that_of_the_local_engine_to_the_bit(mosquitto: Mosquitto, name: str) -> None:
    config = config_of(**CODECS[name])
    clients = [
        beside(Client(mosquitto.address, name.replace(" ", "-"), numbers, prepare=prepare_with(config)).run)
        for numbers in ([0, 2, 3], [1, 4, 5])
    ]
    federation = serve(config, mosquitto, name.replace(" ", "-"))
    expected = run_local(config)
    assert model_sha256(federation.flat) == expected
    for client in clients:
        assert client.result(PATIENCE_S).tobytes() == federation.flat.numpy().tobytes()


def test_a_client_of_another_config_is_refused_in_one_line(mosquitto: Mosquitto) -> None:
    config = config_of(**CODECS["derived"], rounds=1)
    clients = beside(Client(mosquitto.address, "config", range(6), prepare=prepare_with(config)).run)
    serve(config, mosquitto, "config")
    clients.result(PATIENCE_S)
    others: dict[str, dict[str, Any]] = {
        "codec": {"codec": {"name": "peaks", "m": 14, "keys": "derived"}},
        "lr": {"lr": 0.3},
        "shapes": {"model": "lenet"},
        "seed": {"seed": 6},
        "per_round": {"clients_per_round": 3},
        "server": {"server": {"optimiser": "momentum"}},
        "keys": {"codec": {"name": "peaks", "m": 7, "keys": "shared"}},
    }
    for words, changes in others.items():
        other = config_of(**{**CODECS["derived"], "rounds": 1, **changes})
        with pytest.raises(
            ConfigError, match=rf"another one than this client's: .*{words}.* differ; give both"
        ) as error:
            Client(mosquitto.address, "config", [0], prepare=prepare_with(other)).run()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"journal": False}, "acknowledged once it is in the journal"),
        ({"codec": {"name": "mpdd", "m": 16, "keys": "shared"}, "secure": {"clip": 2.0}}, "secure sums"),
        ({"codec": {"name": "decomfl", "m": 4, "keys": "shared"}}, "sends losses"),
        ({"server": {"optimiser": "torch.optim:Adam"}}, "take the same step"),
    ],
)
def test_what_this_engine_does_not_carry_is_refused_before_it_connects(changes: dict[str, Any], words: str) -> None:
    config = parse_config({**BASE, **CODECS["sent"], **changes})
    with pytest.raises(ConfigError, match=words):
        MqttFederation(config, load_task(config), Broker("nowhere.invalid"), "t")
