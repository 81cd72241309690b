"""examples/flower-llm in one process: it learns, to the bits of the local engine, and only adapters cross the grid."""

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("peft", reason="the extra `llm` is not installed")

from safetensors import safe_open
from safetensors.torch import save_file

from fedmpdd.errors import DataError
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


def run(place: Path, config: dict[str, Any], nodes: int = NODES, **of_node_1: Any) -> tuple[list[Any], list[Any]]:
    """Run the app; return how many bytes went down, by round and node, and the replies."""
    sent: list[list[int]] = []
    replies: list[Any] = []

    class Watched(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            sent.append([nbytes(message.content) for message in messages])
            came = list(super().send_and_receive(messages, timeout=timeout))
            replies.extend(came)
            return came

    grid = Watched(llm.app_module("client_app").app, nodes)
    for node, context in grid.contexts.items():
        context.run_config.update(config)
        context.node_config.update({"partition-id": node, "train": str(place / f"films-{node}.csv")})
    grid.contexts[1].node_config.update(of_node_1)
    llm.app_module("server_app").main(grid, grid.contexts[0])
    return [row for row in sent if row], replies


def nbytes(content: Any) -> int:
    """Bytes of the numbers of arrays, and of what is bytes beside them."""
    shapes = [tuple(array.shape) for record in content.array_records.values() for array in record.values()]
    values = [value for record in content.config_records.values() for value in record.values()]
    return 4 * sum(map(math.prod, shapes)) + sum(len(value) for value in values if isinstance(value, bytes))


@pytest.mark.parametrize("downlink", ["replay", "model"])
def test_it_learns_to_the_bits_of_the_local_engine(place: Path, downlink: str, tmp_path: Path) -> None:
    """And nothing crosses but adapters, 896 numbers here, and updates."""
    config = settings(place, codec="peaks:m=24:group=32:keys=partitioned", downlink=downlink)
    sent, replies = run(place, config)
    files = [place / f"films-{node}.csv" for node in range(NODES)]
    history, adapter = llm.trained_here(config, files, place / "dev.csv", tmp_path)
    assert (place / "adapter" / "adapter_model.safetensors").read_bytes() == adapter
    losses = [row.loss_of_test for row in history.evaluations]
    assert losses[-1] < losses[0] - 0.1  # type: ignore[operator]
    frame = 4 + 1 + 24 * 6 // 8 + 4
    assert [nbytes(reply.content) for reply in replies] == [frame] * 12 * NODES
    if downlink == "model":
        assert sent == [[4 * 896] * NODES] * 12
    else:  # the adapters with Adam's vectors once, then the updates of the round before
        assert sent[0] == [3 * 4 * 896] * NODES
        assert max(map(max, sent[1:])) < 4 * (frame + 16)


def test_flowers_own_strategy_sends_whole_adapters(place: Path) -> None:
    config = settings(place, strategy="fedavg", **{"local-steps": 2, "local-lr": 0.5})
    sent, replies = run(place, {**config, "num-server-rounds": 3}, 2)
    assert sent == [[4 * 896] * 2] * 3
    assert [nbytes(reply.content) for reply in replies] == [4 * 896] * 6
    losses = [reply.content.metric_records["metrics"]["train-loss"] for reply in replies]
    assert losses[-1] < losses[0]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_the_adapter_is_one_of_peft(place: Path) -> None:
    import peft

    run(place, settings(place, codec="peaks:m=7:group=32") | {"num-server-rounds": 1}, 2)
    base = load_pretrained(place / "model", layers=2).model
    model = peft.PeftModel.from_pretrained(base, str(place / "adapter"))
    (change,) = {bool(value.any()) for name, value in model.named_parameters() if "lora_B" in name}
    assert change


def test_a_node_with_another_base_says_so_and_does_not_count(place: Path, tmp_path: Path) -> None:
    other = llm.save_model(tmp_path / "other", rms_norm_eps=1e-3)
    with safe_open(other / "model.safetensors", "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    state["model.layers.0.mlp.up_proj.weight"][0, 0] += 1
    save_file(state, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"the base model here has SHA-256 .*, and the server's has .*; install the"):
        run(place, settings(place, codec="peaks:m=7:group=32"), 2, model=str(other))


def test_a_head_is_trained_where_no_words_are_given(place: Path) -> None:
    task = llm.app_module("task")
    classifier = task.Classifier(settings(place, words=""), str(place / "model"))
    assert classifier.adapters()["model.base_model.model.score.modules_to_save.default.weight"].shape == (2, 32)


def test_another_strategy_is_refused(place: Path) -> None:
    with pytest.raises(ValueError, match=r"strategy = 'fedadam': expected \"fedmpdd\" or \"fedavg\""):
        run(place, settings(place, strategy="fedadam"), 2)
