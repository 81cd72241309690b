"""Nodes that keep the model and are sent what the rounds they missed added: the same bits, and fewer bytes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fedmpdd.errors import ConfigError, OrderError
from fedmpdd.flower import FedMPDD, fedmpdd_mod
from fedmpdd.flower.instructions import CATCH_UP, ORDER, ReplicaSettings, RoundInstructions
from fedmpdd.flower.layout import ParameterLayout
from fedmpdd.flower.mod import REPLICA_LOST
from fedmpdd.flower.replay import FOLLOWING, MODEL
from fedmpdd.server.step import StepRule
from fedmpdd.simulation import federation_of, parse_config, sampling
from tests.flower.grid import InProcessGrid
from tests.flower.test_strategy import TARGET, D, _engine_app, flat_of, initial, lines, quadratic_app, round_of
from tests.simulation.test_cuda import images

assert lines  # a fixture, used by name

SHARED = "mpdd:m=40:bits=1:family=hadamard:keys=shared"


class Wire(InProcessGrid):
    """A grid that remembers what went down: per message its round, node, whether it was the model, and the bytes."""

    def __init__(self, nodes: int = 4, *, app: ClientApp | None = None, **faults: Any) -> None:
        super().__init__(app or quadratic_app(), nodes, faults.get("between"))
        self.sent: list[tuple[int, int, str, int]] = []
        self.errors: list[tuple[int, int, str]] = []
        self.before = faults.get("before") or (lambda node, message: None)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        for message in messages:
            self._note(message)
            self.before(message.metadata.dst_node_id, message)
            replies = list(super().send_and_receive([message], timeout=timeout))
            for reply in replies:
                if reply.has_error():
                    self.errors.append((reply.metadata.src_node_id, reply.error.code, str(reply.error.reason)))
            yield from replies

    def _note(self, message: Message) -> None:
        content, config = message.content, message.content.config_records["config"]
        if ORDER not in config:
            return
        node, added = message.metadata.dst_node_id, config.get(CATCH_UP)
        arrays = [array for record in content.array_records.values() for array in record.values()]
        assert (added is None) == (len(arrays) == 1)
        if isinstance(added, bytes):
            self.sent.append((round_of(message), node, "rounds", len(added)))
        else:
            kind = "whole" if json.loads(str(config[ORDER])).get("follow") else "model"
            self.sent.append((round_of(message), node, kind, arrays[0].numpy().nbytes))

    def kinds(self, node: int) -> list[str]:
        return [kind for _, to, kind, _ in self.sent if to == node]


def run(strategy: FedMPDD, rounds: int, grid: InProcessGrid | None = None) -> Result:
    return strategy.start(grid or Wire(), initial(), num_rounds=rounds)


def options(codec: str, **others: Any) -> dict[str, Any]:
    return {"codec": codec, "seed": 1, "fraction_evaluate": 0.0, **others}


# -------------------------------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("weighting", ["examples", "equal"])
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(
    ("codec", "bits"),
    [
        ("mpdd:m=9:bits=1:family=hadamard:keys=partitioned", None),
        ("mpdd:m=9:bits=8:keys=shared", None),
        ("mpdd:m=40:bits=1:family=hadamard:keys=shared", 4),
        ("mpdd:m=4:keys=shared", 32),
        ("topk:k=3:error_feedback=true", None),
        ("signsgd", None),
        ("mpdd:m=9:bits=1:clip=1.0:keys=partitioned", None),
    ],
)
def test_the_model_has_the_bits_of_whole_models(codec: str, bits: int | None, optimiser: Any, weighting: str) -> None:
    own = options(codec, downlink_bits=bits, weighting=weighting, server=StepRule(optimiser=optimiser))
    if optimiser != "sgd":
        own["lr"] = 0.1  # 1 is too much for these
    whole = run(FedMPDD(**own), 6)
    grid = Wire()
    replayed = run(FedMPDD(**own, downlink="replay"), 6, grid)
    assert flat_of(replayed.arrays).tobytes() == flat_of(whole.arrays).tobytes()
    assert grid.errors == []
    for node in range(4):
        assert grid.kinds(node) == ["whole"] + ["rounds"] * 5
    vectors = {"sgd": 1, "momentum": 2, "adam": 3}[optimiser]
    assert replayed.train_metrics_clientapp[1]["fedmpdd-downlink-bytes"] == 4 * 4 * D * vectors
    assert whole.train_metrics_clientapp[6]["fedmpdd-downlink-bytes"] == 4 * 4 * D
    assert replayed.train_metrics_clientapp[6]["fedmpdd-downlink-bytes"] == sum(row[3] for row in grid.sent[-4:])


def test_seeds_that_clients_draw_travel_on() -> None:
    """The train function sees the server's model in every round: the mod checks its hash."""
    grid = Wire()
    run(FedMPDD(codec="mpdd:m=4", downlink="replay", fraction_evaluate=0.0), 6, grid)
    assert grid.errors == []
    assert grid.kinds(0) == ["whole"] + ["rounds"] * 5


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_mean_in_few_bits_is_the_local_engines(optimiser: str) -> None:
    values: dict[str, Any] = {"model": "logistic", "clients": 5, "batch": 4, "lr": 0.05, "rounds": 4, "device": "cpu"}
    codec = {"name": "mpdd", "m": 50, "bits": 1, "family": "hadamard", "keys": "shared"}
    more = {"downlink": "replay", "downlink_bits": 4, "server": {"optimiser": optimiser}}
    config = parse_config({**values, **more, "codec": codec})
    local = federation_of(config, images())
    start = local.flat.clone()
    for _ in range(3):
        local.run_round()
    strategy = FedMPDD(
        codec="mpdd:m=50:bits=1:family=hadamard:keys=shared",
        returns="gradient",
        lr=config.lr,
        server=config.server,
        weighting="equal",
        robust=False,
        downlink="replay",
        downlink_bits=4,
        seed=int(np.random.default_rng([config.seed, sampling._KEYS]).integers(2**63)),
        fraction_evaluate=0.0,
    )
    grid = InProcessGrid(_engine_app(federation_of(config, images())), 5)
    result = strategy.start(grid, ArrayRecord({"flat-model": Array(start.numpy())}), num_rounds=3)
    assert torch.equal(torch.from_numpy(flat_of(result.arrays)), local.flat)


def test_nodes_that_are_asked_sometimes_catch_up() -> None:
    own = options("mpdd:m=2:bits=1:keys=partitioned", fraction_train=0.4, min_train_nodes=1)
    grid = Wire(5)
    result = run(FedMPDD(**own, downlink="replay"), 20, grid)
    assert grid.errors == []
    assert len(grid.sent) == 40
    assert any("whole" in grid.kinds(node)[:1] and "rounds" in grid.kinds(node)[1:] for node in range(5))
    assert len({size for _, _, kind, size in grid.sent if kind == "rounds"}) > 1  # of one round, and of several
    assert result.train_metrics_clientapp[20]["fedmpdd-contributors"] == 2


# ------------------------------------------------------------------------------------------------------- accidents


def test_a_lost_reply_leaves_a_node_ahead_of_what_is_known() -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        return [] if node == 1 and round_of(message) in (2, 3) else [reply]

    grid = Wire(between=between)
    run(FedMPDD(**options("mpdd:m=8:keys=shared"), downlink="replay", downlink_bits=4), 5, grid)
    assert grid.errors == []
    assert grid.kinds(1) == ["whole"] + ["rounds"] * 4
    sizes = {k: size for k, node, _, size in grid.sent if node == 1}
    assert sizes[2] < sizes[3] < sizes[4]  # what it has already is sent again, since nobody knows
    assert sizes[5] < sizes[3]


def test_who_never_answered_is_sent_the_model() -> None:
    grid = Wire(between=lambda node, message, reply: [] if node == 1 else [reply])
    run(FedMPDD(**options(SHARED), downlink="replay"), 3, grid)
    assert grid.kinds(1) == ["whole"] * 3


def test_a_dropped_update_proves_nothing(lines: list[str]) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        if node == 1 and round_of(message) == 1:
            record = {**reply.content.config_records[ORDER], "num-examples": 0}
            reply.content = RecordDict({ORDER: ConfigRecord(record)})
        return [reply]

    grid = Wire(between=between)
    run(FedMPDD(**options(SHARED), downlink="replay"), 3, grid)
    assert any("dropped the update of node 1" in line for line in lines)
    assert grid.kinds(1) == ["whole", "whole", "rounds"]


def wiped(grid: Wire, message: Message, node: int) -> None:
    grid.contexts[node].state = RecordDict()


def damaged(grid: Wire, message: Message, node: int) -> None:
    config = message.content.config_records["config"]
    added = config[CATCH_UP]
    assert isinstance(added, bytes)
    config[CATCH_UP] = added[:20] + bytes([added[20] ^ 1]) + added[21:]


def other_model(grid: Wire, message: Message, node: int) -> None:
    state = grid.contexts[node].state
    flat = state.array_records[MODEL]["flat"].numpy().copy()
    flat[7] += 0.001
    state[MODEL] = ArrayRecord({"flat": Array(flat)})


def older(grid: Wire, message: Message, node: int) -> None:
    record = grid.contexts[node].state.config_records[FOLLOWING]
    record["round"] = 1


def newer(grid: Wire, message: Message, node: int) -> None:
    record = grid.contexts[node].state.config_records[FOLLOWING]
    record["round"] = 99


def other_type(grid: Wire, message: Message, node: int) -> None:
    message.content.config_records["config"][CATCH_UP] = "text"


def cut(grid: Wire, message: Message, node: int) -> None:
    config = message.content.config_records["config"]
    added = config[CATCH_UP]
    assert isinstance(added, bytes)
    config[CATCH_UP] = added[:9]


ACCIDENTS: dict[str, tuple[Any, str]] = {
    "state wiped": (wiped, "no model here yet"),
    "damaged": (damaged, "checksum"),
    "another model": (other_model, "has hash"),
    "older": (older, "the one that round 1 starts from"),
    "newer": (newer, "the one that round 99 starts from"),
    "text": (other_type, "expected bytes"),
    "cut": (cut, "9 bytes came"),
}


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("kind", ACCIDENTS)
def test_who_cannot_follow_says_so_and_is_sent_the_model(kind: str, optimiser: Any, lines: list[str]) -> None:
    accident, reason = ACCIDENTS[kind]

    def before(node: int, message: Message) -> None:
        if node == 2 and round_of(message) == 3:
            accident(grid, message, node)

    grid = Wire(before=before)
    own = options(SHARED, lr=0.3, server=StepRule(optimiser=optimiser))
    result = run(FedMPDD(**own, downlink="replay"), 6, grid)
    ((node, code, text),) = grid.errors
    assert (node, code) == (2, REPLICA_LOST)
    assert reason in text
    assert grid.kinds(2) == ["whole", "rounds", "rounds", "whole", "rounds", "rounds"]
    assert grid.kinds(1) == ["whole"] + ["rounds"] * 5
    assert sum("node 2 lost the model; it is sent one the next time" in line for line in lines) == 1
    contributors = [result.train_metrics_clientapp[k]["fedmpdd-contributors"] for k in range(1, 7)]
    assert contributors == [4, 4, 3, 4, 4, 4]


def test_who_can_never_follow_is_sent_models_from_then_on(lines: list[str]) -> None:
    def before(node: int, message: Message) -> None:
        if node == 2:
            grid.contexts[2].state = RecordDict()

    grid = Wire(before=before)
    run(FedMPDD(**options(SHARED, server=StepRule(optimiser="adam"), lr=0.1), downlink="replay"), 8, grid)
    assert grid.kinds(2) == ["whole", "rounds", "whole", "rounds"] + ["model"] * 4
    assert sum("node 2 cannot follow; it is sent the model from now on" in line for line in lines) == 1
    assert {size for _, node, kind, size in grid.sent if kind == "model"} == {4 * D}  # and nothing of the optimiser


def test_who_says_twice_that_it_is_lost_lost_once() -> None:
    def before(node: int, message: Message) -> None:
        if node == 2 and round_of(message) == 3:
            grid.contexts[2].state = RecordDict()

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        stranger = Message(reply.error, reply_to=message) if reply.has_error() else reply
        if reply.has_error():
            stranger.metadata.__dict__["_src_node_id"] = 99
        return [reply, reply, stranger] if reply.has_error() else [reply]

    grid = Wire(before=before, between=between)
    run(FedMPDD(**options(SHARED), downlink="replay"), 5, grid)
    assert grid.kinds(2) == ["whole", "rounds", "rounds", "whole", "rounds"]


def test_an_error_of_the_train_function_changes_nothing() -> None:
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        if context.node_config["node"] == 1 and round_of(message) == 2:
            arrays = ArrayRecord({"another": Array(np.ones(3, np.float32))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid = Wire(app=app)
    run(FedMPDD(**options(SHARED), downlink="replay"), 4, grid)
    assert [code == REPLICA_LOST for _, code, _ in grid.errors] == [False]
    assert grid.kinds(1) == ["whole", "rounds", "rounds", "rounds"]


# ------------------------------------------------------------------------------------------ rounds of another kind


@pytest.mark.parametrize("optimiser", ["sgd", "momentum"])
def test_a_round_that_changed_nothing_adds_nothing(optimiser: Any) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        return [] if round_of(message) == 3 else [reply]

    grid = Wire(between=between)
    own = options("mpdd:m=4:bits=1:keys=partitioned", lr=0.1, server=StepRule(optimiser=optimiser))
    replayed = run(FedMPDD(**own, downlink="replay"), 6, grid)
    whole = run(FedMPDD(**own), 6, Wire(between=between))
    assert flat_of(replayed.arrays).tobytes() == flat_of(whole.arrays).tobytes()
    assert grid.errors == []
    assert grid.kinds(0) == ["whole"] + ["rounds"] * 5


def test_an_infinite_step_that_was_undone_adds_nothing(lines: list[str]) -> None:
    app = quadratic_app(returns="gradient")
    grid = Wire(app=app)
    own = options("mpdd:m=4:bits=1:keys=partitioned", lr=3e38, returns="gradient", max_value=1e38, max_ratio=1e38)
    run(FedMPDD(**own, downlink="replay", server=StepRule(optimiser="momentum")), 4, grid)
    assert sum("would make the model infinite" in line for line in lines) >= 2
    assert grid.errors == []
    assert grid.kinds(0) == ["whole"] + ["rounds"] * 3


def test_where_updates_are_larger_than_the_model_the_model_is_sent() -> None:
    grid = Wire()
    own = options("fedsgd", server=StepRule(optimiser="adam"), lr=0.1)
    result = run(FedMPDD(**own, downlink="replay"), 3, grid)
    assert {(kind, size) for _, _, kind, size in grid.sent} == {("model", 4 * D)}
    assert flat_of(result.arrays).tobytes() == flat_of(run(FedMPDD(**own), 3).arrays).tobytes()


def test_a_model_that_somebody_changed_between_rounds_is_sent_to_all() -> None:
    class Rounded(FedMPDD):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round == 2 and arrays is not None:
                arrays = ArrayRecord({name: Array(np.round(value.numpy(), 2)) for name, value in arrays.items()})
            return arrays, metrics

    grid = Wire()
    run(Rounded(**options(SHARED), downlink="replay"), 4, grid)
    assert grid.errors == []
    assert grid.kinds(0) == ["whole", "rounds", "whole", "rounds"]


def test_after_a_restart_from_a_checkpoint_every_node_is_sent_the_model_once(tmp_path: Path) -> None:
    own = options(SHARED, lr=0.3, server=StepRule(optimiser="adam"), downlink="replay", downlink_bits=4)
    whole = run(FedMPDD(**own), 6)
    grid, file = Wire(), tmp_path / "checkpoint.safetensors"
    run(FedMPDD(**own, checkpoint=file), 3, grid)
    again = run(FedMPDD(**own, checkpoint=file), 6, grid)
    assert flat_of(again.arrays).tobytes() == flat_of(whole.arrays).tobytes()
    assert grid.errors == []
    assert grid.kinds(0) == ["whole", "rounds", "rounds"] * 2


def test_evaluate_messages_carry_the_model() -> None:
    result = run(FedMPDD(codec=SHARED, downlink="replay"), 3)
    assert result.evaluate_metrics_clientapp[3]["round"] == 3


# ---------------------------------------------------------------------------------------------------------- bytes


def large_app(d: int) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        weight = message.content.array_records["arrays"]["weight"].numpy()
        assert weight.shape == (d,)
        new = weight + np.float32(0.1) * (np.linspace(-1, 1, d, dtype=np.float32) - weight)
        record = ArrayRecord({"weight": Array(new)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def test_one_update_of_few_bits_goes_down_instead_of_the_model() -> None:
    d, nodes = 13_426, 6
    grid = Wire(nodes, app=large_app(d))
    strategy = FedMPDD(**options("mpdd:m=400:bits=1:family=hadamard:keys=shared"), downlink="replay", downlink_bits=4)
    strategy.start(grid, ArrayRecord({"weight": Array(np.zeros(d, np.float32))}), num_rounds=4)
    sizes = [size for k, _, _, size in grid.sent if k > 1]
    # The message's head and checksum, and per round: length, factor, the bundle's head, seed, scale, 400 scalars.
    assert set(sizes) == {16 + 4 + 4 + 8 + 8 + 8 + 4 + 200}
    assert max(sizes) < 4 * d / 20


def test_what_is_kept_of_the_past_is_never_more_than_a_model() -> None:
    strategy = FedMPDD(**options("mpdd:m=4:bits=1:keys=partitioned"), downlink="replay")
    run(strategy, 12)
    followers: Any = strategy._downlink
    assert 0 < sum(map(len, followers._rounds)) <= 4 * D
    assert len(followers._rounds) < 12


def test_the_mod_follows_without_pytorch() -> None:
    """A process per message that waits for PyTorch would take longer than all the rest."""
    code = """
import sys
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.catch_up import CatchUp
from fedmpdd.codecs import MPDD
from fedmpdd.directions import Key
from fedmpdd.flower import fedmpdd_mod
from fedmpdd.flower.layout import ParameterLayout, pack_flat
from fedmpdd.flower.instructions import CATCH_UP, ORDER, ReplicaSettings, RoundInstructions
from fedmpdd.flower.replay import make_replica, model_hash, pack_round, pack_vectors
from fedmpdd.server.step import StepRule

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
app = ClientApp()

@app.train(mods=[fedmpdd_mod])
def train(message, context):
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"a": message.content["arrays"], "m": metrics}), reply_to=message)

rule = StepRule("adam")
layout, codec = ParameterLayout(("w",), ((60,),), ("float32",)), MPDD(8)
context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
server = make_replica(rule, 0.1, np.zeros(60, np.float32))

def ask(k, **records):
    follow = ReplicaSettings(model_hash(server.flat), "arrays", rule, 0.1)
    order = RoundInstructions(k, {"name": "mpdd", "m": 8}, layout, "model", follow=follow)
    config = ConfigRecord({ORDER: order.as_text(), **{CATCH_UP: value for value in records.pop("added", ())}})
    content = RecordDict({"config": config, **records})
    reply = app(Message(content, dst_node_id=1, message_type="train"), context)
    assert not reply.has_error(), reply.error.reason

ask(1, arrays=pack_vectors(server))
bundle = Bundle(tuple(codec.encode(np.ones((1, 60), np.float32), [Key(3)])))
server.apply(bundle.pack(), codec, 0.5)
ask(2, added=[CatchUp(1, (pack_round(bundle, 0.5),)).pack()])
print("torch" in sys.modules, "pydantic" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.split()[:1] == ["False"], result.stderr


def test_shared_directions_are_stepped_along_as_carefully_as_for_one_node() -> None:
    """All nodes err in the same way: the mean of four is no better than one of them."""
    codec = "mpdd:m=9:keys=shared"
    result = run(FedMPDD(**options(codec), downlink="replay", downlink_bits=8), 150)
    assert np.linalg.norm(flat_of(result.arrays) - TARGET) < 0.25 * np.linalg.norm(TARGET)
    wild = run(FedMPDD(**options(codec), lr=1.0, downlink="replay", downlink_bits=8), 30)
    assert np.linalg.norm(flat_of(wild.arrays)) > 100


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rule": {"optimiser": "magic"}}, "optimiser = .magic.: expected"),
        ({"rule": {"beta1": "much"}}, "beta1 = .much.: expected a number"),
        ({"lr": float("nan")}, "steps by nan"),
        ({"speed": 3}, "cannot be followed"),
        ({"mean_bits": 4}, "no scalars to take the mean of"),
    ],
)
def test_orders_that_cannot_be_followed_are_refused(changes: dict[str, Any], problem: str) -> None:
    layout = ParameterLayout(("w",), ((60,),), ("float32",))
    follow = ReplicaSettings("0" * 16, "arrays", StepRule(), 0.1)
    values = json.loads(RoundInstructions(1, {"name": "fedsgd"}, layout, "model", follow=follow).as_text())
    values["follow"] |= changes
    with pytest.raises(OrderError, match=problem):
        RoundInstructions.from_text(json.dumps(values)).bundle_codec(1)


def test_an_order_without_a_layout_needs_one_that_is_known() -> None:
    layout = ParameterLayout(("w",), ((6, 10),), ("float32",))
    order = RoundInstructions(
        1, {"name": "fedsgd"}, layout, "model", follow=ReplicaSettings("0" * 16, "arrays", StepRule(), 0.1)
    )
    assert RoundInstructions.from_text(order.as_text(with_layout=False), layout) == order
    with pytest.raises(OrderError, match="no model here yet"):
        RoundInstructions.from_text(order.as_text(with_layout=False))


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"downlink": "broadcast"}, 'expected "model" or "replay"'),
        ({"downlink": "replay", "downlink_bits": 4}, "keys ?= ?.?shared"),
        (
            {"codec": "mpdd:m=4:keys=partitioned", "downlink_bits": 4},
            "keys ?= ?.?shared",
        ),
        ({"codec": SHARED, "downlink_bits": 3}, "expected one of 32, 16, 8, 4, 1"),
    ],
)
def test_bad_settings_are_refused(own: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        FedMPDD(**own)


def test_models_of_other_types_are_refused_before_the_first_round() -> None:
    arrays = ArrayRecord({"half": Array(np.zeros(60, np.float16))})
    with pytest.raises(ConfigError, match="'half' of the model is float16: expected float32"):
        FedMPDD(codec=SHARED, downlink="replay").start(Wire(), arrays, num_rounds=1)
