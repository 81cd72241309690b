"""Secure sums by strategy and mod, over a Grid in this process: exact sums, drop-outs, liars, restarts, conditions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fedmpdd.errors import ConfigError
from fedmpdd.flower import ClientPolicy, FedMPDD, SecureRounds, make_mod
from fedmpdd.flower.secure_mod import PROTECTION, SECURE
from fedmpdd.secure_sum import FileLedger, Identity, Phase, Roster, Terms, bytes_down, bytes_up, primitives
from fedmpdd.secure_sum.messages import Kind
from fedmpdd.simulation import federation_of, parse_config, sampling
from fedmpdd.uplink.secure import SecureUplink
from tests.flower.grid import Between, InProcessGrid
from tests.flower.test_strategy import _engine_app, flat_of, lines
from tests.simulation.test_cuda import images

assert lines  # a fixture, used by name

D, NODES = 60, 10
SHARED = "mpdd:m=40:family=hadamard:keys=shared"
QUIET = SecureRounds(clip=20.0)  # so wide that nothing is clipped
# What opens a phase, by the kind of message that does; and how many of ten nodes may be gone by QUIET.
OPENS = {Kind.TERMS: Phase.ADVERTISE, Kind.KEYS: Phase.SHARE, Kind.INBOX: Phase.MASK, Kind.SURVIVORS: Phase.UNMASK}
SPARE = 3


def gradient_of(node: int, flat: Any) -> Any:
    """What a node computes: the way from TARGET, which is a little beside that of the others."""
    return (flat - np.linspace(-1, 1, D).astype(np.float32) - np.float32(0.01) * np.float32(node)).astype(np.float32)


def app_of(policy: ClientPolicy | None = None) -> ClientApp:
    """Clients that return gradients."""
    app = ClientApp()

    @app.train(mods=[make_mod(policy or ClientPolicy())])
    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records["config"]
        assert set(config) == {"server-round"}  # nothing of the protocol reaches the train function
        node = int(context.node_config["node"])
        flat = message.content.array_records["arrays"]["flat-model"].numpy()
        arrays = ArrayRecord({"flat-model": Array(gradient_of(node, flat))})
        metrics = MetricRecord({"num-examples": 10 + node, "loss": 1.0})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def initial() -> ArrayRecord:
    return ArrayRecord({"flat-model": Array(np.zeros(D, np.float32))})


def strategy_of(codec: str = SHARED, secure: SecureRounds = QUIET, **options: Any) -> FedMPDD:
    values = {"returns": "gradient", "lr": 0.1, "weighting": "equal", "robust": False, "fraction_evaluate": 0.0}
    return FedMPDD(codec=codec, secure=secure, seed=1, **{**values, **options})


def run(
    strategy: FedMPDD,
    rounds: int = 1,
    *,
    policy: ClientPolicy | None = None,
    between: Between | None = None,
    nodes: int = NODES,
) -> Result:
    return strategy.start(InProcessGrid(app_of(policy), nodes, between), initial(), num_rounds=rounds)


def phase_of(message: Message) -> Phase:
    """Which phase a message to a node opens."""
    (data,) = [record[SECURE] for record in message.content.config_records.values() if SECURE in record]
    assert isinstance(data, bytes)
    return OPENS[Kind(data[5])]


def gone_at(phase: Phase, nodes: range, *, first: int = 1) -> Between:
    """Nodes whose answers to a phase, in so many rounds from the first on, never arrive."""
    asked: dict[int, int] = {}

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        # The mod takes the protocol's part out of train messages before the train function sees them.
        now = Phase.MASK if is_train(message) else phase_of(message)
        asked[node] = asked.get(node, 0) + (now == Phase.ADVERTISE)
        return [] if node in nodes and now == phase and asked[node] == first else [reply]

    return between


def is_train(message: Message) -> bool:
    return bool(message.content.array_records)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The integers that nodes mask, noise included, in the order in which they mask them."""
    kept: list[list[int]] = []
    elements = SecureUplink.elements

    def spy(self: SecureUplink, *arguments: Any) -> Any:
        values = elements(self, *arguments)
        kept.append([int(value) for value in values[0]])
        return values

    monkeypatch.setattr(SecureUplink, "elements", spy)
    return kept


def sum_of(rows: list[list[int]], bits: int) -> list[int]:
    return [sum(column) % 2**bits for column in zip(*rows, strict=True)]


def total_of(strategy: FedMPDD) -> list[int]:
    assert strategy.sum is not None
    assert strategy.sum.total is not None
    return [int(value) for value in strategy.sum.total]


# ------------------------------------------------------------------------------------------------------- exact sums


@pytest.mark.parametrize("codec", [SHARED, "mpdd:m=7:keys=shared", "fedsgd"])
@pytest.mark.parametrize(
    "secure",
    [
        QUIET,
        SecureRounds(clip=0.5, noise_multiplier=0.1),
        SecureRounds(clip=20.0, noise_multiplier=0.02, ring_bits=23, dropouts=0.0),
        SecureRounds(clip=1.0, dropouts=0.0, neighbours=6),
    ],
    ids=["quiet", "noise", "narrow", "neighbours"],
)
def test_the_sum_is_that_of_the_integers(codec: str, secure: SecureRounds, sent: list[list[int]]) -> None:
    strategy = strategy_of(codec, secure)
    result = run(strategy, 2)
    assert len(sent) == 2 * NODES
    assert total_of(strategy) == sum_of(sent[NODES:], secure.ring_bits)
    assert result.train_metrics_clientapp[2]["fedmpdd-contributors"] == NODES


def test_the_integers_are_those_of_the_document() -> None:
    """By Python's own numbers: steps of clip over (2^31 − 1)/(n + 1), rounded half to even."""
    strategy = strategy_of("fedsgd")
    result = run(strategy)
    step = QUIET.clip / ((2**31 - 1) / (NODES + 1))
    gradients = [[float(x) for x in gradient_of(node, np.zeros(D, np.float32))] for node in range(NODES)]
    integers = [[round(x / step) for x in row] for row in gradients]
    assert total_of(strategy) == sum_of(integers, 32)
    mean = np.array([sum(column) for column in zip(*integers, strict=True)]) * step / NODES
    assert np.allclose(flat_of(result.arrays), -0.1 * mean, rtol=1e-6)


def test_no_noise_can_be_drawn_again(sent: list[list[int]]) -> None:
    """Two runs with one seed: nearly every integer is another one. By chance three are equal once in 10^16 runs."""
    for noise in (0.0, 0.1):
        for _ in range(2):
            run(strategy_of(secure=SecureRounds(clip=20.0, noise_multiplier=noise)))
    quiet, noisy = sent[: 2 * NODES], sent[2 * NODES :]
    assert quiet[:NODES] == quiet[NODES:]
    # Noise alone, by which it is told from the gradient: the difference of two draws, and no two of these are the same.
    differences = [
        [a - b for a, b in zip(*rows, strict=True)] for rows in zip(noisy[:NODES], noisy[NODES:], strict=True)
    ]
    assert len({tuple(row) for row in differences}) == NODES
    assert sum(value == 0 for row in differences for value in row) < 3


def test_the_model_is_the_local_engines() -> None:
    values: dict[str, Any] = {"model": "logistic", "clients": 5, "batch": 4, "lr": 0.05, "rounds": 4, "device": "cpu"}
    codec = {"name": "mpdd", "m": 50, "family": "hadamard", "keys": "shared"}
    config = parse_config({**values, "codec": codec, "secure": {"clip": 0.1}})
    local = federation_of(config, images())
    start = local.flat.clone()
    for _ in range(3):
        local.run_round()
    strategy = strategy_of("mpdd:m=50:family=hadamard:keys=shared", SecureRounds(clip=0.1), lr=config.lr)
    strategy._seed = int(np.random.default_rng([config.seed, sampling._KEYS]).integers(2**63))
    grid = InProcessGrid(_engine_app(federation_of(config, images())), 5)
    result = strategy.start(grid, ArrayRecord({"flat-model": Array(start.numpy())}), num_rounds=3)
    assert torch.equal(torch.from_numpy(flat_of(result.arrays)), local.flat)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("codec", [SHARED, "fedsgd"])
def test_nodes_can_follow_the_sums(codec: str, bits: int | None) -> None:
    if bits is not None and codec == "fedsgd":
        with pytest.raises(ConfigError, match="downlink_bits"):
            strategy_of(codec, downlink_bits=bits)
        return
    errors: list[Message] = []

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        errors.extend([reply] if reply.has_error() else [])
        return [reply]

    whole = run(strategy_of(codec, downlink_bits=bits), 4)
    strategy = strategy_of(codec, downlink="replay", downlink_bits=bits)
    followed = run(strategy, 4, between=between)
    assert errors == []
    assert flat_of(followed.arrays).tobytes() == flat_of(whole.arrays).tobytes()


def test_the_bytes_are_those_of_the_protocol() -> None:
    result = run(strategy_of())
    terms = Terms(bytes(16), 1, NODES, 40, QUIET.threshold(NODES))
    metrics = result.train_metrics_clientapp[1]
    assert metrics["fedmpdd-update-bytes"] == NODES * sum(bytes_up(terms))
    assert metrics["fedmpdd-downlink-bytes"] == NODES * (4 * D + sum(bytes_down(terms)))
    assert metrics["loss"] == 1.0
    assert not {"round", "update"} & set(metrics)


# -------------------------------------------------------------------------------------------------------- drop-outs


@pytest.mark.parametrize("phase", OPENS.values(), ids=lambda phase: phase.name)
def test_who_vanishes_in_a_phase_leaves_the_sum_of_the_others(
    phase: Phase, sent: list[list[int]], lines: list[str]
) -> None:
    strategy = strategy_of(secure=SecureRounds(clip=0.5, noise_multiplier=0.1))
    run(strategy, between=gone_at(phase, range(SPARE)))
    assert strategy.sum is not None
    answered = tuple(range(NODES)) if phase == Phase.UNMASK else tuple(range(SPARE, NODES))
    assert strategy.sum.included == answered
    masked = range(NODES) if phase in (Phase.MASK, Phase.UNMASK) else answered
    rows = dict(zip(masked, sent, strict=True))
    assert total_of(strategy) == sum_of([rows[node] for node in answered], 32)
    assert f"round 1: no answer of nodes [0, 1, 2] counted at {phase.name}; they left the sum" in lines


@pytest.mark.parametrize("phase", OPENS.values(), ids=lambda phase: phase.name)
def test_a_round_that_too_few_stay_in_counts_for_nothing_and_the_next_one_does(phase: Phase, lines: list[str]) -> None:
    strategy = strategy_of("fedsgd")
    result = run(strategy, 2, between=gone_at(phase, range(SPARE + 1)))
    assert sorted(result.train_metrics_clientapp) == [2]
    assert any("round 1: the secure sum was aborted, and the model stays as it is: 6 of 10" in line for line in lines)
    assert any(line.startswith("round 1: 0 of 10 nodes contributed") for line in lines)
    assert strategy.sum is not None
    assert strategy.sum.included == tuple(range(NODES))
    one_round = run(strategy_of("fedsgd"))
    assert flat_of(result.arrays).tobytes() == flat_of(one_round.arrays).tobytes()


def test_nodes_that_are_too_few_from_the_start_are_told_why(lines: list[str]) -> None:
    run(strategy_of(), nodes=2)
    assert any("insists on 3 in a sum that it is in" in line for line in lines)
    run(strategy_of(min_train_nodes=1, min_available_nodes=1), nodes=1)
    assert any("a secure sum of 1 clients is no sum" in line for line in lines)
    run(strategy_of(fraction_train=0.0))
    assert any("a secure sum of 0 clients is no sum" in line for line in lines)


def test_a_node_that_lost_the_model_drops_out_and_is_sent_it_the_next_time(sent: list[list[int]]) -> None:
    grid = Repeating(app_of(), NODES)

    def forget(phase: Phase, node: int) -> None:
        kept = grid.contexts[node].state
        if phase == Phase.MASK and node == 4 and len(sent) == NODES + 4:  # in the second round, before it masks
            del kept["fedmpdd.model"]

    grid.before = forget
    strategy = strategy_of(downlink="replay")
    result = strategy.start(grid, initial(), num_rounds=3)
    counts = [result.train_metrics_clientapp[k]["fedmpdd-contributors"] for k in (1, 2, 3)]
    assert counts == [NODES, NODES - 1, NODES]
    assert total_of(strategy) == sum_of(sent[2 * NODES - 1 :], 32)


# ------------------------------------------------------------------------------------------------------ wrong answers


def answer_of(reply: Message) -> bytes:
    data = reply.content.config_records["fedmpdd"]["update"]
    assert isinstance(data, bytes)
    return data


def with_answer(reply: Message, data: Any) -> list[Message]:
    reply.content = RecordDict({"fedmpdd": ConfigRecord({"update": data})})
    return [reply]


GARBLED: dict[str, Callable[[Message], list[Message]]] = {
    "cut off": lambda reply: with_answer(reply, answer_of(reply)[:-1]),
    "longer": lambda reply: with_answer(reply, answer_of(reply) + b"\0"),
    "text": lambda reply: with_answer(reply, "text"),
    "another client": lambda reply: with_answer(reply, answer_of(reply)[:6] + b"\5\0" + answer_of(reply)[8:]),
    "another round": lambda reply: with_answer(reply, answer_of(reply)[:8] + bytes(8) + answer_of(reply)[16:]),
    "another kind": lambda reply: with_answer(reply, answer_of(reply)[:5] + b"\0" + answer_of(reply)[6:]),
    "empty": lambda reply: with_answer(reply, b""),
    "no record": lambda reply: setattr(reply, "content", RecordDict()) or [reply],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("how", GARBLED)
@pytest.mark.parametrize("phase", OPENS.values(), ids=lambda phase: phase.name)
def test_answers_that_are_none_are_drop_outs(phase: Phase, how: str, sent: list[list[int]], lines: list[str]) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        now = Phase.MASK if is_train(message) else phase_of(message)
        return GARBLED[how](reply) if node == 1 and now == phase else [reply]

    strategy = strategy_of()
    run(strategy, between=between)
    assert strategy.sum is not None
    answered = [node for node in range(NODES) if node != 1 or phase == Phase.UNMASK]
    assert strategy.sum.included == tuple(answered)
    masked = range(NODES) if phase in (Phase.MASK, Phase.UNMASK) else answered
    rows = dict(zip(masked, sent, strict=True))
    assert total_of(strategy) == sum_of([rows[node] for node in answered], 32)
    assert any(line.startswith(f"round 1: {phase.name} of node 1 does not count: ") for line in lines)


def test_who_answers_twice_counts_once(sent: list[list[int]], lines: list[str]) -> None:
    strategy = strategy_of()
    run(strategy, between=lambda node, message, reply: [reply, reply] if node == 1 else [reply])
    assert total_of(strategy) == sum_of(sent, 32)
    assert sum("has answered this phase already" in line for line in lines) == 4


def test_wrong_shares_stop_the_round_and_never_make_a_wrong_sum(lines: list[str]) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        if node == 1 and not is_train(message) and phase_of(message) == Phase.UNMASK:
            data = bytearray(answer_of(reply))
            data[20] ^= 1
            return with_answer(reply, bytes(data))
        return [reply]

    strategy = strategy_of()
    result = run(strategy, between=between)
    assert strategy.sum is not None
    assert strategy.sum.total is None
    assert result.train_metrics_clientapp == {}
    assert any("somebody told a wrong one, and which is not known" in line for line in lines)


# --------------------------------------------------------------------------------------- restarts, and what was asked


class Repeating(InProcessGrid):
    """A grid that keeps messages, as they went down, and can change nodes in between."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.messages: dict[Phase, dict[int, Message]] = {phase: {} for phase in OPENS.values()}
        self.before: Callable[[Phase, int], None] = lambda phase, node: None

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        for message in messages:
            node, phase = message.metadata.dst_node_id, phase_of(message)
            self.messages[phase][node] = Message(
                RecordDict(dict(message.content)), dst_node_id=node, message_type="train"
            )
            self.before(phase, node)
            yield from super().send_and_receive([message], timeout=timeout)

    def again(self, phase: Phase, node: int) -> Message:
        """Ask a node once more what it was asked."""
        kept = self.messages[phase][node]
        message = Message(RecordDict(dict(kept.content)), dst_node_id=node, message_type="train")
        return self._app(message, self.contexts[node])


def test_a_node_that_is_started_again_leaves_the_round_and_joins_the_next(
    sent: list[list[int]], lines: list[str]
) -> None:
    grid = Repeating(app_of(), NODES)

    def restart(phase: Phase, node: int) -> None:
        if phase == Phase.MASK and node == 4 and not grid.contexts[node].state.config_records.get("again"):
            grid.contexts[node].state = RecordDict({"again": ConfigRecord({"yes": 1})})

    grid.before = restart
    strategy = strategy_of()
    result = strategy.start(grid, initial(), num_rounds=2)
    assert [result.train_metrics_clientapp[k]["fedmpdd-contributors"] for k in (1, 2)] == [NODES - 1, NODES]
    assert any("this node has no part in a secure sum" in line for line in lines)
    assert total_of(strategy) == sum_of(sent[NODES - 1 :], 32)


@pytest.mark.parametrize("phase", OPENS.values(), ids=lambda phase: phase.name)
def test_a_phase_is_answered_once(phase: Phase) -> None:
    grid = Repeating(app_of(), NODES)
    strategy_of().start(grid, initial(), num_rounds=1)
    reply = grid.again(phase, 3)
    assert reply.has_error()
    assert ("has answered round 1 already" if phase == Phase.ADVERTISE else "no part in a secure sum") in str(
        reply.error.reason
    )


def test_between_two_phases_none_is_answered_again() -> None:
    grid = Repeating(app_of(), NODES)
    reasons: list[str] = []

    def before(phase: Phase, node: int) -> None:
        if phase == Phase.UNMASK and node == 3:
            reasons.extend(str(grid.again(one, 3).error.reason) for one in (Phase.ADVERTISE, Phase.SHARE, Phase.MASK))

    grid.before = before
    strategy = strategy_of()
    strategy.start(grid, initial(), num_rounds=1)
    assert strategy.sum is not None
    assert strategy.sum.included == tuple(range(NODES))
    assert "has answered round 1 already" in reasons[0]
    assert "a message of kind 2 came where SURVIVORS" in reasons[1]
    assert "a masked vector was asked of a node that is at UNMASK" in reasons[2]


def test_a_file_outlives_the_node_and_refuses_an_older_state(tmp_path: Path) -> None:
    policy = ClientPolicy(ledger=lambda context: FileLedger(tmp_path / f"{context.node_config['node']}.json"))
    grid = Repeating(app_of(policy), NODES)
    older: list[RecordDict] = []

    def before(phase: Phase, node: int) -> None:
        if phase == Phase.MASK and node == 3:
            older.append(RecordDict(dict(grid.contexts[node].state)))

    grid.before = before
    strategy_of().start(grid, initial(), num_rounds=1)
    grid.contexts[3].state = older[0]
    assert "the ledger says that 4 phases of round 1 were answered" in str(grid.again(Phase.MASK, 3).error.reason)
    grid.contexts[3].state = RecordDict()
    assert "has answered round 1 already" in str(grid.again(Phase.ADVERTISE, 3).error.reason)


def test_a_ledger_that_cannot_be_read_stops_the_node() -> None:
    grid = Repeating(app_of(), NODES)
    strategy = strategy_of()
    strategy.start(grid, initial(), num_rounds=1)
    kept = grid.contexts[3].state.config_records[SECURE]
    for text in ("", "{}", '{"format": "another", "runs": {}}', str(kept["ledger"]).replace("[", "[[")):
        grid.contexts[3].state[SECURE] = ConfigRecord({**kept, "ledger": text})
        assert "the ledger in this node's state cannot be read" in str(grid.again(Phase.ADVERTISE, 3).error.reason)


def test_the_sums_of_a_strategy_count_on(sent: list[list[int]]) -> None:
    grid, strategy = InProcessGrid(app_of(), NODES), strategy_of()
    for _ in range(2):
        result = strategy.start(grid, initial(), num_rounds=1)
        assert result.train_metrics_clientapp[1]["fedmpdd-contributors"] == NODES
    assert total_of(strategy) == sum_of(sent[NODES:], 32)


def test_a_checkpoint_goes_on(tmp_path: Path) -> None:
    whole = run(strategy_of(), 3)
    run(strategy_of(checkpoint=tmp_path / "file"), 2)
    rest = run(strategy_of(checkpoint=tmp_path / "file"), 3)
    assert flat_of(rest.arrays).tobytes() == flat_of(whole.arrays).tobytes()


# ------------------------------------------------------------------------------------------- what a node insists on


@pytest.mark.parametrize(
    ("secure", "policy", "reason"),
    [
        (QUIET, {"largest_clip": 2.0}, "clip is 20.0, this client insists on at most 2.0"),
        (QUIET, {"largest_clip": 20.0, "least_noise": 0.1}, "noise_multiplier is 0.0, this client insists on at least"),
        (QUIET, {"fewest_clients": 8}, "7 clients may be all that are left by these terms"),
        (QUIET, {"colluders": 5}, "7 clients, 5 of them in league with the server, may be all"),
        (SecureRounds(clip=1.0, dropouts=0.0, neighbours=6), {"colluders": 3}, "it takes 8: nothing is told"),
        (QUIET, {"codecs": ("fedsgd",)}, "codec is mpdd, this client allows fedsgd"),
        (QUIET, {"identity": lambda context: identities()[int(context.node_config["node"])]}, "ask for no signatures"),
    ],
)
def test_terms_that_protect_less_are_refused_and_the_server_hears_why(
    secure: SecureRounds, policy: dict[str, Any], reason: str, lines: list[str]
) -> None:
    result = run(strategy_of(secure=secure), policy=ClientPolicy(**policy))
    assert result.train_metrics_clientapp == {}
    assert any(reason in line for line in lines), lines
    assert any("the secure sum was aborted" in line for line in lines)


def test_a_node_can_insist_on_secure_sums(lines: list[str]) -> None:
    policy = ClientPolicy(secure=True, largest_clip=2.0, least_noise=0.5, most_updates=2)
    plain = FedMPDD(codec="mpdd:m=40:clip=2.0:noise_multiplier=0.5", fraction_evaluate=0.0)
    assert run(plain, policy=policy).train_metrics_clientapp == {}
    assert any("asks for a single update, and this client insists on secure sums" in line for line in lines)
    enough = run(strategy_of(secure=SecureRounds(clip=2.0, noise_multiplier=0.5)), 4, policy=policy)
    assert sorted(enough.train_metrics_clientapp) == [1, 2]
    assert any("ADVERTISE of node 3 does not count: fedmpdd: this client has sent 2 updates" in line for line in lines)


def test_terms_of_another_training_are_refused(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks for the same vectors again, under another name."""
    monkeypatch.setattr("fedmpdd.flower.secure_strategy.training_of", lambda run_id: bytes(16))
    assert run(strategy_of()).train_metrics_clientapp == {}
    assert any(f"the terms name the training {bytes(16).hex()}, and this Flower run is" in line for line in lines)


def changed_order(message: Message, **values: Any) -> None:
    config = message.content.config_records["config"]
    order = json.loads(str(config["fedmpdd"]))
    config["fedmpdd"] = json.dumps({**order, **values})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda message: changed_order(message, secure={}), "one of them is missing"),
        (lambda message: message.content.config_records["config"].pop(SECURE), "one of them is missing"),
        (lambda message: changed_order(message, secure={"clip": 1.0, "more": 2.0}), "cannot be followed"),
        (lambda message: changed_order(message, secure={"clip": "1.0"}), "cannot be followed"),
        (lambda message: changed_order(message, secure={"clip": -1.0}), "expected finite numbers"),
        (lambda message: changed_order(message, secure=[1.0]), "its secure is a list"),
        (lambda message: changed_order(message, error_feedback=True), "no memories"),
        (lambda message: changed_order(message, protection={"clip": 1.0}), "a clip of its own"),
        (lambda message: changed_order(message, key=None), "one key for all clients"),
        (lambda message: changed_order(message, codec={"name": "mpdd", "m": 41}), "disagree about codec or model"),
        (lambda message: changed_order(message, codec={"name": "mpdd", "m": 40, "bits": 8}), "numbers that mean the"),
        (lambda message: changed_order(message, codec={"name": "topk", "k": 3}), "numbers that mean the same"),
    ],
)
def test_an_order_that_does_not_belong_to_the_sum_is_refused(
    change: Callable[[Message], None], reason: str, lines: list[str]
) -> None:
    send = InProcessGrid.send_and_receive

    class Changing(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            for message in messages:
                if is_train(message) and message.metadata.dst_node_id == 2:
                    change(message)
                yield from send(self, [message], timeout=timeout)

    grid = Changing(app_of(), NODES)
    strategy = strategy_of()
    strategy.start(grid, initial(), num_rounds=1)
    assert strategy.sum is not None
    assert strategy.sum.included == tuple(node for node in range(NODES) if node != 2)
    assert any(reason in line for line in lines), lines


@pytest.mark.parametrize(
    ("protection", "reason"), [("[]", "expected numbers by name"), ('{"clip": "x"}', "expected numbers"), ("{", "")]
)
def test_an_opening_that_cannot_be_read_is_refused(protection: str, reason: str) -> None:
    grid = Repeating(app_of(), NODES)
    strategy_of().start(grid, initial(), num_rounds=1)
    message = grid.messages[Phase.ADVERTISE][3]
    for change in ({PROTECTION: protection}, {"client": "3"}, {SECURE: "text"}, {SECURE: b"FMPS"}):
        record = ConfigRecord({**dict(message.content.config_records["fedmpdd"]), **change})
        asked = Message(RecordDict({"fedmpdd": record}), dst_node_id=3, message_type="train")
        grid.contexts[3].state = RecordDict()
        reply = grid._app(asked, grid.contexts[3])
        assert reply.has_error()
        assert PROTECTION not in change or reason in str(reply.error.reason)


# ------------------------------------------------------------------------------------------------------- signatures


def identities() -> list[Identity]:
    secrets = [bytes([7, node] * 16) for node in range(NODES)]
    roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets])
    return [Identity(secret, roster) for secret in secrets]


def signing(node_of: Callable[[int], int] = lambda node: node) -> ClientPolicy:
    """Nodes that sign, each with the key of a number that the server does not know beforehand."""
    return ClientPolicy(identity=lambda context: identities()[node_of(int(context.node_config["node"]))])


def test_nodes_can_sign_and_take_the_numbers_of_the_roster(sent: list[list[int]]) -> None:
    strategy = strategy_of(roster=identities()[0].roster)
    result = run(strategy, 2, policy=signing(lambda node: (3 * node + 1) % NODES))
    assert result.train_metrics_clientapp[2]["fedmpdd-contributors"] == NODES
    assert total_of(strategy) == sum_of(sent[NODES:], 32)
    terms = Terms(bytes(16), 1, NODES, 40, QUIET.threshold(NODES), signed=True)
    assert result.train_metrics_clientapp[1]["fedmpdd-update-bytes"] == NODES * sum(bytes_up(terms))


def test_of_a_roster_some_may_not_be_asked(sent: list[list[int]]) -> None:
    strategy = strategy_of(roster=identities()[0].roster)
    run(strategy, policy=signing(), nodes=NODES - SPARE)
    assert total_of(strategy) == sum_of(sent, 32)
    assert len(sent) == NODES - SPARE


def test_a_node_with_anothers_key_or_none_stays_out(sent: list[list[int]], lines: list[str]) -> None:
    strategy = strategy_of(roster=identities()[0].roster)
    run(strategy, policy=signing(lambda node: max(node, 1)))  # two nodes sign as number 1
    assert strategy.sum is not None
    assert strategy.sum.included == tuple(node for node in range(NODES) if node != 1)
    assert any("client 1 has answered this phase already" in line for line in lines)
    run(strategy_of(roster=identities()[0].roster))
    assert any("this node was given no identity to sign with" in line for line in lines)


# --------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"codec": "auto"}, 'needs a codec by name, "mpdd:m=…:keys=shared"'),
        ({"codec": "mpdd:m=40"}, 'codec "mpdd:m=…:keys=shared"'),
        ({"codec": "mpdd:m=40:bits=8:keys=shared"}, "with 32 bits or .fedsgd., whose numbers add up"),
        ({"codec": "topk:k=3"}, 'or "fedsgd"'),
        ({"codec": "mpdd:m=40:keys=shared:clip=1.0"}, "without clip"),
        ({"weighting": "examples"}, 'weighting "equal"'),
        ({"robust": True}, "a mean that is not robust"),
        ({"weighting": "examples", "robust": True}, 'weighting "equal".*not robust'),
    ],
)
def test_what_cannot_be_added_up_unseen_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        strategy_of(**options)


def test_a_roster_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="pass secure="):
        FedMPDD(roster=identities()[0].roster)


def test_orders_without_sums_say_nothing_of_them() -> None:
    texts: list[str] = []

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        return [reply]

    class Reading(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            for message in messages:
                texts.append(str(message.content.config_records["config"]["fedmpdd"]))
                yield from super().send_and_receive([message], timeout=timeout)

    plain = FedMPDD(codec="mpdd:m=40", fraction_evaluate=0.0)
    plain.start(Reading(app_of(), 3, between), initial(), num_rounds=1)
    assert all("secure" not in json.loads(text) for text in texts)
    assert len(texts) == 3
