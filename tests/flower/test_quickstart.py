"""An app in the shape of Flower's own quickstart, before and after the three lines of the README."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from tests.flower.grid import InProcessGrid

ROOT = Path(__file__).parent.parent.parent

SERVER = """
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fraction_evaluate: float = context.run_config["fraction-evaluate"]
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]

    torch.manual_seed(0)
    arrays = ArrayRecord(torch.nn.Linear(300, 2).state_dict())

    strategy = FedAvg(fraction_evaluate=fraction_evaluate)
    global result
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
"""

CLIENT = """
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = torch.nn.Linear(300, 2)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
    generator = torch.Generator().manual_seed(int(context.node_config["node"]))
    inputs = torch.randn(200, 300, generator=generator)
    labels = (inputs[:, :30].sum(1) > 0).long()
    for _ in range(5):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimiser.step()

    model_record = ArrayRecord(model.state_dict())
    metrics = {"train_loss": loss.item(), "num-examples": len(labels)}
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = torch.nn.Linear(300, 2)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    inputs = torch.randn(200, 300)
    accuracy = ((model(inputs)[:, 1] > model(inputs)[:, 0]) == (inputs[:, :30].sum(1) > 0)).float().mean().item()
    metrics = {"eval_acc": accuracy, "num-examples": 200}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
"""


def changes() -> dict[str, list[tuple[str, str]]]:
    """The README's diff: per file, lines to find and what they become."""
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    result: dict[str, list[tuple[str, str]]] = {}
    file, before, removed = "", "", False
    for line in diff.splitlines():
        mark, text = line[0], line[1:]
        if text.startswith("# "):
            file = text[2:]
            result[file] = []
        elif mark == "+":
            replaced = text if removed else f"{before}\n{text}"
            result[file].append((before, replaced))
        removed = mark == "-"
        before = text
    return result


def test_the_readme_changes_three_lines() -> None:
    assert sum(len(own) for own in changes().values()) == 3


@pytest.mark.parametrize("changed", [False, True])
def test_it_learns_before_and_after(changed: bool) -> None:
    texts = {"server_app.py": SERVER, "client_app.py": CLIENT}
    for file, own in changes().items() if changed else ():
        for before, after in own:
            assert texts[file].count(before) == 1
            texts[file] = texts[file].replace(before, after)
    spaces: dict[str, dict[str, Any]] = {}
    for file, text in texts.items():
        spaces[file] = {}
        exec(compile(text, file, "exec"), spaces[file])

    grid = InProcessGrid(spaces["client_app.py"]["app"], 4)
    grid.contexts[0].run_config.update({"fraction-evaluate": 1.0, "num-server-rounds": 25, "learning-rate": 0.5})
    spaces["server_app.py"]["main"](grid, grid.contexts[0])
    result = spaces["server_app.py"]["result"]
    assert result.evaluate_metrics_clientapp[25]["eval_acc"] > 0.8
    assert ("fedmpdd-contributors" in result.train_metrics_clientapp[25]) == changed
    assert np.isfinite(result.train_metrics_clientapp[25]["train_loss"])
