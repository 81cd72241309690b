"""The server: a strategy by name, Adam on the adapters, and the accuracy on other sentences."""

from collections.abc import Mapping
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedmpdd as fm
from fedmpdd.flower import FedMPDD, StepRule
from fedmpdd.simulation import parse_config, sampling
from flower_llm import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    config = context.run_config
    classifier = task.Classifier(config, str(config["model"]))
    dev = task.dev_sentences(config, classifier.classes)
    rounds, every = int(config["num-server-rounds"]), int(config["evaluate-every"])
    log(INFO, "%s parameters are trained of %s", fm.torch.count_trained(classifier.model), config["model"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round % every and server_round != rounds:
            return None
        classifier.load(arrays.to_torch_state_dict())
        loss, accuracy = classifier.test(dev)
        log(INFO, "round %s: accuracy %.1f %%, loss %.4f", server_round, 100 * accuracy, loss)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    strategy = make_strategy(str(config["strategy"]), config)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(classifier.adapters()),
        num_rounds=rounds,
        train_config=ConfigRecord(
            {
                "base": classifier.base_sha256 or "",
                "local-steps": 0 if config["strategy"] == "fedmpdd" else int(config["local-steps"]),
            }
        ),
        evaluate_fn=evaluate,
    )
    if config["adapter"]:
        classifier.load(result.arrays.to_torch_state_dict())
        log(INFO, "the adapter is in %s", fm.save_adapter(classifier.adapted, str(config["adapter"])))


def make_strategy(name: str, config: Mapping[str, bool | float | int | str]) -> FedAvg:
    """Return a strategy: of updates of some bytes, or Flower's own, which averages whole adapters."""
    if name == "fedavg":
        return FedAvg(fraction_evaluate=0.0)
    if name != "fedmpdd":
        raise ValueError(f'strategy = {name!r}: expected "fedmpdd" or "fedavg"')
    return FedMPDD(
        fraction_evaluate=0.0,
        codec=str(config["codec"]),
        returns="gradient",
        lr=float(config["lr"]),
        server=StepRule("adam"),
        weighting="equal",
        downlink=str(config["downlink"]),
        robust=bool(config["robust"]),
        seed=sampling.session_seed(parse_config({"seed": int(config["seed"])})),
    )
