"""Tasks of somebody's own: what comes in, and what is refused in a line."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional

from fedmpdd.errors import ConfigError, DataError, FedmpddError
from fedmpdd.tasks.task import Task, check_objective, partition
from tests.tasks.own import FEATURES, class_data, network, regression, regression_data, with_dropout


def build(task: Task, seed: int = 1) -> tuple[Any, Tensor]:
    return task.build("default", seed)


def test_a_module_is_copied_and_a_function_is_called_for_every_seed() -> None:
    module = network()
    before = [parameter.clone() for parameter in module.parameters()]
    _, flat = build(regression(module))
    flat += 1
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))

    def make() -> nn.Module:
        return nn.Linear(FEATURES, 1)

    first, again, other = (build(regression(make), seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_frozen_parameters_are_not_in_the_vector_and_stay() -> None:
    module: Any = network()
    module[0].requires_grad_(False)
    objective, flat = build(regression(module))
    assert flat.numel() == 17
    trained = objective.trained(flat + 1)
    assert torch.equal(trained[0].weight, module[0].weight)
    assert not trained[0].weight.requires_grad
    assert torch.equal(trained[2].weight, module[2].weight + 1)


def test_a_loss_of_model_and_batch_sees_the_parameters_of_the_call() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(model[2](model[1](model[0](inputs))), targets)  # parts of it, not only the whole

    task = regression()
    own = Task(network(), task.clients, task.test, loss=loss)
    batch = task.clients.store.gather(torch.arange(4))
    (objective, flat), (other, _) = build(task), build(own)
    for moved in (flat, flat + 0.1):
        assert torch.equal(objective(moved, batch), other(moved, batch))


def test_natural_clients_are_groups_of_a_column() -> None:
    inputs, targets = regression_data(6)
    speakers = ["b", "a", "b", "c", "a", "b"]
    split = partition((inputs, targets), kind="natural", groups=speakers)
    assert split.partition.clients == 3
    assert [split.partition.examples_of(client).tolist() for client in range(3)] == [[1, 4], [0, 2, 5], [3]]
    table = {"speaker": torch.tensor([2, 1, 2, 3, 1, 2]), "x": inputs, "y": targets}
    by_column = partition(table, kind="natural", groups="speaker", columns=("x", "y"))
    assert [by_column.partition.examples_of(client).tolist() for client in range(3)] == [[1, 4], [0, 2, 5], [3]]
    assert len(by_column.store.gather(torch.arange(2))) == 2


def test_a_list_has_a_dataset_for_each_client() -> None:
    datasets = [regression_data(size, seed=size) for size in (5, 9, 7)]
    task = Task(network(), datasets, regression_data(8), loss=functional.mse_loss)
    sizes = [task.clients.partition.examples_of(client).size for client in range(3)]
    assert sizes == [5, 9, 7]
    inputs, _ = task.clients.store.gather(torch.from_numpy(task.clients.partition.examples_of(1)))
    assert torch.equal(inputs, datasets[1][0])


def test_whether_clients_draw_is_seen() -> None:
    for model, draws in ((network(), False), (with_dropout(), True)):
        task = regression(model)
        assert check_objective(*build(task), task.clients.store) is draws


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, int]:
        return self.inner(inputs), 0


class Logits(Tuple):
    def forward(self, inputs: Tensor) -> Any:
        return {"logits": self.inner(inputs), "other": None}


class Counting(Tuple):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, inputs: Tensor) -> Any:
        self.seen += 1
        return self.inner(inputs) * self.scale


class Constant(Tuple):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2))

    def forward(self, inputs: Tensor) -> Any:
        return self.inner(inputs) * self.scale


def tried(model: Any, data: Any = None, loss: Any = functional.cross_entropy) -> bool:
    data = class_data() if data is None else data
    task = Task(model, partition(data, 4), data, loss=loss)
    return check_objective(*build(task), task.clients.store)


def test_logits_in_a_dict_and_constant_buffers_are_handled() -> None:
    assert not tried(Logits())
    assert not tried(Constant())


REFUSED = {
    "a tuple": (lambda: tried(Tuple()), "the model returns a tuple, not a tensor of logits"),
    "one output": (lambda: tried(network(1)), r"shape \[2, 1\], and over one class it is 0"),
    "numbers as classes": (lambda: tried(network(2), regression_data()), "targets of torch.float32"),
    "other shapes": (
        lambda: tried(network(2), (regression_data()[0], torch.zeros(160, 3, dtype=torch.int64))),
        r"outputs of shape \[2, 2\] and targets of shape \[2, 3\]",
    ),
    "a changing buffer": (lambda: tried(Counting()), "changes the buffer seen"),
    "other inputs": (lambda: tried(nn.Linear(7, 2)), "cannot take the examples: RuntimeError: mat1 and mat2 shapes"),
    "a loss of many": (
        lambda: tried(network(2), loss=lambda outputs, targets: outputs),
        r"the loss gives a tensor of shape \[2, 2\]",
    ),
    "a loss that is none": (lambda: tried(network(2), loss="mse"), "cannot be called"),
    "no module": (lambda: tried(lambda: 3), "the model's function gives a int"),
    "a function that fails": (lambda: tried(lambda: nn.Linear(-1, 2)), "the model cannot be made: RuntimeError"),
    "no model": (lambda: tried("lenet"), "expected a torch.nn.Module, or a function"),
    "nothing to train": (lambda: tried(network(2).requires_grad_(False)), "nothing to train"),
    "double precision": (lambda: tried(network(2).double()), "must be float32"),
    "classes that are missing": (
        lambda: tried(network(2), (class_data()[0], class_data()[1] * 2)),
        "classes 0 to 2, and the model has 2 outputs",
    ),
    "clients as a dict": (lambda: Task(network(), {"a": 1}, class_data()), "clients of type dict"),  # type: ignore[arg-type]
    "no number of clients": (lambda: partition(class_data()), "clients is missing"),
    "an unknown kind": (lambda: partition(class_data(), 4, "uneven"), "expected one of iid, classes, dirichlet"),
    "classes of a regression": (lambda: partition(regression_data(), 4, "dirichlet"), "the examples have none"),
    "groups for nothing": (lambda: partition(class_data(), 4, groups=[1]), 'they are for kind = "natural"'),
    "no groups": (lambda: partition(class_data(), kind="natural"), "needs groups"),
    "few groups": (lambda: partition(class_data(), kind="natural", groups=["a"]), "1 names for 160 examples"),
    "clients beside groups": (
        lambda: partition(class_data(), 3, "natural", groups=[0] * 160),
        "groups say how many there are",
    ),
    "an unknown column": (
        lambda: partition({"x": np.zeros(3), "y": np.zeros(3)}, kind="natural", groups="who"),
        "is no column of the data, which has x, y",
    ),
    "a metric that is none": (
        lambda: Task(network(), [class_data()], class_data(), metrics={"f1": 3}),
        "metric f1 = 3",
    ),
}


@pytest.mark.parametrize(("use", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_be_meant_is_refused_in_a_line(use: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        use()
    assert isinstance(caught.value, FedmpddError)
    assert "\n" not in str(caught.value)


class RunsAgain(nn.Module):
    """A model that saves memory by running its first layer again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.utils.checkpoint.checkpoint(self.first, inputs, use_reentrant=False)
        value: Tensor = self.last(torch.tanh(hidden))
        return value


def test_a_model_that_would_run_again_without_its_parameters_is_refused() -> None:
    """Its gradients would be those of other parameters, and nobody would notice."""
    task = regression(RunsAgain())
    objective, flat = build(task)
    with pytest.raises(ConfigError, match=r"torch\.utils\.checkpoint, .*leave them out while clients train"):
        check_objective(objective, flat, task.clients.store)
