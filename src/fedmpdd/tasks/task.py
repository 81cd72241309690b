"""A task: model, loss, metrics and the clients' data. Everything that is not communication."""

import difflib
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from fedmpdd.errors import ConfigError, DataError, FedmpddError
from fedmpdd.imports import quote, words_and_line_of
from fedmpdd.tasks import models
from fedmpdd.tasks.batch_norm import BatchNorm, check_choice, layers_of
from fedmpdd.tasks.data.partition import ExamplesByGroup, Partition, PartitionKind, make_partition
from fedmpdd.tasks.losses import CrossEntropy, as_loss, check_outputs, inputs_and_targets, logits_of
from fedmpdd.tasks.metrics import Accuracy, Metric, as_metrics
from fedmpdd.tasks.models import FlatModel
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.randomness import ClientRandomness
from fedmpdd.tasks.stores import Columns, JoinedStore, Store, as_store
from fedmpdd.torch.frozen import copy_sharing_frozen

_NO_RECOMPUTATION = (
    "torch.utils.checkpoint, or other hooks on saved tensors: parts of the model would run again when the parameters "
    "of the call are no longer in it; leave them out while clients train"
)
_LOOKED_AT = 16  # examples and clients that a fingerprint is made of

Maker = Callable[[str, int], tuple[FlatModel, Tensor]]  # of a model and its first parameters, from init and seed


class Clients(NamedTuple):
    """Examples, and which of them each client holds."""

    store: Store
    partition: Partition


class Task:
    """What is trained, on whose examples.

    Args:
        model: a module, which is copied and not changed; or a function that makes one, called with a seeded generator,
            so that every seed of a run has its own first model. Parameters with `requires_grad=False` stay as they are,
            are not sent, and cost no bytes. All copies share the memory of these, so that a large base is there once:
            whoever writes into it changes all of them.
        loss: (outputs, targets) -> scalar, or (model, batch) -> scalar. It is the second kind if its first parameter is
            called `model`. Cross-entropy by default.
        clients: what `partition` returns, or a list with one dataset per client.
        test: test examples, in any form that `partition` takes.
        metrics: functions (outputs, targets) -> number or (model, batch) -> number, objects of torchmetrics, or the
            word "accuracy", by name. The first one is what targets and tables go by. A name that begins with a minus
            says that lower is better. Accuracy by default where the loss is cross-entropy, else none: then it goes by
            the test loss.
        columns: which columns are inputs and target, where examples are dicts: ("image", "label").
        batch_norm: "averaged" or "local", for models that have batch norm: see docs/own-task.md.

    Example:
        >>> inputs, targets = torch.randn(64, 3), torch.randn(64, 1)
        >>> task = Task(
        ...     model=torch.nn.Linear(3, 1),
        ...     loss=torch.nn.functional.mse_loss,
        ...     clients=partition((inputs, targets), 8),
        ...     test=(inputs, targets),
        ... )

    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        clients: Clients | Sequence[Any],
        test: Any,
        *,
        loss: Callable[..., Any] = functional.cross_entropy,
        metrics: Mapping[str, Any] | None = None,
        columns: Columns | None = None,
        batch_norm: BatchNorm | None = None,
    ) -> None:
        self.model = model
        self.loss = as_loss(loss)
        self.clients = clients_of(clients, columns)
        self.test = as_store(test, columns)
        if metrics is None:
            metrics = {"accuracy": Accuracy()} if isinstance(self.loss, CrossEntropy) else {}
        self.metrics: dict[str, Metric] = as_metrics(metrics)
        if batch_norm not in (None, "averaged", "local"):
            raise ConfigError(f'batch_norm = {quote(batch_norm)}: expected "averaged" or "local"')
        self.batch_norm: BatchNorm | None = batch_norm
        self.shape, self.classes = (1, 1, 1), 1  # what a journal says of examples that have no shape of images

    def build(self, init: str, seed: int) -> tuple[Objective, Tensor]:
        """Return the objective of the task and the first parameters.

        Args:
            init: "default", or "uniform" for all from U(−0.5, 0.5).
            seed: of the generator with which the model is made.

        """
        model, flat = self._make(init, seed)
        check_choice(model.module, self.batch_norm)
        sends = self.batch_norm == "averaged" and bool(layers_of(model.module))
        return Objective(model, self.loss, sends_statistics=sends), flat

    def _make(self, init: str, seed: int) -> tuple[FlatModel, Tensor]:
        return make_model(self.model, init, seed)


def make_model(model: Any, init: str, seed: int) -> tuple[FlatModel, Tensor]:
    """Return a copy of somebody's module, or what their function makes, with its first parameters.

    Args:
        model: the module or the function.
        init: "default", or "uniform" for all from U(−0.5, 0.5).
        seed: of the generator with which it is made.

    Example:
        >>> make_model(nn.Linear(3, 2), "default", 17)[1].shape
        torch.Size([8])

    """
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        module = copy_sharing_frozen(model) if isinstance(model, nn.Module) else _made_by(model)
        if init == "uniform":
            models.make_uniform(module)
    finally:
        torch.random.set_rng_state(state)
    return models.flatten(module)


class NamedTask(Task):
    """A task whose model is made from a name and the shape of the examples, as configs name one."""

    def __init__(
        self, maker: Maker, clients: Clients, test: Any, *, shape: tuple[int, int, int], classes: int, **options: Any
    ) -> None:
        super().__init__(nn.Identity(), clients, test, **options)
        self._maker = maker
        self.shape, self.classes = shape, classes

    def _make(self, init: str, seed: int) -> tuple[FlatModel, Tensor]:
        return self._maker(init, seed)


def partition(
    data: Any,
    clients: int | None = None,
    kind: str = "iid",
    *,
    groups: str | Sequence[Any] | None = None,
    columns: Columns | None = None,
    seed: int = 2024,
    classes_per_client: int = 2,
    alpha: float = 0.5,
    virtual_size: int = 64,
) -> Clients:
    """Deal out examples to clients.

    Args:
        data: a dataset of PyTorch or of Hugging Face, a tuple (inputs, targets) of arrays or tensors, or a dict of
            them.
        clients: how many there are; left out for "natural", where the data say so.
        kind: "iid"; "classes" and "dirichlet", which deal out classes unevenly; or "natural": a client per group.
        groups: for "natural": a column that names each example's client, or one name per example.
        columns: which columns are inputs and target, where examples are dicts.
        seed: of the split, apart from that of training.
        classes_per_client: for "classes".
        alpha: for "dirichlet": the smaller, the less even.
        virtual_size: examples of each client where there are more clients than examples.

    Returns:
        The examples, and which of them each client holds.

    Example:
        >>> split = partition((np.zeros((100, 4)), np.zeros(100)), 10)
        >>> split.partition.examples_of(0).size
        10

    """
    _check_dealing(clients, seed, classes_per_client, alpha, virtual_size)
    if kind == "natural":
        names = _group_names(data, groups)
        if clients is not None:
            raise ConfigError(f'clients = {clients} with kind = "natural": groups say how many there are; leave it out')
        store = as_store(_without_column(data, groups), columns)
        if len(names) != len(store):
            raise DataError(f"groups has {len(names)} names for {len(store)} examples; expected one each")
        return Clients(store, ExamplesByGroup(names, seed))
    if groups is not None:
        raise ConfigError(f'groups came with kind = {kind!r}; they are for kind = "natural"')
    store, kind = as_store(data, columns), _kind(kind)
    if clients is None:
        raise ConfigError(f"clients is missing: how many share the {len(store):,} examples? partition(data, 100)")
    return Clients(
        store,
        make_partition(
            _classes_for(kind, store),
            int(clients),  # NumPy's whole numbers are no JSON
            kind=kind,
            seed=int(seed),
            classes_per_client=int(classes_per_client),
            alpha=alpha,
            virtual_size=int(virtual_size),
        ),
    )


def fingerprint(task: Task) -> str:
    """Return a hash by which a run tells that it would go on with another model or other examples.

    It is of the layers of the model, of how many examples there are, who holds which, and the first few of them.

    Args:
        task: that is trained.

    """
    digest = hashlib.sha256()
    layers = repr(task.model) if isinstance(task.model, nn.Module) else ""
    digest.update(re.sub(r" at 0x[0-9a-f]+", "", layers).encode())
    for name, layer in task.model.named_modules() if isinstance(task.model, nn.Module) else ():
        if isinstance(getattr(layer, "scaling", None), dict):  # of adapters; what is printed of them does not say it
            digest.update(f"{name} {sorted(layer.scaling.items())}".encode())
    partition = task.clients.partition
    for store in (task.clients.store, task.test):
        digest.update(f"{len(store)} {partition.clients}".encode())
        if store.draws:  # what it gives may never come again
            continue
        for leaf in tree_leaves(store.gather(torch.arange(min(_LOOKED_AT, len(store))))):
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode() + leaf.cpu().numpy().tobytes())
    for client in range(min(_LOOKED_AT, partition.clients)):
        digest.update(np.sort(partition.examples_of(client)).tobytes())
    return digest.hexdigest()


def check_objective(objective: Objective, flat: Tensor, store: Store, *, has_gradient: bool = True) -> bool:
    """Try a task on two examples, and return whether clients draw random numbers while they train.

    Args:
        objective: of the task.
        flat: parameters.
        store: the examples.
        has_gradient: whether the loss is to be differentiated.

    Raises:
        ConfigError: the model does not take the examples, the loss does not take its outputs or depends on no
            parameter, a forward pass changes a buffer, which no update would carry, or the model would run parts of
            itself again in the backward pass, as torch.utils.checkpoint does.

    """
    batch = store.gather(torch.arange(min(2, len(store))))
    asked = objective.copy()
    network = asked.network
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with ClientRandomness([(0,)], vectorised=False, device=flat.device) as randomness:
        try:
            if isinstance(objective.loss, CrossEntropy):
                *inputs, targets = inputs_and_targets(batch)
                with torch.no_grad():
                    outputs = logits_of(asked.outputs(flat, *inputs))
                CrossEntropy.check(outputs, targets, None if store.draws else store.classes())
            if isinstance(objective.loss.function, nn.CrossEntropyLoss):  # with weights, or smoothed
                *inputs, _ = inputs_and_targets(batch)
                with torch.no_grad():
                    check_outputs(logits_of(asked.outputs(flat, *inputs)))
            with no_broadcasting(), _no_recomputation() if has_gradient else nullcontext():
                value = asked(flat.detach().requires_grad_(has_gradient), batch)
        except FedmpddError:
            raise
        except Exception as error:  # somebody else's model or loss
            text = words_and_line_of(error)
            raise ConfigError(f"the model or the loss cannot take the examples: {text}") from error
    if has_gradient and not value.requires_grad:
        raise ConfigError(
            "the loss depends on no parameter of the model, so that there is no gradient; look for detach(), item(), "
            "argmax, NumPy or torch.no_grad() in the model or the loss"
        )
    for name, buffer in network.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise ConfigError(
                f"a forward pass changes the buffer {name} of the model, and no update would carry that; make it "
                "constant while training"
            )
    return bool(randomness.draws)


def _no_recomputation() -> AbstractContextManager[None]:
    """Within the block hooks on saved tensors are an error: what they compute later finds other parameters."""
    return torch.autograd.graph.disable_saved_tensors_hooks(_NO_RECOMPUTATION)


@contextmanager
def no_broadcasting() -> Iterator[None]:
    """Within the block it is an error where a loss of PyTorch warns that outputs and targets have different shapes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        try:
            yield
        except UserWarning as error:
            shapes = re.findall(r"torch\.Size\((\[[\d, ]*\])\)", str(error))
            raise ConfigError(
                f"outputs of shape {shapes[-1]} came with targets of shape {shapes[0]}, and PyTorch would compare all "
                "pairs of them; give both one shape, with targets[:, None] or outputs.squeeze(1), say"
            ) from None


def _made_by(factory: Any) -> nn.Module:
    if not callable(factory):
        raise ConfigError(f"model = {quote(factory)}: expected a torch.nn.Module, or a function that makes one")
    try:
        module = factory()
    except Exception as error:  # somebody else's code
        raise ConfigError(f"the model cannot be made: {words_and_line_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the model's function gives a {type(module).__name__}; expected a torch.nn.Module")
    return module


def clients_of(clients: Any, columns: Columns | None = None) -> Clients:
    """Return the examples of clients, given as what `partition` returns or as a list of datasets."""
    if isinstance(clients, Clients):
        return clients
    if not isinstance(clients, list) or not clients:
        raise DataError(
            f"clients of type {type(clients).__name__} came; expected fm.partition(data, 100), or a list with one "
            "dataset per client"
        )
    stores = []
    for number, one in enumerate(clients):
        try:
            stores.append(as_store(one, columns))
        except DataError as error:
            raise DataError(f"client {number}: {error}") from None
    owners = np.repeat(np.arange(len(stores)), [len(store) for store in stores])
    return Clients(JoinedStore(stores), ExamplesByGroup(owners, 0))


def _check_dealing(clients: Any, seed: Any, classes_per_client: Any, alpha: Any, virtual_size: Any) -> None:
    """Raise ConfigError for what nothing can be dealt out by."""
    counts = {"clients": clients, "classes_per_client": classes_per_client, "virtual_size": virtual_size}
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise ConfigError(f"{name} = {quote(value)}: expected a whole number, 1 or more")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed = {quote(seed)}: expected a whole number from 0 to below 2^63")
    if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ConfigError(f"alpha = {quote(alpha)}: expected a number above 0; the smaller, the less even")


def _kind(kind: Any) -> PartitionKind:
    if kind not in list(PartitionKind):
        names = [*PartitionKind, "natural"]
        close = difflib.get_close_matches(str(kind), names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"kind = {quote(kind)}: expected one of {', '.join(names)}{hint}")
    return PartitionKind(kind)


def _classes_for(kind: PartitionKind, store: Store) -> NDArray[np.int64]:
    """One class per example; any where they are not dealt out by classes, which saves a look at a dataset."""
    if kind not in (PartitionKind.CLASSES, PartitionKind.DIRICHLET):
        return np.zeros(len(store), np.int64)
    classes = store.classes()
    if classes is None:
        raise ConfigError(
            f'partition "{kind}" deals out classes, and the examples have none: their targets are no whole numbers, '
            'one each; use "iid" or "natural"'
        )
    return classes


def _group_names(data: Any, groups: Any) -> NDArray[Any]:
    if groups is None:
        raise ConfigError(
            'kind = "natural" needs groups: a column that names each example\'s client, or a list of names'
        )
    if not isinstance(groups, str):
        return _names_in(groups)
    has = getattr(data, "column_names", None) or (list(data) if isinstance(data, dict) else [])
    if groups not in has:
        raise DataError(f"groups = {groups!r} is no column of the data, which has {', '.join(has) or 'none'}")
    return _names_in(data[groups])


def _names_in(groups: Any) -> NDArray[Any]:
    """One name per example, which can be sorted."""
    names = np.asarray(groups)
    missing = names.dtype.kind == "O" and any(name is None or name != name for name in names.flat)
    if names.ndim != 1 or missing or (names.dtype.kind == "f" and bool(np.isnan(names).any())):
        came = "a name that is missing" if names.ndim == 1 else f"an array of shape {list(names.shape)}"
        raise DataError(f"groups holds {came}; expected one name per example, a word or a number")
    return names.astype(str) if names.dtype.kind == "O" else names


def _without_column(data: Any, groups: Any) -> Any:
    if not isinstance(groups, str):
        return data
    if isinstance(data, dict):
        return {name: column for name, column in data.items() if name != groups}
    return data.remove_columns(groups) if hasattr(data, "remove_columns") else data
