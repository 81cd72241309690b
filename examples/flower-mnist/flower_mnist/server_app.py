"""The server: a strategy by name, and the accuracy on the test digits after every round."""

from collections.abc import Mapping
from logging import INFO

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmpdd.flower import FedMPDD
from flower_mnist import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    config = context.run_config
    name = str(config["model"])
    torch.manual_seed(17)
    model = task.make_model(name)
    digits = task.load_test(name)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = task.evaluate(model, digits)
        log(INFO, "round %s: accuracy %.1f %%, loss %.3f", server_round, 100 * accuracy, loss)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    strategy = make_strategy(str(config["strategy"]), config)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord(
            {
                "local-steps": 1 if config["strategy"] == "fedsgd" else int(config["local-steps"]),
                "batch": int(config["batch"]),
                "lr": float(config["lr"]),
            }
        ),
        evaluate_fn=evaluate,
    )


def make_strategy(name: str, config: Mapping[str, bool | float | int | str]) -> FedAvg:
    """Return a strategy; models after one step of SGD average to one step along the mean gradient: FedSGD."""
    fraction, checkpoint, downlink = float(config["fraction-train"]), str(config["checkpoint"]), str(config["downlink"])
    if name == "fedmpdd":
        return FedMPDD(
            fraction_train=fraction,
            fraction_evaluate=0.0,
            codec=str(config["codec"]),
            lr=float(config["server-lr"]) or None,
            downlink=downlink,
            checkpoint=checkpoint or None,
        )
    if name not in ("fedavg", "fedsgd"):
        raise ValueError(f'strategy = {name!r}: expected "fedmpdd", "fedavg" or "fedsgd"')
    if downlink != "model":
        raise ValueError(f'downlink = {downlink!r}: strategy {name!r} sends the model; use "fedmpdd"')
    if checkpoint:
        raise ValueError(f'checkpoint = {checkpoint!r}: strategy {name!r} writes none; use "fedmpdd"')
    return FedAvg(fraction_train=fraction, fraction_evaluate=0.0)
