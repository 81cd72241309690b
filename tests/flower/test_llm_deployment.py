"""examples/flower-llm over SuperLink and SuperNodes: it learns to the local engine's bits; bytes on the socket."""

import importlib.metadata
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("peft", reason="the extra `llm` is not installed")
if os.name != "posix":
    pytest.skip("process groups are needed", allow_module_level=True)

from fedmpdd.flower.socket_counter import SocketCounter
from fedmpdd.tasks.pretrained import PACKAGES
from tests.flower import llm
from tests.flower.deployment import Deployment, Run, deployment, free_port
from tests.flower.test_bytes import metered

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m"
ROUNDS = 4
D = 896  # of adapters in two blocks of the tiny model


class Place(NamedTuple):
    """A deployment with a counter, and the folder of its model and films."""

    folder: Path
    deployment: Deployment
    counter: SocketCounter


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("llm")
    llm.save_model(folder / "model")
    llm.write_films(folder / "dev.csv", 60, 99)
    counter, ports = SocketCounter(), [free_port(), free_port()]
    (folder / "deployment").mkdir()
    with deployment(folder / "deployment", nodes=0, secure=False) as one, metered(counter, ports, one.port):
        for node, port in enumerate(ports):
            films = llm.write_films(folder / f"films-{node}.csv", 40 + node, node)
            one.add_node(f'partition-id={node} num-partitions=2 train="{films}"', through=port)
        yield Place(folder, one, counter)


def settings(place: Place, **changes: Any) -> dict[str, Any]:
    usual = {
        "model": str(place.folder / "model"),
        "blocks": 2,
        "length": 24,
        "dev": str(place.folder / "dev.csv"),
        "dev-sentences": 0,
        "codec": "peaks:m=14:group=32:keys=shared",  # so that it does not matter which node has the lower number
        "num-server-rounds": ROUNDS,
        "evaluate-every": 1,
        "lr": 0.02,
        "robust": False,
        "adapter": str(place.folder / "adapter"),
    }
    return llm.app_config(**{**usual, **changes})


def run(place: Place, config: dict[str, Any], timeout: float = 900) -> tuple[Run, list[dict[str, Any]]]:
    """Run the app, and return what each message and each reply took on the socket, with the round of each."""
    place.counter.requests.clear()
    words = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
    result = place.deployment.run(llm.APP, words, timeout=timeout)
    assert result.status == "finished:completed", result.log
    down = [{"round": row["message"], "client": row["client"], "down": row["down"]} for row in place.counter.messages()]
    for row, reply in zip(down, place.counter.replies(), strict=True):
        assert (row["client"], row["round"]) == (reply["client"], reply["reply"])
        row["up"] = reply["up"]
    return result, down


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def show(name: str, rows: list[dict[str, Any]]) -> None:
    for number in sorted({row["round"] for row in rows}):
        some = [row for row in rows if row["round"] == number]
        up, down = (sum(row[way] for row in some) / len(some) for way in ("up", "down"))
        print(f"{name}, round {number}: {up:,.0f} bytes up and {down:,.0f} down, per node")


def losses_of(log: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"round \d+: accuracy [\d.]+ %, loss ([\d.]+)", log)]


def test_it_learns_to_the_bits_of_the_local_engine_and_only_adapters_cross(place: Place, tmp_path: Path) -> None:
    config = settings(place)
    result, rows = run(place, config)
    show("tiny, peaks", rows)
    history, adapter = llm.trained_here(
        config, [place.folder / f"films-{node}.csv" for node in range(2)], place.folder / "dev.csv", tmp_path
    )
    assert (place.folder / "adapter" / "adapter_model.safetensors").read_bytes() == adapter
    losses = losses_of(result.log)
    assert len(losses) == 1 + ROUNDS
    assert losses[-1] < losses[0]
    assert losses[1:] == [pytest.approx(row.loss_of_test, abs=1e-4) for row in history.evaluations]
    base = (place.folder / "model" / "model.safetensors").stat().st_size
    assert sum(row["up"] + row["down"] for row in rows if row["client"] == rows[0]["client"]) < base
    assert max(row["up"] for row in rows) < 6_000
    assert max(row["down"] for row in rows if row["round"] > 1) < 3_000


def test_whole_adapters_cross_with_flowers_own_strategy(place: Place) -> None:
    config = {"strategy": "fedavg", "num-server-rounds": 2, "local-steps": 2, "local-lr": 0.5}
    result, rows = run(place, settings(place, **config))
    show("tiny, FedAvg", rows)
    losses = losses_of(result.log)
    assert losses[-1] < losses[0]
    assert min(min(row["up"], row["down"]) for row in rows) > 4 * D


def missing() -> str | None:
    """Return why the pretrained model cannot be trained on SST-2 here."""
    if not any(True for _ in importlib.metadata.distributions(name=PACKAGES[MODEL].name)):
        return f"the package {PACKAGES[MODEL].name} is not installed: make pretrained"
    if not (Path(os.environ.get("FEDMPDD_DATA", "data")) / "sst2" / "train.csv").is_file():
        return "FEDMPDD_DATA has no folder sst2"
    return None


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_bytes_of_adapters_of_a_pretrained_model(tmp_path: Path) -> None:
    """As the app is: adapters in the first eight blocks, d = 61,440; three rounds of each strategy."""
    counter, ports = SocketCounter(), [free_port(), free_port()]
    with deployment(tmp_path, nodes=0, secure=False) as one, metered(counter, ports, one.port):
        for node, port in enumerate(ports):
            one.add_node(f"partition-id={node} num-partitions=2", through=port)
        place, per_node = Place(tmp_path, one, counter), {}
        for strategy in ("fedmpdd", "fedavg"):
            config = llm.app_config(**{"strategy": strategy, "num-server-rounds": 3, "local-steps": 1})
            per_node[strategy] = run(place, config, timeout=3_000)[1]
            show(f"{MODEL}, 8 blocks, {strategy}", per_node[strategy])
    d = 61_440
    # In the first round half of the matrices are zero, and Flower sends equal arrays once.
    assert min(min(row["up"], row["down"]) for row in per_node["fedavg"] if row["round"] > 1) > 4 * d
    assert max(row["up"] for row in per_node["fedmpdd"]) < 4 * d / 40
    assert max(row["down"] for row in per_node["fedmpdd"] if row["round"] > 1) < 4 * d / 80
