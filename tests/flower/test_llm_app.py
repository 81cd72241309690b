"""examples/flower-llm in one process: it learns, to the bits of the local engine, and only adapters cross the grid."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("peft", reason="the extra `llm` is not installed")

from fedmpdd.tasks.pretrained import load_pretrained
from tests.flower import llm
from tests.flower.grid import InProcessGrid

NODES = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, films of each node, and films to test on."""
    folder = tmp_path_factory.mktemp("llm")
    llm.save_model(folder / "model")
    for node in range(NODES):
        llm.write_films(folder / f"films-{node}.csv", 40 + node, node)
    llm.write_films(folder / "dev.csv", 60, 99)
    return folder


def settings(place: Path, **changes: Any) -> dict[str, Any]:
    usual = {
        "model": str(place / "model"),
        "blocks": 2,
        "length": 24,
        "dev": str(place / "dev.csv"),
        "dev-sentences": 0,
        "num-server-rounds": 12,
        "evaluate-every": 4,
        "lr": 0.02,
        "robust": False,
        "adapter": str(place / "adapter"),
    }
    return llm.app_config(**usual, **changes)


def run(place: Path, config: dict[str, Any], **of_node_1: Any) -> tuple[InProcessGrid, list[list[Any]], list[Any]]:
    """Run the app; what went down, by round and node, and what came back."""
    sent: list[list[Any]] = []
    replies: list[Any] = []

    class Watched(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            sent.append([message.content for message in messages])
            came = list(super().send_and_receive(messages, timeout=timeout))
            replies.extend(came)
            return came

    grid = Watched(llm.app_module("client_app").app, NODES)
    for node, context in grid.contexts.items():
        context.run_config.update(config)
        context.node_config.update({"partition-id": node, "train": str(place / f"films-{node}.csv")})
    grid.contexts[1].node_config.update(of_node_1)
    llm.app_module("server_app").main(grid, grid.contexts[0])
    return grid, sent, replies


def nbytes(content: Any) -> int:
    """Bytes of arrays, and of what is bytes beside them."""
    arrays = sum(array.data.__len__() for record in content.array_records.values() for array in record.values())
    values = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(value) for value in values if isinstance(value, bytes))


@pytest.mark.parametrize("downlink", ["replay", "model"])
def test_it_learns_to_the_bits_of_the_local_engine(place: Path, downlink: str, tmp_path: Path) -> None:
    config = settings(place, codec="peaks:m=24:group=32:keys=partitioned", downlink=downlink)
    _, sent, replies = run(place, config)
    files = [place / f"films-{node}.csv" for node in range(NODES)]
    history, adapter = llm.trained_here(config, files, place / "dev.csv", tmp_path)
    assert (place / "adapter" / "adapter_model.safetensors").read_bytes() == adapter
    losses = [row.loss_of_test for row in history.evaluations]
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert len(replies) == 12 * NODES
    print([nbytes(reply.content) for reply in replies][:3], [[nbytes(c) for c in row] for row in sent][:3], losses)
