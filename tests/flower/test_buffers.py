"""Arrays that no update carries: frozen ones, counters, statistics of batch norm."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmpdd.errors import ConfigError, InputError, OrderError
from fedmpdd.flower import ClientPolicy, FedMPDD, RobustMean, SecureRounds, fedmpdd_mod, make_mod
from fedmpdd.flower.buffers import BufferLayout
from fedmpdd.flower.instructions import RoundInstructions
from fedmpdd.flower.layout import ParameterLayout
from tests.flower.grid import InProcessGrid
from tests.flower.test_strategy import lines

__all__ = ["lines"]

CODEC = "mpdd:m=6:bits=1:family=hadamard"
OPTIONS: dict[str, Any] = {"codec": CODEC, "lr": 0.1, "seed": 3, "frozen": ("embed.*",), "fraction_evaluate": 1.0}


def model() -> dict[str, Any]:
    """Arrays as PyTorch's state_dict has them: trained, frozen and counted ones, in turns."""
    return {
        "embed.weight": np.full((3, 2), 0.5, np.float32),
        "weight": np.zeros((4, 3), np.float32),
        "bn.running_mean": np.zeros(4, np.float32),
        "bn.running_var": np.ones(4, np.float32),
        "bn.num_batches_tracked": np.array(0, np.int64),
        "bias": np.zeros(4, np.float32),
        "positions": np.arange(3),
    }


def initial() -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in model().items()})


def app(seen: list[dict[str, Any]], mod: Any = fedmpdd_mod, *, broken: Any = None) -> ClientApp:
    """Nodes that move the trained arrays and whose batches have the node's number as mean."""
    made = ClientApp()

    @made.train(mods=[mod])
    def train(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
        node = int(context.node_config["node"])
        seen.append({"node": node, "keys": list(message.content.config_records["config"]), **arrays})
        arrays["weight"] = arrays["weight"] * 0.5 + 1
        arrays["bias"] = arrays["bias"] * 0.5 - 1
        arrays["bn.running_mean"] = arrays["bn.running_mean"] * 0 + node
        arrays["bn.running_var"] = arrays["bn.running_var"] * 0 + node + 1 if broken is None else broken
        arrays["bn.num_batches_tracked"] = arrays["bn.num_batches_tracked"] + 1
        record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @made.evaluate(mods=[mod])
    def evaluate(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        mean = float(arrays["bn.running_mean"].numpy()[0])
        metrics = MetricRecord({"num-examples": 1, "off": abs(mean - int(context.node_config["node"]))})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return made


def trained(strategy: FedMPDD, rounds: int = 3, nodes: int = 3, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    result = strategy.start(InProcessGrid(app(seen, **options), nodes), initial(), num_rounds=rounds)
    return result, seen


@pytest.mark.parametrize("downlink", ["model", "replay"])
@pytest.mark.parametrize("choice", ["averaged", "local"])
def test_what_is_not_trained_stays_and_the_order_of_arrays_too(choice: Any, downlink: Any) -> None:
    result, seen = trained(FedMPDD(**OPTIONS, batch_norm=choice, downlink=downlink))
    for arrays in (*seen, {name: array.numpy() for name, array in result.arrays.items()}):
        assert [name for name in arrays if name not in ("node", "keys")] == list(model())
        for name in ("embed.weight", "positions"):
            assert (arrays[name] == model()[name]).all()
            assert arrays[name].dtype == model()[name].dtype
        assert arrays["bn.num_batches_tracked"].shape == ()
    assert all(not any(key.startswith("fedmpdd") for key in entry["keys"]) for entry in seen)
    assert (result.arrays["weight"].numpy() != 0).all()


def test_local_statistics_stay_on_the_node_and_come_back_to_it() -> None:
    result, seen = trained(FedMPDD(**OPTIONS, batch_norm="local", downlink="replay"))
    later = [entry for entry in seen if entry["bn.num_batches_tracked"] > 0]
    assert len(later) == 6
    assert all((entry["bn.running_mean"] == entry["node"]).all() for entry in later)
    assert (result.arrays["bn.running_mean"].numpy() == 0).all()
    assert result.evaluate_metrics_clientapp[3]["off"] == 0
    assert trained(FedMPDD(**OPTIONS, batch_norm="averaged"))[0].evaluate_metrics_clientapp[3]["off"] > 0


@pytest.mark.parametrize(("robust", "nodes", "mean"), [(False, 3, 1.0), (False, 4, 1.5), (True, 3, 1.0)])
@pytest.mark.parametrize("downlink", ["model", "replay"])
def test_averaged_statistics_reach_the_server_and_their_bytes_count(
    robust: bool, nodes: int, mean: float, downlink: Any
) -> None:
    averaged = FedMPDD(**OPTIONS, batch_norm="averaged", robust=robust, downlink=downlink)
    result, seen = trained(averaged, nodes=nodes)
    np.testing.assert_array_equal(result.arrays["bn.running_mean"].numpy(), np.full(4, mean, np.float32))
    np.testing.assert_array_equal(result.arrays["bn.running_var"].numpy(), np.full(4, mean + 1, np.float32))
    assert all((entry["bn.running_mean"] == mean).all() for entry in seen[nodes:])
    alone, _ = trained(FedMPDD(**OPTIONS, batch_norm="local", robust=robust, downlink=downlink), nodes=nodes)
    sizes = [one.train_metrics_clientapp[1]["fedmpdd-update-bytes"] for one in (result, alone)]
    assert sizes[0] - sizes[1] == nodes * 4 * 8


def test_a_lying_node_does_not_move_averaged_statistics_far() -> None:
    def lie(node: int, message: Message, reply: Message) -> list[Message]:
        record = reply.content.config_records.get("fedmpdd")
        if node == 2 and record is not None and "fedmpdd.statistics" in record:
            record["fedmpdd.statistics"] = np.full(8, 1e30, "<f4").tobytes()
        return [reply]

    strategy = FedMPDD(**OPTIONS, batch_norm="averaged", robust=RobustMean())
    result = strategy.start(InProcessGrid(app([]), 5, lie), initial(), num_rounds=2)
    assert 0 <= result.arrays["bn.running_mean"].numpy().max() <= 4


@pytest.mark.parametrize(
    "value", [np.full(4, -1.0, np.float32), np.full(4, np.nan, np.float32)], ids=["below 0", "NaN"]
)
def test_statistics_that_none_has_are_dropped(value: Any, lines: list[str]) -> None:
    result, _ = trained(FedMPDD(**OPTIONS, batch_norm="averaged"), 1, broken=value)
    assert any("running_var that is not finite, or below 0" in line for line in lines)
    assert not result.arrays  # no round came to anything


def test_a_server_goes_on_with_its_statistics(tmp_path: Path) -> None:
    options = {**OPTIONS, "batch_norm": "averaged", "checkpoint": tmp_path / "model.safetensors"}
    trained(FedMPDD(**options), 2)
    result, seen = trained(FedMPDD(**options), 3)
    assert len(seen) == 3
    assert all((entry["bn.running_mean"] == 1).all() for entry in seen)
    assert (result.arrays["bn.running_mean"].numpy() == 1).all()


def test_somebody_has_to_choose() -> None:
    with pytest.raises(InputError, match=r"'bn.running_mean' .* statistic of batch norm.*batch_norm=\"averaged\""):
        trained(FedMPDD(**OPTIONS))
    with pytest.raises(InputError, match=r"frozen has 'head\.\*', and no array .* embed.weight, weight"):
        trained(FedMPDD(**{**OPTIONS, "frozen": ("head.*",)}, batch_norm="local"))
    with pytest.raises(InputError, match="no array of the model is trained"):
        trained(FedMPDD(**{**OPTIONS, "frozen": ("*",)}, batch_norm="local"))
    for wrong in ({"batch_norm": "global"}, {"frozen": "embed.weight"}):
        with pytest.raises(ConfigError, match=r"expected a tuple of names"):
            FedMPDD(**{**OPTIONS, **wrong})


def test_statistics_are_no_way_around_protection(lines: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"which a secure sum would not; use batch_norm = \"local\""):
        FedMPDD(
            codec="mpdd:m=6:keys=shared",
            secure=SecureRounds(clip=1.0),
            weighting="equal",
            robust=False,
            batch_norm="averaged",
        )
    policy = make_mod(ClientPolicy(largest_clip=2.0))
    protected = {**OPTIONS, "codec": "mpdd:m=6:clip=1.0", "fraction_evaluate": 0.0}
    trained(FedMPDD(**protected, batch_norm="averaged"), 1, mod=policy)
    assert any("sent beside the update, without noise" in line for line in lines)
    result, _ = trained(FedMPDD(**protected, batch_norm="local"), 1, mod=policy)
    assert (result.arrays["weight"].numpy() != 0).any()


def test_arrays_that_nobody_changes_are_named(lines: list[str]) -> None:
    trained(FedMPDD(**{**OPTIONS, "frozen": ()}, batch_norm="local"), 1)
    assert not any("came back" in line for line in lines)  # the first matrices of adapters have no gradient there
    trained(FedMPDD(**{**OPTIONS, "frozen": ()}, batch_norm="local"), 3)
    told = [line for line in lines if "came back from all nodes as they were sent" in line]
    assert len(told) == 1
    assert "frozen=('embed.weight',)" in told[0]


LAYOUT = ParameterLayout.of(initial(), ("embed.*",), "averaged")


def test_layouts_with_buffers_travel() -> None:
    order = RoundInstructions(1, {"name": "fedsgd"}, LAYOUT, "model")
    assert RoundInstructions.from_text(order.as_text()) == order
    assert LAYOUT.names == ("weight", "bias")
    assert LAYOUT.d == 16


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"names": ["weight"] * 5}, "one comes twice"),
        ({"names": ["a", "b"]}, "not one name, shape, type and place each"),
        ({"shapes": [[2**40], [2], [2], [], [3]]}, "more than 2\\^40"),
        ({"shapes": [[-1], [2], [2], [], [3]]}, "expected integers"),
        ({"dtypes": ["object"] * 5}, "has a type that is none of"),
        ({"places": [0, 2, 3, 4, 7]}, "not among its arrays"),
        ({"places": [0, 2, 2, 4, 6]}, "not in order"),
        ({"batch_norm": "global"}, "batch_norm = 'global'"),
    ],
)
def test_layouts_of_buffers_that_no_model_has(changes: dict[str, Any], problem: str) -> None:
    values = json.loads(RoundInstructions(1, {"name": "fedsgd"}, LAYOUT, "model").as_text())
    values["layout"]["buffers"] |= changes
    with pytest.raises(OrderError, match=problem):
        RoundInstructions.from_text(json.dumps(values))


def test_buffers_that_came_in_part() -> None:
    buffers: BufferLayout = LAYOUT.buffers
    data = buffers.pack({name: model()[name] for name in buffers.names})
    back = buffers.unpack(data)
    assert all((back[name] == model()[name]).all() for name in buffers.names)
    for wrong in (data[:-1], data + b"\0", None, 3):
        with pytest.raises(InputError, match="the model's buffers came as"):
            buffers.unpack(wrong)
        with pytest.raises(InputError, match="statistics of batch norm came as"):
            buffers.read_statistics(wrong)
