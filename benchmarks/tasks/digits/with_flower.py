"""The digits, written for Flower."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional

from benchmarks.tasks.digits import problem

client_app = ClientApp()
load_clients = cache(problem.load_clients)  # once in each process, not once in each call of a client


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Take one step of descent on the examples of a client."""
    model = problem.make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, targets = load_clients()[int(context.node_config["partition-id"])]
    optimiser = torch.optim.SGD(model.parameters(), lr=problem.LR)
    functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"num-examples": len(targets)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def make_server(model: nn.Module, rounds: int, per_round: int) -> ServerApp:
    """Return a server that trains a model in place."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=per_round / problem.CLIENTS,
            min_train_nodes=per_round,  # else the first round takes a share of the nodes that are there by then
            fraction_evaluate=0.0,
            min_available_nodes=problem.CLIENTS,
        )
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    return server_app


def train(rounds: int = problem.ROUNDS, per_round: int = problem.PER_ROUND) -> nn.Module:
    """Train a model, and return it."""
    model = problem.make_model()
    run_simulation(
        make_server(model, rounds, per_round),
        client_app,
        num_supernodes=problem.CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return model
