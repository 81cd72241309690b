"""Other engines with the same federation, for `python -m benchmarks rounds`: LeNet, 50 of 100 clients, one step each.

Each in a process of its own, since they keep threads and servers of their own; the time is that of rounds alone.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

ENGINES = {"pfl-research": "pfl", "flower-ray": "flwr"}


def available() -> dict[str, bool]:
    """Return which engines can be measured here."""
    found = {name: importlib.util.find_spec(module) is not None for name, module in ENGINES.items()}
    found["flower-ray"] &= importlib.util.find_spec("ray") is not None  # the extra flwr[simulation]
    return found


def measure(engine: str, batch: int, rounds: int) -> float:
    """Return rounds per second of an engine, or raise RuntimeError with the end of what it said."""
    program = {"pfl-research": _PFL, "flower-ray": _FLOWER}[engine]
    command = [sys.executable, "-c", _COMMON + program, str(batch), str(rounds)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    marks = [line for line in result.stdout.splitlines() if line.startswith("rounds/s ")]
    if not marks:
        raise RuntimeError("\n".join((result.stdout + result.stderr).splitlines()[-5:]))
    return float(marks[-1].split()[1])


def run(batch: int, rounds: int = 20) -> Iterator[tuple[str, float | str]]:
    """Yield (engine, rounds per second, or why there are none)."""
    for engine, there in available().items():
        if not there:
            yield engine, "not installed: left out"
            continue
        try:
            yield engine, measure(engine, batch, rounds)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            yield engine, f"failed: {error}"


_COMMON = """
import sys, time
import numpy as np, torch
from fedmpdd.tasks.data import mnist_5k
from fedmpdd.tasks.models import lenet
batch, rounds = int(sys.argv[1]), int(sys.argv[2])
dataset = mnist_5k.load()
images = (dataset.train.images.astype(np.float32) / 255 - 0.1307) / 0.3081
labels = dataset.train.labels
own = np.array_split(np.random.default_rng(0).permutation(len(labels)), 100)
loss_function = torch.nn.functional.cross_entropy
torch.set_num_threads(2)
"""

_PFL = """
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = lenet((1, 28, 28), 10)
    def forward(self, x):
        return self.net(x)
    def loss(self, x, y, eval=False):
        return loss_function(self(x), y)
    def metrics(self, x, y, eval=False):
        return {}

class Clock(TrainingProcessCallback):
    times = []
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        return False, Metrics()

def user(number):
    rows = own[number][:batch]
    return Dataset((torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])))

data = FederatedDataset(user, get_user_sampler("random", list(range(100))))
net = Net()
central = torch.optim.SGD(net.parameters(), lr=1.0)
model = PyTorchModel(net, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=rounds + 2, evaluation_frequency=10**6, train_cohort_size=50, val_cohort_size=0
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=batch),
    callbacks=[Clock()],
    send_metrics_to_platform=False,
)
print("rounds/s", 1 / np.median(np.diff(Clock.times)))
"""

_FLOWER = """
import os
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()

@client_app.train()
def train(msg: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net = lenet((1, 28, 28), 10)
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    rows = own[context.node_config["partition-id"]][:batch]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    loss_function(net(torch.from_numpy(images[rows])), torch.from_numpy(labels[rows])).backward()
    optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": batch})}
    return Message(content=RecordDict(content), reply_to=msg)

class Timed(FedAvg):
    times = []
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        self.times.append(time.perf_counter())
        return result

@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(fraction_train=0.5, fraction_evaluate=0.0, min_available_nodes=100)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(lenet((1, 28, 28), 10).state_dict()), num_rounds=rounds + 2)
    print("rounds/s", 1 / np.median(np.diff(Timed.times)), flush=True)

resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
run_simulation(server_app, client_app, num_supernodes=100, backend_config=resources)
"""
