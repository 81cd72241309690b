"""Nodes that lie, over the strategy as it is by default, for every codec."""

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.errors import ConfigError
from fedmpdd.flower import FedMPDD, RobustMean, fedmpdd_mod
from tests.flower.grid import InProcessGrid

D, NODES = 60, 10
TARGET = np.linspace(-1, 1, D).astype(np.float32)
CODECS = [
    "auto",
    "fedsgd",
    "mpdd:m=40",
    "mpdd:m=40:keys=shared",
    "mpdd:m=40:bits=8:family=hadamard:keys=shared",
    "mpdd:m=40:bits=1:family=hadamard:keys=shared",
    "mpdd:m=40:bits=1:family=hadamard:keys=partitioned",
    "mpdd:m=40:bits=8:family=hadamard:keys=partitioned",
    "qsgd:bits=8",
    "topk:k=30",
    "randk:k=40",
    "randk:k=40:keys=shared",
    "signsgd",
    "eden:bits=4",
    "peaks:m=9:group=4",
    "peaks:m=9:group=4:keys=shared",
    "lp-proj:size=55",
    "sa-fedlora:rank=2:warmup=1",
    "laplace:noise=0.0001",
    "gaussian:noise=0.0001",
]
LIES = {"turned": -1.0, "ten times": -10.0, "a million times": -1e6}


def distance(codec: str, liars: int, factor: float, *, examples: int = 10, **options: Any) -> float:
    """How far from the target a model ends, relative to where it began: nodes pull it half of the way each round."""
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        node = int(context.node_config["node"])
        flat = message.content.array_records["arrays"]["weight"].numpy().reshape(-1)
        gradient = 0.5 * (flat - TARGET) + np.float32(0.01) * np.cos(np.arange(D) + node, dtype=np.float32)
        lies = node < liars
        new = flat - (np.float32(factor) if lies else np.float32(1)) * gradient
        metrics = MetricRecord({"num-examples": examples if lies else 10})
        arrays = ArrayRecord({"weight": Array(new.reshape(6, 10))})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = FedMPDD(codec=codec, lr=0.8, fraction_evaluate=0.0, seed=5, **options)
    start = ArrayRecord({"weight": Array(np.zeros((6, 10), np.float32))})
    result = strategy.start(InProcessGrid(app, NODES), start, num_rounds=10)
    (model,) = (array.numpy().reshape(-1) for array in result.arrays.values())
    return float(np.linalg.norm(model - TARGET) / np.linalg.norm(TARGET))


@cache
def honest_distance(codec: str) -> float:
    return distance(codec, 0, 1.0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_ten_ruins_nothing(codec: str, lie: str) -> None:
    assert distance(codec, 1, LIES[lie]) < honest_distance(codec) + 0.1


@pytest.mark.parametrize("codec", [codec for codec in CODECS if "keys=shared" in codec])
@pytest.mark.parametrize("lie", LIES)
def test_three_liars_of_ten_ruin_nothing_where_directions_are_shared(codec: str, lie: str) -> None:
    assert distance(codec, 3, LIES[lie]) < honest_distance(codec) + 0.25


@pytest.mark.parametrize("codec", ["fedsgd", "peaks:m=9:group=4", "mpdd:m=40:keys=shared"])
def test_a_plain_mean_is_ruined_by_one(codec: str) -> None:
    """What the defaults protect from: the same liar, and a mean that takes what comes."""
    assert distance(codec, 1, -30.0, robust=False) > 1


@pytest.mark.parametrize("codec", ["mpdd:m=40:bits=8:family=hadamard", "peaks:m=9:group=4"])
def test_parts_of_one_seed_are_not_one_key(codec: str) -> None:
    """The first node has slot 0 of the round's seed, and no other node has its directions: no scalars to trim."""
    codec += ":keys=partitioned"
    assert distance(codec, 0, 1.0) == pytest.approx(distance(codec, 0, 1.0, robust=False), abs=0.1)


def test_claims_of_examples_do_not_win() -> None:
    assert distance("mpdd:m=40", 1, -1.0, examples=9_000) < 0.35
    assert distance("mpdd:m=40", 1, -1.0, examples=9_000, robust=False) > 1


def test_nobody_sets_the_reference_by_answering_alone() -> None:
    """In the first round nine of ten are late; the one that answers is a million times too large."""
    late = {"round": 0}
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        flat = message.content.array_records["arrays"]["weight"].numpy()
        factor = np.float32(-1e5) if int(context.node_config["node"]) == 0 else np.float32(1)
        arrays = ArrayRecord({"weight": Array(flat - factor * np.float32(0.5) * (flat - TARGET))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        number = message.content.config_records["config"]["server-round"]
        late["round"] = int(number)  # type: ignore[arg-type]
        return [reply] if late["round"] > 1 or node == 0 else []

    start = ArrayRecord({"weight": Array(np.zeros(D, np.float32))})
    strategy = FedMPDD(codec="fedsgd", lr=0.4, fraction_evaluate=0.0)
    result = strategy.start(InProcessGrid(app, NODES, between), start, num_rounds=20)
    model = result.arrays["weight"].numpy()
    assert np.linalg.norm(model - TARGET) < 0.2 * np.linalg.norm(TARGET)


def test_nodes_that_follow_get_the_servers_model_with_robust_means() -> None:
    """Shrunk weights and trimmed means travel in bundles: every node comes to the model of the server, by its hash."""
    for codec in ("mpdd:m=40:keys=shared", "mpdd:m=40:bits=1:family=hadamard:keys=partitioned"):
        assert distance(codec, 2, -10.0, downlink="replay") == pytest.approx(distance(codec, 2, -10.0), abs=1e-6)


def test_settings_of_the_mean() -> None:
    assert FedMPDD().robust == RobustMean()
    assert FedMPDD(robust=False).robust is None
    assert FedMPDD(robust=RobustMean(trim=0.1)).robust == RobustMean(trim=0.1)
    for robust in (None, 0, "no"):  # none of them says that lies are welcome
        with pytest.raises(ConfigError, match="expected True, False for the plain mean, or a RobustMean"):
            FedMPDD(robust=robust)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["fedsgd", "mpdd:m=40:keys=shared"])
def test_a_claim_of_next_to_nothing_ends_no_training(codec: str) -> None:
    """Whose weight would vanish when its update shrinks: alone in the second round, it would leave no weight at all."""
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        flat = message.content.array_records["arrays"]["weight"].numpy()
        late = message.content.config_records["config"]["server-round"] == 2
        examples, factor = (5e-324, np.float32(5)) if late else (10.0, np.float32(1))
        arrays = ArrayRecord({"weight": Array(flat - factor * np.float32(0.5) * (flat - TARGET))})
        metrics = MetricRecord({"num-examples": examples})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        return [reply] if message.content.config_records["config"]["server-round"] != 2 or node == 0 else []

    start = ArrayRecord({"weight": Array(np.zeros(D, np.float32))})
    strategy = FedMPDD(codec=codec, lr=0.4, fraction_evaluate=0.0)
    result = strategy.start(InProcessGrid(app, NODES, between), start, num_rounds=3)
    assert sorted(result.train_metrics_clientapp) == [1, 3]


@pytest.mark.parametrize("codec", ["fedsgd", "mpdd:m=40:keys=shared"])
def test_who_answers_alone_goes_no_further_than_others_did(codec: str) -> None:
    """In every third round nine of ten are late, and the liar that is not turns nine times its update round."""
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        flat = message.content.array_records["arrays"]["weight"].numpy()
        factor = np.float32(-9) if int(context.node_config["node"]) == 0 else np.float32(1)
        arrays = ArrayRecord({"weight": Array(flat - factor * np.float32(0.5) * (flat - TARGET))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        alone = int(message.content.config_records["config"]["server-round"]) % 3 == 0  # type: ignore[arg-type]
        return [reply] if node == 0 or not alone else []

    start = ArrayRecord({"weight": Array(np.zeros(D, np.float32))})
    strategy = FedMPDD(codec=codec, lr=0.4, fraction_evaluate=0.0, seed=5)
    result = strategy.start(InProcessGrid(app, NODES, between), start, num_rounds=20)
    assert np.linalg.norm(result.arrays["weight"].numpy() - TARGET) < 0.5 * np.linalg.norm(TARGET)
