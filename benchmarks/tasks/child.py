"""`python -m benchmarks.tasks.child`: one training by one program, in a process of its own; prints a line of JSON.

Rounds are timed from outside, by a stamp each time that the server has a new model. The programs know nothing of it.
"""

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MARK = "measured "  # before the line that the parent reads, since frameworks print a lot


def main() -> None:
    """Train as the JSON of the only argument says, and print what came of it."""
    asked = json.loads(sys.argv[1])
    if asked["threads"]:
        torch.set_num_threads(asked["threads"])
    task, name = f"benchmarks.tasks.{asked['task']}", asked["program"]
    program = importlib.import_module(f"{task}.{name}")
    problem = importlib.import_module(f"{task}.problem")
    if asked["poll_s"]:
        _have_flower_ask(asked["poll_s"])
    stamps = stamp(*_server_of(name))
    start = time.perf_counter()
    result = program.train(rounds=asked["rounds"], per_round=asked["per_round"], **asked["options"])
    seconds = time.perf_counter() - start
    model: nn.Module = result.model if name == "with_fedmpdd" else result
    loss, score = problem.evaluate(model)
    document: dict[str, Any] = {
        "stamps": stamps,
        "seconds": seconds,
        "loss": loss,
        "score": score,
        "update_bytes": None,
    }
    if name == "with_fedmpdd":
        document["update_bytes"] = result.last.uplink_bytes / result.last.updates
    if name == "with_flower":
        document["update_bytes"] = _flower_bytes(model)
    if asked["keep_model"]:
        document["model"] = flat_parameters(model).tolist()
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        print(MARK + json.dumps(document), flush=True)


def flat_parameters(model: nn.Module) -> Tensor:
    """Return all parameters of a model as one vector, in float64."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def stamp(owner: type, method: str) -> list[tuple[float, float]]:
    """Have every call of a method leave its end in a list: seconds on the clock, and of this process on all cores."""
    stamps: list[tuple[float, float]] = []
    original: Callable[..., Any] = getattr(owner, method)

    @functools.wraps(original)
    def timed(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        stamps.append((time.perf_counter(), time.process_time()))
        return result

    setattr(owner, method, timed)
    return stamps


def _server_of(program: str) -> tuple[type, str]:
    """What is called once a round, when the server makes the next model."""
    if program == "with_fedmpdd":
        from fedmpdd.server.replica import Replica

        return Replica, "take"
    if program == "with_flower":
        from flwr.serverapp.strategy import FedAvg

        return FedAvg, "aggregate_train"
    from pfl.model.pytorch import PyTorchModel

    return PyTorchModel, "apply_model_update"


def _have_flower_ask(seconds: float) -> None:
    """Have Flower's simulation ask for replies so often, which no setting of a simulation says."""
    from flwr.superlink.grid import InMemoryGrid

    make = InMemoryGrid.__init__

    def make_eager(self: InMemoryGrid, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options | {"pull_interval": seconds})

    InMemoryGrid.__init__ = make_eager  # type: ignore[method-assign]


def _flower_bytes(model: nn.Module) -> int:
    """What a client of the Flower programs replies, as Flower writes it for the wire."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.common.serde import recorddict_to_proto

    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})})
    return len(recorddict_to_proto(content).SerializeToString())


if __name__ == "__main__":
    main()
