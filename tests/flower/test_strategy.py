"""The strategy and the mod together, over a Grid in this process."""

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.errors import ConfigError, InputError, RunError
from fedmpdd.flower import FedMPDD, fedmpdd_mod
from fedmpdd.flower.checkpoint import read_checkpoint, write_checkpoint
from fedmpdd.flower.layout import ParameterLayout
from fedmpdd.server.step import StepRule
from fedmpdd.simulation import Federation, federation_of, parse_config, sampling
from fedmpdd.simulation.clients import Work
from tests.flower.grid import Between, InProcessGrid
from tests.simulation.test_cuda import images

D = 60
TARGET = np.linspace(-1, 1, D).astype(np.float32)


def quadratic_app(*, returns: str = "model", steps: float = 0.5) -> ClientApp:
    """Clients that pull a model in two arrays towards TARGET, each a little beside it."""
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        assert list(arrays) == ["weight", "bias"]  # as the user knows them, not flat
        assert "fedmpdd" not in message.content.config_records["config"]
        flat = np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])
        gradient = flat - TARGET - 0.01 * int(context.node_config["node"])
        new = gradient if returns == "gradient" else flat - steps * gradient
        record = ArrayRecord({"weight": Array(new[:40].reshape(4, 10)), "bias": Array(new[40:])})
        metrics = MetricRecord(
            {"num-examples": 10 + int(context.node_config["node"]), "loss": float(gradient @ gradient)}
        )
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        assert list(message.content.array_records["arrays"]) == ["weight", "bias"]
        metrics = MetricRecord({"num-examples": 1, "round": round_of(message)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def initial() -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.zeros((4, 10), np.float32)), "bias": Array(np.zeros(20, np.float32))})


def round_of(message: Message) -> int:
    number = message.content.config_records["config"]["server-round"]
    assert isinstance(number, int)
    return number


def flat_of(arrays: ArrayRecord) -> Any:
    return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])


def run(strategy: FedMPDD, rounds: int, *, nodes: int = 4, between: Between | None = None, **app: Any) -> Any:
    return strategy.start(InProcessGrid(quadratic_app(**app), nodes, between), initial(), num_rounds=rounds)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What Flower's logger says."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keep()
    logging.getLogger("flwr").addHandler(handler)
    yield found
    logging.getLogger("flwr").removeHandler(handler)


@pytest.mark.parametrize(
    "codec",
    [
        "fedsgd",
        "mpdd:m=40",
        "mpdd:m=40:bits=1:family=hadamard:keys=partitioned",
        "mpdd:m=40:bits=8:keys=shared",
        "mpdd:m=40:clip=100.0",
        "qsgd:bits=8",
        "topk:k=20:error_feedback=true",
        "randk:k=30",
        "signsgd",
        "eden:bits=4",
        "peaks:m=9:group=4",
        "peaks:m=2:group=4:grows_to=9:grows_after=1",
        "lp-proj:size=55",
        "sa-fedlora:rank=2:warmup=1",
        "ferret:m=40",
        "laplace:noise=0.0001",
    ],
)
@pytest.mark.parametrize("returns", ["model", "gradient"])
def test_every_codec_trains(codec: str, returns: str) -> None:
    strategy = FedMPDD(codec=codec, returns=returns, lr=0.3, seed=1)  # type: ignore[arg-type]
    result = run(strategy, 25, returns=returns)
    mean = TARGET + 0.01 * np.average(range(4), weights=[10, 11, 12, 13])
    assert np.linalg.norm(flat_of(result.arrays) - mean) < 0.5 * np.linalg.norm(mean)
    metrics = result.train_metrics_clientapp[25]
    assert metrics["fedmpdd-contributors"] == 4
    assert metrics["fedmpdd-dropped"] == 0
    assert metrics["loss"] > 0
    assert result.evaluate_metrics_clientapp[25]["round"] == 25


def test_whole_gradients_are_plain_averaging() -> None:
    result = run(FedMPDD(codec="fedsgd", robust=False), 1)
    expected = 0.5 * (TARGET + 0.01 * np.average(range(4), weights=[10, 11, 12, 13]))
    assert np.allclose(flat_of(result.arrays), expected, atol=1e-6)
    equal = run(FedMPDD(codec="fedsgd", weighting="equal", robust=False), 1)
    assert np.allclose(flat_of(equal.arrays), 0.5 * (TARGET + 0.015), atol=1e-6)


def test_one_value_of_bytes_is_sent() -> None:
    sent: list[Message] = []

    def keep(node: int, message: Message, reply: Message) -> list[Message]:
        sent.append(reply)
        return [reply]

    run(FedMPDD(codec="mpdd:m=40:bits=1:family=hadamard", fraction_evaluate=0.0), 1, between=keep)
    (record,) = sent[0].content.values()
    assert isinstance(record, ConfigRecord)
    assert len(frame_of(sent[0])) == 4 + 8 + 4 + 5 + 4  # head, seed, scale, forty signs, checksum


def test_seeds_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def randbits(count: int) -> int:
        drawn.append(count)
        return 7

    monkeypatch.setattr("fedmpdd.flower.mod.secrets.randbits", randbits)
    run(FedMPDD(codec="mpdd:m=40"), 2)
    assert drawn.count(64) == 8


def test_auto_chooses_as_many_directions_as_the_error_allows(lines: list[str]) -> None:
    result = run(FedMPDD(fraction_evaluate=0.0), 30)
    assert any("m=24" in line for line in lines)  # π/2 · 60 / 4
    assert any("round 1: relative error" in line and "the server takes 1 of the step" in line for line in lines)
    assert np.linalg.norm(flat_of(result.arrays) - TARGET - 0.015) < 0.3 * np.linalg.norm(TARGET)


@pytest.fixture
def seeds_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes draw their seeds from a generator, so that nothing here is left to chance."""
    monkeypatch.setattr("fedmpdd.flower.mod.secrets.randbits", random.Random(1).getrandbits)


@pytest.mark.usefixtures("seeds_of_nodes")
def test_few_directions_step_carefully_instead_of_diverging() -> None:
    """Local training goes all the way here, so that nodes undo all of an error, of 7.4 times the update."""
    codec = "mpdd:m=2"
    away: list[float] = []

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        away.append(float(np.linalg.norm(flat_of(arrays) - TARGET) / np.linalg.norm(TARGET)))

    careful = FedMPDD(codec=codec, fraction_evaluate=0.0)
    grid = InProcessGrid(quadratic_app(steps=1.0), 4)
    careful.start(grid, initial(), num_rounds=150, evaluate_fn=evaluate)
    assert max(away) < 5  # times as far as at the start: the first step is a full one
    assert away[-1] < 0.1
    wild = run(FedMPDD(codec=codec, lr=1.0, fraction_evaluate=0.0), 30, steps=1.0)
    assert np.linalg.norm(flat_of(wild.arrays)) > 100


@pytest.mark.usefixtures("seeds_of_nodes")
def test_errors_that_nobody_undoes_cost_no_steps(lines: list[str]) -> None:
    """Local training goes a hundredth of the way: nearly plain averaging, though the relative error is 1.5."""
    run(FedMPDD(codec="mpdd:m=10", fraction_evaluate=0.0), 20, steps=0.01)
    taken = [float(line.split("takes ")[1].split()[0]) for line in lines if "the server takes" in line]
    assert len(taken) == 20
    assert np.mean(taken) > 0.7


@pytest.mark.parametrize("codec", ["topk:k=20:error_feedback=true", "signsgd", "lp-proj:size=55"])
def test_where_the_error_is_not_known_steps_are_full(codec: str) -> None:
    whole, plain = FedMPDD(codec=codec, seed=1), FedMPDD(codec=codec, seed=1, lr=1.0)
    assert np.array_equal(flat_of(run(whole, 3).arrays), flat_of(run(plain, 3).arrays))


# ------------------------------------------------------------------------------------- the local engine's bits


@pytest.mark.parametrize(
    "codec", ["mpdd:m=50:keys=partitioned", "mpdd:m=50:bits=1:family=hadamard:keys=partitioned", "fedsgd"]
)
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_the_same_seeds_and_clients_give_the_local_engines_bits(codec: str, optimiser: str) -> None:
    name, *parameters = codec.split(":")
    values: dict[str, Any] = {"model": "logistic", "clients": 5, "batch": 4, "lr": 0.05, "rounds": 4, "device": "cpu"}
    own = dict(parameter.split("=") for parameter in parameters)
    typed = {key: int(value) if value.isdigit() else value for key, value in own.items()}
    config = parse_config({**values, "server": {"optimiser": optimiser}, "codec": {"name": name, **typed}})
    local = federation_of(config, images())
    start = local.flat.clone()
    for _ in range(3):
        local.run_round()

    federation = federation_of(config, images())
    strategy = FedMPDD(
        codec=codec,
        returns="gradient",
        lr=config.lr,
        server=config.server,
        weighting="equal",
        robust=False,
        seed=int(np.random.default_rng([config.seed, sampling._KEYS]).integers(2**63)),
        fraction_evaluate=0.0,
    )
    arrays = ArrayRecord({"flat-model": Array(start.numpy())})
    result = strategy.start(InProcessGrid(_engine_app(federation), 5), arrays, num_rounds=3)
    assert torch.equal(torch.from_numpy(flat_of(result.arrays)), local.flat)


def _engine_app(federation: Federation) -> ClientApp:
    """A client whose gradients are those of the local engine."""
    app = ClientApp()

    @app.train(mods=[fedmpdd_mod])
    def train(message: Message, context: Context) -> Message:
        k = round_of(message) - 1
        flat = torch.from_numpy(message.content.array_records["arrays"]["flat-model"].numpy().copy())
        examples = [federation.partition.examples_of(client) for client in range(5)]
        batches = sampling.sample_batches(federation.config, k, np.arange(len(examples)), examples)
        gradients = federation._client_step(flat, Work(k, np.arange(len(examples)), batches)).rows
        record = ArrayRecord({"flat-model": Array(gradients[int(context.node_config["node"])].numpy())})
        return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


# ------------------------------------------------------------------------------------------------ bad replies


def changed(reply: Message, **values: Any) -> list[Message]:
    reply.content = RecordDict({"fedmpdd": ConfigRecord({**reply.content.config_records["fedmpdd"], **values})})
    return [reply]


def frame_of(reply: Message) -> bytes:
    frame = reply.content.config_records["fedmpdd"]["update"]
    assert isinstance(frame, bytes)
    return frame


def with_scale(reply: Message, value: float) -> bytes:
    """The frame with another scale and the checksum that belongs to it, as a liar would make it."""
    from fedmpdd.codecs import MPDD, Update
    from fedmpdd.wire.frames import Session

    session = Session(MPDD(40, bits=1), D, sends_seed=True)
    update = session.unpack(frame_of(reply))
    _, signs = update.arrays
    return session.pack(Update(update.codec, D, update.key, (np.array([value], "<f4"), signs)))


def other_d(reply: Message) -> bytes:
    from fedmpdd.codecs import MPDD
    from fedmpdd.directions import Key
    from fedmpdd.wire.frames import Session

    codec = MPDD(40, bits=1)
    return Session(codec, 61, sends_seed=True).pack(codec.encode(np.ones((1, 61), np.float32), [Key(1)])[0])


BAD: dict[str, tuple[Any, str]] = {
    "another round": (lambda reply: changed(reply, round=7), "for round 7, this is 1"),
    "another d": (lambda reply: changed(reply, update=other_d(reply)), "session tag"),
    "damaged": (lambda reply: changed(reply, update=frame_of(reply)[:-3] + b"abc"), "checksum"),
    "short": (lambda reply: changed(reply, update=b"12"), "2 bytes came"),
    "long": (lambda reply: changed(reply, update=frame_of(reply) + bytes(10**6)), "the frame has"),
    "another version": (lambda reply: changed(reply, update=b"\xf9" + frame_of(reply)[1:]), "version 9"),
    "NaN": (lambda reply: changed(reply, update=with_scale(reply, float("nan"))), "nan"),
    "huge": (lambda reply: changed(reply, update=with_scale(reply, 1e30)), "above max_value"),
    "large": (lambda reply: changed(reply, update=with_scale(reply, 1e5)), "times larger than the median"),
    "no bytes": (lambda reply: changed(reply, update="text"), "is str, expected bytes"),
    "too many examples": (lambda reply: changed(reply, **{"num-examples": 10**300}), "expected a number above 0"),
    "many examples": (lambda reply: changed(reply, **{"num-examples": 10**9}), "times more examples than the median"),
    "no examples": (lambda reply: changed(reply, **{"num-examples": 0}), "expected a number above 0"),
    "no mod": (lambda reply: _without_mod(reply), "does its app use fedmpdd_mod?"),
}


def _without_mod(reply: Message) -> list[Message]:
    reply.content = RecordDict({"arrays": initial(), "metrics": MetricRecord({"num-examples": 1})})
    return [reply]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_update_is_dropped_and_told(kind: str, lines: list[str]) -> None:
    make, reason = BAD[kind]

    def between(node: int, message: Message, reply: Message) -> list[Message]:
        return list(make(reply)) if node == 2 else [reply]

    strategy = FedMPDD(codec="mpdd:m=40:bits=1", fraction_evaluate=0.0)
    result = run(strategy, 1, between=between)
    told = [line for line in lines if "dropped the update of node 2" in line]
    assert len(told) == 1
    assert reason in told[0]
    assert result.train_metrics_clientapp[1]["fedmpdd-contributors"] == 3
    assert result.train_metrics_clientapp[1]["fedmpdd-dropped"] == 1
    assert np.abs(flat_of(result.arrays)).max() < 20


def test_metrics_that_do_not_fit_cost_no_round(lines: list[str]) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        if message.metadata.message_type == "train":
            return changed(reply, loss="abc") if node == 1 else [reply]
        if node == 1:
            reply.content = RecordDict({"metrics": MetricRecord({"num-examples": 1, "other": 1.0})})
        return [reply]

    result = run(FedMPDD(codec="fedsgd"), 2, between=between)
    assert result.train_metrics_clientapp[2]["fedmpdd-contributors"] == 4
    assert result.evaluate_metrics_clientapp == {}
    assert sum("metrics could not be aggregated" in line for line in lines) == 4


def test_who_answers_twice_counts_once(lines: list[str]) -> None:
    result = run(
        FedMPDD(codec="fedsgd", fraction_evaluate=0.0), 1, between=lambda node, _, reply: [reply] * (1 + (node == 1))
    )
    assert result.train_metrics_clientapp[1]["fedmpdd-contributors"] == 4
    assert sum("node 1: it answered already" in line for line in lines) == 1


def test_who_was_not_asked_does_not_count(lines: list[str]) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        stranger = Message(reply.content, reply_to=message)
        stranger.metadata.__dict__["_src_node_id"] = 99
        return [reply, stranger] if node == 0 else [reply]

    result = run(FedMPDD(codec="fedsgd", fraction_evaluate=0.0), 1, between=between)
    assert result.train_metrics_clientapp[1]["fedmpdd-contributors"] == 4
    assert any("node 99: it was not asked" in line for line in lines)


def test_the_round_goes_on_with_who_answers(lines: list[str]) -> None:
    result = run(FedMPDD(codec="fedsgd", fraction_evaluate=0.0), 1, between=lambda node, _, reply: [reply] * (node < 2))
    assert result.train_metrics_clientapp[1]["fedmpdd-contributors"] == 2
    assert any("2 of 4 nodes contributed" in line for line in lines)


def test_a_round_without_answers_leaves_the_model() -> None:
    result = run(FedMPDD(codec="fedsgd", fraction_evaluate=0.0), 2, between=lambda node, _, reply: [])
    assert result.train_metrics_clientapp == {}


def test_a_liar_alone_is_found_by_the_rounds_before(lines: list[str]) -> None:
    def between(node: int, message: Message, reply: Message) -> list[Message]:
        late = round_of(message) == 3
        return changed(reply, update=with_scale(reply, 1e5)) if late else [reply]

    strategy = FedMPDD(codec="mpdd:m=40:bits=1", fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    run(strategy, 3, nodes=1, between=between)
    assert any("times larger than the median" in line for line in lines)


def test_a_client_that_diverged_says_so(lines: list[str]) -> None:
    run(FedMPDD(codec="mpdd:m=40", fraction_evaluate=0.0), 1, steps=float("inf"))
    assert any("not finite: lower the learning rate" in line for line in lines)


# ------------------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_server_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path, optimiser: str) -> None:
    options: dict[str, Any] = {"codec": "mpdd:m=40:keys=partitioned", "seed": 3, "lr": 0.3}
    options["server"] = StepRule(optimiser=optimiser)
    whole = run(FedMPDD(**options), 6)
    file = tmp_path / "server" / "checkpoint.safetensors"
    run(FedMPDD(**options, checkpoint=file), 4)
    second = run(FedMPDD(**options, checkpoint=file), 6)
    assert np.array_equal(flat_of(second.arrays), flat_of(whole.arrays))
    assert second.evaluate_metrics_clientapp[2]["round"] == 6  # Flower counts the rounds of this start
    assert np.array_equal(flat_of(run(FedMPDD(**options, checkpoint=file), 6).arrays), flat_of(whole.arrays))


def test_a_careful_server_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    options: dict[str, Any] = {"codec": "mpdd:m=2:keys=shared", "seed": 3, "fraction_evaluate": 0.0}
    whole = run(FedMPDD(**options), 6, steps=1.0)
    file = tmp_path / "checkpoint.safetensors"
    run(FedMPDD(**options, checkpoint=file), 3, steps=1.0)
    second = run(FedMPDD(**options, checkpoint=file), 6, steps=1.0)
    assert np.array_equal(flat_of(second.arrays), flat_of(whole.arrays))


def test_a_checkpoint_that_says_nothing_of_steps_is_read(tmp_path: Path, lines: list[str]) -> None:
    """As those of versions without `caution`, and those of a server whose user named a step size."""
    file = tmp_path / "checkpoint.safetensors"
    run(FedMPDD(codec="mpdd:m=2", fraction_evaluate=0.0, checkpoint=file), 3, steps=1.0)
    start = ParameterLayout.of(initial())
    write_checkpoint(file, replace(read_checkpoint(file, start, ()), estimate=None, caution=None), start)
    run(FedMPDD(codec="mpdd:m=2", fraction_evaluate=0.0, checkpoint=file), 4, steps=1.0)
    assert any("round 4:" in line and "the server takes 1 of the step" in line for line in lines)


def test_a_checkpoint_with_impossible_steps_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    run(FedMPDD(codec="mpdd:m=2", fraction_evaluate=0.0, checkpoint=file), 1)
    start = ParameterLayout.of(initial())
    saved = read_checkpoint(file, start, ())
    write_checkpoint(file, replace(saved, caution={"steps": -1}), start)
    with pytest.raises(RunError, match="a sum of steps or an error"):
        run(FedMPDD(codec="mpdd:m=2", fraction_evaluate=0.0, checkpoint=file), 2)


def test_the_one_number_of_an_old_checkpoint_drops_nobody(tmp_path: Path) -> None:
    """It was a root mean square, which is √d times smaller than the length of a gradient of d coordinates."""
    file = tmp_path / "checkpoint.safetensors"
    run(FedMPDD(codec="fedsgd", fraction_evaluate=0.0, checkpoint=file), 1)
    start = ParameterLayout.of(initial())
    kept = read_checkpoint(file, start, ())
    assert kept.reference is not None
    write_checkpoint(file, replace(kept, usual=kept.reference["largest"] / 2_000, reference=None), start)
    result = run(FedMPDD(codec="fedsgd", fraction_evaluate=0.0, checkpoint=file), 2)
    assert result.train_metrics_clientapp[1]["fedmpdd-dropped"] == 0


def test_a_checkpoint_of_another_server_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    run(FedMPDD(codec="fedsgd", checkpoint=file), 1)
    with pytest.raises(RunError, match="another model or optimiser"):
        run(FedMPDD(codec="fedsgd", checkpoint=file, server=StepRule(optimiser="adam")), 2)
    file.write_bytes(b"damaged")
    with pytest.raises(RunError, match="cannot be read"):
        run(FedMPDD(codec="fedsgd", checkpoint=file), 2)


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"codec": "magic"}, "unknown"),
        ({"codec": "mpdd:m=0"}, "m = 0"),
        ({"codec": "decomfl:m=3:keys=shared"}, "sends losses"),
        ({"codec": "fedkseed:m=3"}, "sends losses"),
        ({"codec": "feedsign:keys=shared"}, "sends losses"),
        ({"codec": "mpdd:m=4:keys=derived"}, "derived"),
        ({"returns": "gradient"}, "needs lr"),
        ({"returns": "loss"}, 'expected "model" or "gradient"'),
        ({"weighting": "fair"}, 'expected "examples" or "equal"'),
        ({"lr": -1.0}, "above 0"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        FedMPDD(**options)


def test_a_codec_that_does_not_fit_is_refused_before_the_first_round() -> None:
    with pytest.raises(InputError, match="k = 100"):
        run(FedMPDD(codec="topk:k=100"), 1)
