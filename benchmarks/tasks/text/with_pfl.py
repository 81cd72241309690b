"""The text, written for pfl-research."""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.tasks.text import problem


class Network(nn.Module):
    """The model with a loss, as pfl asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = problem.make_model()

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.model(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> dict[str, float]:
        """Return nothing: the model is tested after the last round."""
        return {}


def train(rounds: int = problem.ROUNDS, per_round: int = problem.PER_ROUND) -> nn.Module:
    """Train a model, and return it."""
    clients = [PyTorchTensorDataset(client) for client in problem.load_clients()]
    sampler = get_user_sampler("minimize_reuse", list(range(problem.CLIENTS)))
    data = FederatedDataset(clients.__getitem__, sampler)
    network = Network()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=per_round, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=problem.LR, local_batch_size=None
        ),
        send_metrics_to_platform=False,
    )
    return network.model
