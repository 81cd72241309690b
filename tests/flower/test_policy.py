"""What clients insist on: orders that do not meet it are answered with an error that the server's log shows."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedmpdd.errors import ConfigError
from fedmpdd.flower import ClientPolicy, FedMPDD, fedmpdd_mod, make_mod
from tests.flower.grid import InProcessGrid

D = 60
PRIVATE = "mpdd:m=40:clip=2.0:noise_multiplier=0.5"


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What Flower's logger says."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("flwr").addHandler(handler)
    yield messages
    logging.getLogger("flwr").removeHandler(handler)


def train(strategy: FedAvg, mod: Any, rounds: int = 1, replies: list[Message] | None = None) -> Any:
    app = ClientApp()

    @app.train(mods=[mod])
    def step(message: Message, context: Context) -> Message:
        flat = message.content.array_records["arrays"]["flat-model"].numpy() - np.float32(0.1)
        arrays = ArrayRecord({"flat-model": Array(flat)})
        metrics = MetricRecord({"num-examples": 10, "loss": 3.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def keep(node: int, message: Message, reply: Message) -> list[Message]:
        if replies is not None:
            replies.append(reply)
        return [reply]

    start = ArrayRecord({"flat-model": Array(np.ones(D, np.float32))})
    return strategy.start(InProcessGrid(app, 3, keep), start, num_rounds=rounds)


@pytest.mark.parametrize(
    ("codec", "policy", "reason"),
    [
        ("mpdd:m=40", {"largest_clip": 2.0, "least_noise": 0.5}, "clip is None, this client insists on at most 2.0"),
        ("mpdd:m=40:clip=3.0", {"largest_clip": 2.0}, "clip is 3.0, this client insists on at most 2.0"),
        ("mpdd:m=40:clip=2.0", {"largest_clip": 2.0, "least_noise": 0.5}, "noise_multiplier is 0.0"),
        (PRIVATE, {"largest_clip": 2.0, "least_noise": 0.6}, "noise_multiplier is 0.5, this client insists on at"),
        ("fedsgd", {"codecs": ("mpdd", "peaks")}, "codec is fedsgd, this client allows mpdd, peaks"),
        ("laplace:noise=1.0", {"largest_clip": 2.0}, "clip is None"),
    ],
)
def test_an_order_that_protects_less_is_refused_and_the_server_hears_why(
    codec: str, policy: dict[str, Any], reason: str, lines: list[str]
) -> None:
    replies: list[Message] = []
    result = train(FedMPDD(codec=codec, fraction_evaluate=0.0), make_mod(ClientPolicy(**policy)), replies=replies)
    assert result.train_metrics_clientapp == {}
    assert all(reply.has_error() for reply in replies)
    assert any(reason in line for line in lines), lines


def test_an_order_that_protects_enough_is_followed() -> None:
    policy = ClientPolicy(codecs=("mpdd",), largest_clip=2.0, least_noise=0.5)
    result = train(FedMPDD(codec=PRIVATE, fraction_evaluate=0.0), make_mod(policy))
    assert result.train_metrics_clientapp[1]["fedmpdd-contributors"] == 3


def test_a_client_sends_as_many_updates_as_it_will_in_all(lines: list[str]) -> None:
    result = train(FedMPDD(codec="mpdd:m=40", fraction_evaluate=0.0), make_mod(ClientPolicy(most_updates=2)), rounds=4)
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert any("has sent 2 updates, as many as it will in all" in line for line in lines)


def test_metrics_that_may_not_leave_stay() -> None:
    replies: list[Message] = []
    strategy = FedMPDD(codec="mpdd:m=40", fraction_evaluate=0.0)
    train(strategy, make_mod(ClientPolicy(metrics=("num-examples",))), replies=replies)
    assert set(replies[0].content.config_records["fedmpdd"]) == {"update", "round", "num-examples"}


@pytest.mark.parametrize("codec", ["laplace:noise=1.0", "gaussian:noise=1.0"])
def test_noise_from_a_key_that_the_server_assigns_is_refused_by_both_sides(
    codec: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="takes the noise off again"):
        FedMPDD(codec=f"{codec}:keys=shared")
    # A server that does it all the same: every client refuses, with no policy too.
    monkeypatch.setattr("fedmpdd.flower.strategy._checked", lambda config: config)
    replies: list[Message] = []
    train(FedMPDD(codec=f"{codec}:keys=shared", fraction_evaluate=0.0), fedmpdd_mod, replies=replies)
    assert all(reply.has_error() for reply in replies)
    assert any("takes the noise off again" in line for line in lines)


@pytest.mark.parametrize(
    "policy",
    [
        {"least_noise": 0.5},
        {"largest_clip": 0.0},
        {"largest_clip": float("nan")},
        {"largest_clip": 1.0, "least_noise": -1.0},
        {"most_updates": 0},
        {"codecs": "mpdd"},
        {"fewest_clients": 1},
        {"colluders": -1},
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ClientPolicy(**policy)


@pytest.mark.parametrize(
    "policy", [{"codecs": ("mpdd",)}, {"largest_clip": 2.0, "least_noise": 0.5}, {"most_updates": 9}, {"metrics": ()}]
)
def test_a_message_without_an_order_is_no_way_around_a_policy(policy: dict[str, Any]) -> None:
    replies: list[Message] = []
    train(FedAvg(fraction_evaluate=0.0), make_mod(ClientPolicy(**policy)), replies=replies)
    assert replies
    assert all(reply.has_error() for reply in replies)
    assert "insists on one" in str(replies[0].error.reason)


def test_without_a_policy_other_strategies_go_on() -> None:
    replies: list[Message] = []
    train(FedAvg(fraction_evaluate=0.0), make_mod(ClientPolicy()), replies=replies)
    assert not any(reply.has_error() for reply in replies)
