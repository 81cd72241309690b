"""Wrong uses of the front door: each is one line that names what came and what to do."""

# A type checker would tell most of these users as much; here they get by it.
# mypy: disable-error-code="arg-type,list-item,type-var"

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedmpdd as fm
from fedmpdd import errors as e
from fedmpdd.codecs import CODECS, DeComFL, Section
from fedmpdd.server.step import Schedule
from tests.tasks.own import class_data, network, regression, regression_data, with_batch_norm

LONGEST = 330  # characters of a message
FEW: dict[str, Any] = {"rounds": 3, "batch": 2, "progress": False}
X, Y = regression_data(64)
_, CLASSES = class_data(64)
SPOILED = X.clone()
SPOILED[5, 2] = math.nan


class Case(NamedTuple):
    """What somebody does, and what they are told."""

    use: Callable[[], object]
    error: type[e.FedmpddError]
    words: tuple[str, ...]


def case(use: Callable[[], object], error: type[e.FedmpddError], *words: str) -> Case:
    return Case(use, error, words)


# ------------------------------------------------------------------------------------------ what the cases do


def simulated(task: fm.Task | None = None, codec: Any = "fedsgd", **settings: Any) -> fm.History:
    return fm.simulate(task or regression(), codec, **{**FEW, **settings})


def compared(codecs: Any = ("fedsgd", "mpdd:m=4"), task: fm.Task | None = None, **settings: Any) -> Any:
    codecs = list(codecs) if isinstance(codecs, tuple) else codecs
    return fm.compare(task or regression(), codecs, **{**FEW, "seeds": 1, **settings})


def on(data: Any, loss: Any = functional.mse_loss, model: Any = None, **options: Any) -> fm.History:
    """Train on examples, which are those of the test too unless there are others."""
    test = options.pop("test", data)
    clients = data if isinstance(data, list) else fm.partition(data, options.pop("clients", 4))
    task = fm.Task(model=network() if model is None else model, loss=loss, clients=clients, test=test, **options)
    return simulated(task)


def of_classes(data: Any = (X, CLASSES), model: Any = None, **options: Any) -> fm.History:
    return on(data, functional.cross_entropy, network(2) if model is None else model, **options)


def with_loss(loss: Any) -> fm.History:
    return on((X, Y), loss)


def with_metrics(**metrics: Any) -> fm.History:
    return simulated(regression(metrics=metrics))


def again(changed: dict[str, Any], task: fm.Task | None = None) -> None:
    """Train in a folder, and go on in it in another way."""
    with tempfile.TemporaryDirectory() as folder:
        simulated(out=Path(folder) / "run")
        simulated(task, **{"out": Path(folder) / "run", **changed})


class Own(nn.Module):
    """A model whose outputs a function makes."""

    def __init__(self, outputs: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.outputs = outputs

    def forward(self, inputs: Tensor) -> Any:
        return self.outputs(self.layer, inputs)


class Counting(nn.Module):
    """A model that counts how often it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.calls: Any
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Any:
        self.calls += 1
        return self.layer(inputs)


class Fixed(torch.optim.Optimizer):
    """An optimiser whose steps have one size."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= 0.1 * parameter.grad


class Examples:
    """A dataset of examples that a function makes."""

    def __init__(self, example: Callable[[int], Any]) -> None:
        self.example = example

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        return self.example(number)


def failing(*_: Any) -> Any:
    raise KeyError("speaker")


def is_long(history: fm.History) -> Any:
    return len(history) > 9


def frozen() -> nn.Module:
    return network().requires_grad_(False)


def client(codec: fm.Codec | None = None, **options: Any) -> fm.torch.Client:
    model = network()
    functional.mse_loss(model(X), Y).backward()  # type: ignore[no-untyped-call]
    return fm.torch.Client(model, codec or fm.MPDD(m=8), **options)


def server(codec: fm.Codec | None = None, outputs: int = 1, **options: Any) -> fm.torch.Server:
    model = network(outputs)
    return fm.torch.Server(model, codec or fm.MPDD(m=8), torch.optim.SGD(model.parameters(), lr=0.1), **options)


def twice(frame: bytes) -> None:
    server().step([frame, frame])


def stepped_with(optimiser: Any) -> None:
    fm.torch.Server(network(), fm.MPDD(m=8), optimiser)


def spoiled_frame() -> bytes:
    model = network()
    model(SPOILED).sum().backward()
    frame: bytes = fm.torch.Client(model, fm.MPDD(m=8)).frame()
    return frame


def own_codec(**methods: Any) -> type[fm.Codec]:
    """A codec of somebody's own that sends the whole gradient, but for what is given."""

    def sections(self: Any, d: int) -> Any:
        return (Section("values", "<f4", d),)

    def encode(self: Any, backend: Any, gradients: Any, keys: Any) -> Any:
        return (gradients.copy(),)

    def decode(self: Any, backend: Any, columns: Any, keys: Any, factors: Any, d: int) -> Any:
        return (np.asarray(factors)[:, None] * columns[0]).sum(axis=0).astype(np.float32)

    names = {"name": "own", "sections": sections, "check_content": lambda *_: None}
    body = {**names, "_encode": encode, "_decode_sum": decode, "__module__": __name__, **methods}
    return dataclass(frozen=True)(type("OwnCodec", (fm.Codec,), body))


def with_codec(**methods: Any) -> fm.History:
    return simulated(codec=own_codec(**methods)())


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    before = dict(CODECS)
    yield
    CODECS.clear()
    CODECS.update(before)


# ------------------------------------------------------------------------------------------------- the table

DATA = {
    "no clients": case(lambda: fm.Task(network(), None, (X, Y)), e.DataError, "NoneType came", "fm.partition(data"),
    "data that nobody dealt out": case(
        lambda: fm.Task(network(), (X, Y), (X, Y)), e.DataError, "tuple came", "expected fm.partition"
    ),
    "an empty list of clients": case(lambda: fm.Task(network(), [], (X, Y)), e.DataError, "expected fm.partition"),
    "a client without examples": case(
        lambda: on([(X, Y), (X[:0], Y[:0])], test=(X, Y)), e.DataError, "client 1", "one example at least"
    ),
    "clients of two shapes": case(
        lambda: on([(X, Y), (X[:, :3], Y)], test=(X, Y)), e.DataError, "client 1", "[3]", "client 0", "[6]"
    ),
    "no test": case(lambda: fm.Task(network(), [(X, Y)], None), e.DataError, "NoneType came", "expected a dataset"),
    "an empty test": case(lambda: on((X, Y), test=(X[:0], Y[:0])), e.DataError, "expected one example at least"),
    "a test that is dealt out": case(
        lambda: on((X, Y), test=fm.partition((X, Y), 4)), e.DataError, "dealt out", "pass the data"
    ),
    "a loader": case(
        lambda: fm.partition(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y)), 4),
        e.DataError,
        "DataLoader came",
        "expected a dataset",
    ),
    "a test of another shape": case(
        lambda: on((X, Y), test=(X[:, :3], Y)), e.ConfigError, "cannot be tested", "2x3 and 6x16"
    ),
    "arrays of different lengths": case(lambda: fm.partition((X, Y[:9]), 4), e.DataError, "[9, 64] rows", "one row"),
    "inputs without targets": case(lambda: on((X,)), e.ConfigError, "a batch is a tuple", "columns=(inputs, target)"),
    "lists of numbers": case(
        lambda: fm.partition((X.tolist(), Y.tolist()), 4), e.DataError, "(list, list) came", "numpy.array"
    ),
    "words": case(lambda: fm.partition((np.array(["a", "b"]), np.zeros(2)), 4), e.DataError, "<U1", "numbers"),
    "whole numbers for a linear layer": case(
        lambda: on(((10 * X).long(), Y)), e.ConfigError, "cannot take the examples", "Long and Float"
    ),
    "a sparse tensor": case(
        lambda: on((X.to_sparse(), Y), test=(X, Y)), e.DataError, "torch.sparse_coo", "call to_dense()"
    ),
    "a table of pandas": case(lambda: fm.partition(pandas.DataFrame({"x": [1.0]}), 1), e.DataError, "to_numpy()"),
    "NaN among the inputs": case(
        lambda: on((SPOILED, Y), test=(X, Y), clients=32), e.GradientError, "training example 5 holds NaN", "leave"
    ),
    "NaN in the test": case(lambda: on((X, Y), test=(SPOILED, Y)), e.DataError, "test example 5 holds NaN", "leave"),
    "targets of one dimension less": case(
        lambda: on((X, Y[:, 0])), e.ConfigError, "outputs of shape [2, 1]", "targets of shape [2]", "targets[:, None]"
    ),
    "labels from 1": case(
        lambda: of_classes((X, CLASSES + 1)), e.ConfigError, "classes 1 to 2", "2 outputs", "from 0 to 1"
    ),
    "labels of the test out of range": case(
        lambda: of_classes(test=(X, CLASSES + 2)), e.ConfigError, "test examples", "2 outputs", "from 0 to 1"
    ),
    "labels of a dataset out of range": case(
        lambda: of_classes(Examples(lambda i: (X[i], 7))), e.ConfigError, "class 7", "from 0 to 1"
    ),
    "labels in one column": case(lambda: of_classes((X, CLASSES[:, None])), e.ConfigError, "targets of shape [2, 1]"),
    "labels that are true or false": case(lambda: of_classes((X, CLASSES > 0)), e.ConfigError, "torch.bool", ".long()"),
    "labels of pixels out of range": case(
        lambda: of_classes((torch.randn(8, 1, 3, 3), torch.full((8, 3, 3), 7)), nn.Conv2d(1, 2, 1)),
        e.ConfigError,
        "class 7",
        "from 0 to 1",
    ),
    "a dataset that fails": case(
        lambda: on(Examples(failing)), e.DataError, "example 0", "KeyError: 'speaker'", "test_wrong_uses.py"
    ),
    "examples of many lengths": case(
        lambda: on(Examples(lambda i: (X[i, : 1 + i % 3], Y[i]))), e.DataError, "side by side", "one shape"
    ),
    "a dataset of words": case(lambda: on(Examples(lambda i: ("hello", 1.0))), e.DataError, "'hello'", "numbers"),
    "dicts without columns": case(
        lambda: on(Examples(lambda i: {"x": X[i], "y": Y[i]})), e.ConfigError, "a dict of x, y", "columns="
    ),
    "a column that is missing": case(
        lambda: on([Examples(lambda i: {"x": X[i], "y": Y[i]})], columns=("x", "z")), e.DataError, "'z'", "x, y"
    ),
    "columns as one word": case(
        lambda: fm.partition({"x": X, "y": Y}, 4, columns="x"),
        e.DataError,
        "columns = 'x'",
        "(inputs, target)",
    ),
}

PARTITIONS = {
    "no clients": case(lambda: fm.partition((X, Y), 0), e.ConfigError, "clients = 0", "1 or more"),
    "half a client": case(lambda: fm.partition((X, Y), 2.5), e.ConfigError, "clients = 2.5", "whole number"),
    "nobody says how many": case(lambda: fm.partition((X, Y)), e.ConfigError, "clients is missing", "64 examples"),
    "clients of too few": case(
        lambda: on((X, Y), clients=33), e.ConfigError, "batch = 2", "client 0 holds (1 examples)", "fewer clients"
    ),
    "an unknown kind": case(
        lambda: fm.partition((X, CLASSES), 4, "dirichlett"), e.ConfigError, "'dirichlett'", "did you mean dirichlet?"
    ),
    "an alpha of 0": case(
        lambda: fm.partition((X, CLASSES), 4, "dirichlet", alpha=0), e.ConfigError, "alpha = 0", "above 0"
    ),
    "an alpha of infinity": case(
        lambda: fm.partition((X, CLASSES), 4, "dirichlet", alpha=math.inf), e.ConfigError, "alpha = inf", "above 0"
    ),
    "classes of a regression": case(
        lambda: fm.partition((X, Y), 4, "dirichlet"), e.ConfigError, "no whole numbers", '"iid" or "natural"'
    ),
    "more classes than there are": case(
        lambda: fm.partition((X, CLASSES), 4, "classes", classes_per_client=5), e.ConfigError, "= 5", "use 1 to 2"
    ),
    "a seed below 0": case(lambda: fm.partition((X, Y), 4, seed=-1), e.ConfigError, "seed = -1", "from 0"),
    "natural without groups": case(
        lambda: fm.partition((X, Y), kind="natural"), e.ConfigError, "needs groups", "names each example's client"
    ),
    "natural by a column that is missing": case(
        lambda: fm.partition({"x": X, "y": Y}, kind="natural", groups="speaker"), e.DataError, "'speaker'", "x, y"
    ),
    "natural with a name that is missing": case(
        lambda: fm.partition((X, Y), kind="natural", groups=["a", None] * 32), e.DataError, "missing", "one name per"
    ),
    "natural by too few names": case(
        lambda: fm.partition((X, Y), kind="natural", groups=["a"]), e.DataError, "1 names for 64 examples"
    ),
    "natural with a number of clients": case(
        lambda: fm.partition((X, Y), 4, kind="natural", groups=["a"] * 64), e.ConfigError, "clients = 4", "leave it out"
    ),
}

MODELS = {
    "a name": case(lambda: on((X, Y), model="lenet"), e.ConfigError, "model = 'lenet'", "torch.nn.Module"),
    "a class that wants arguments": case(
        lambda: on((X, Y), model=nn.Linear), e.ConfigError, "cannot be made", "missing 2 required"
    ),
    "a function that makes none": case(lambda: on((X, Y), model=lambda: 3), e.ConfigError, "gives a int", "Module"),
    "no parameters": case(lambda: on((X, Y), model=nn.Identity()), e.ConfigError, "no parameters", "nothing to train"),
    "all frozen": case(lambda: on((X, Y), model=frozen()), e.ConfigError, "requires_grad=True", "nothing to train"),
    "float64": case(lambda: on((X, Y), model=network().double()), e.ConfigError, "0.weight in torch.float64", ".float"),
    "a lazy layer": case(lambda: on((X, Y), model=nn.LazyLinear(1)), e.ConfigError, "lazy", "call it on an example"),
    "inputs of another shape": case(lambda: on((X, Y), model=nn.Linear(5, 1)), e.ConfigError, "cannot take", "5x1"),
    "a tuple for cross-entropy": case(
        lambda: of_classes(model=Own(lambda layer, x: (layer(x), x))), e.ConfigError, "a tuple", "(model, batch)"
    ),
    "a dict for cross-entropy": case(
        lambda: of_classes(model=Own(lambda layer, x: {"out": layer(x)})), e.ConfigError, "a dict with out", "(model,"
    ),
    "an exception": case(lambda: on((X, Y), model=Own(failing)), e.ConfigError, "KeyError: 'speaker'", "in line"),
    "outputs without a gradient": case(
        lambda: on((X, Y), model=Own(lambda layer, x: layer(x).detach())), e.ConfigError, "no gradient", "detach()"
    ),
    "one output for cross-entropy": case(
        lambda: of_classes(model=network(1)), e.ConfigError, "shape [2, 1]", "binary_cross_entropy_with_logits"
    ),
    "one output for a smoothed cross-entropy": case(
        lambda: on((X, Y), nn.CrossEntropyLoss(label_smoothing=0.1)),
        e.ConfigError,
        "over one class it is 0",
        "per class",
    ),
    "a model without numbers": case(lambda: on((X, Y), model=nn.Linear(6, 1, device="meta")), e.ConfigError, "meta"),
    "a buffer that changes": case(lambda: on((X, Y), model=Counting()), e.ConfigError, "buffer calls", "constant"),
    "batch norm without a choice": case(
        lambda: simulated(regression(with_batch_norm())), e.ConfigError, "batch norm", "replace_batch_norm(model)"
    ),
    "batch norm with another word": case(
        lambda: regression(with_batch_norm(), batch_norm="mean"), e.ConfigError, "'mean'", '"averaged" or "local"'
    ),
}

LOSSES = {
    "a word": case(lambda: with_loss("mse"), e.ConfigError, "loss = 'mse'", "a function (outputs, targets)"),
    "a class": case(lambda: with_loss(nn.MSELoss), e.ConfigError, "MSELoss is a class", "MSELoss()"),
    "one number per example": case(
        lambda: with_loss(nn.MSELoss(reduction="none")), e.ConfigError, "shape [2, 1]", "take its mean"
    ),
    "a number of Python": case(
        lambda: with_loss(lambda outputs, targets: (outputs - targets).square().mean().item()),
        e.ConfigError,
        "gives a float",
        "expected one number, a tensor",
    ),
    "a complex number": case(
        lambda: with_loss(lambda outputs, targets: (outputs - targets).mean() * 1j),
        e.ConfigError,
        "torch.complex64",
        "abs() or real",
    ),
    "no gradient": case(
        lambda: with_loss(lambda outputs, targets: (outputs > targets).sum()), e.ConfigError, "no gradient", "argmax"
    ),
    "too few arguments": case(lambda: with_loss(lambda outputs: outputs.mean()), e.ConfigError, "1 positional"),
    "an exception": case(lambda: with_loss(lambda outputs, targets: failing()), e.ConfigError, "KeyError", "in line"),
    "an exception in a round": case(
        lambda: on(
            (X, torch.linspace(0, 9, 64)[:, None]),
            lambda outputs, targets: functional.binary_cross_entropy(outputs.sigmoid(), targets),
        ),
        e.ConfigError,
        "failed in round 0",
        "between 0 and 1",
    ),
    "a regression with cross-entropy": case(
        lambda: of_classes((X, Y)), e.ConfigError, "torch.float32", "for a regression give its loss"
    ),
    "metrics in a list": case(
        lambda: regression(metrics=[functional.l1_loss]), e.ConfigError, "functions by name", '{"r2": r2}'
    ),
    "a metric called loss": case(lambda: with_metrics(loss=functional.l1_loss), e.ConfigError, "'loss'", "test loss"),
    "a metric that fails": case(lambda: with_metrics(r2=failing), e.ConfigError, "metric r2", "KeyError: 'speaker'"),
    "a metric that is many numbers": case(
        lambda: with_metrics(r2=lambda outputs, targets: outputs - targets), e.ConfigError, "metric r2", "one element"
    ),
    "an accuracy in percent": case(
        lambda: with_metrics(accuracy=lambda outputs, targets: 50.0), e.ConfigError, "gives 50", "from 0 to 1"
    ),
}

SETTINGS = {
    "no task": case(lambda: fm.simulate(network(), "fedsgd"), e.ConfigError, "task = Sequential", "fm.Task(model="),
    "rounds of 0": case(lambda: simulated(rounds=0), e.ConfigError, "rounds = 0", "greater than or equal to 1"),
    "more a round than there are": case(
        lambda: simulated(per_round=9), e.ConfigError, "= 9", "clients = 8", "1 to all"
    ),
    "a batch of 0": case(lambda: simulated(batch=0), e.ConfigError, "batch = 0", "greater than or equal to 1"),
    "a negative batch": case(lambda: simulated(batch=-2), e.ConfigError, "batch = -2", "greater than or equal to 1"),
    "a batch that nobody has": case(lambda: simulated(batch=99), e.ConfigError, "batch = 99", "lower batch"),
    "a step size of NaN": case(lambda: simulated(lr=math.nan), e.ConfigError, "lr = nan", "finite"),
    "a step size below 0": case(lambda: simulated(lr=-0.1), e.ConfigError, "lr = -0.1", "greater than 0"),
    "a step size that diverges": case(
        lambda: simulated(lr=1e30, rounds=9), e.GradientError, "nan", "lower the learning rate"
    ),
    "a word of another library": case(
        lambda: simulated(learning_rate=0.1), e.ConfigError, "learning_rate is no setting", "did you mean lr?"
    ),
    "a setting misspelled": case(lambda: simulated(local_step=3), e.ConfigError, "did you mean local_steps?"),
    "a setting of the task": case(lambda: simulated(dataset="mnist"), e.ConfigError, "dataset", "fm.Task"),
    "an unknown server": case(lambda: simulated(server="adamw"), e.ConfigError, "'adamw'", "torch.optim:AdamW"),
    "a server that is made already": case(
        lambda: simulated(server=torch.optim.SGD(network().parameters(), lr=0.1)),
        e.ConfigError,
        "server = SGD",
        "lambda parameters",
    ),
    "a server of other parameters": case(
        lambda: simulated(server=lambda _: torch.optim.SGD(network().parameters(), lr=0.1)),
        e.ConfigError,
        "does not step all parameters",
        "pass them all",
    ),
    "a server without a step size": case(
        lambda: simulated(server=Fixed), e.ConfigError, "makes a Fixed without lr", "takes lr"
    ),
    "a folder that holds something else": case(
        lambda: simulated(out=tempfile.mkdtemp()), e.RunError, "is not a run", "name another folder"
    ),
    "a config of nothing": case(lambda: fm.load_config(None), e.ConfigError, "config None", "a shipped name"),
    "changes in one text": case(
        lambda: fm.load_config("demo", "rounds=3"), e.ConfigError, "overrides = 'rounds=3'", "a list"
    ),
    "an unknown schedule": case(lambda: simulated(schedule="step"), e.ConfigError, "'step'", "'cosine'"),
    "a schedule of NaN": case(
        lambda: simulated(schedule=lambda k: math.nan), e.ConfigError, "gives nan for round 0", "0 or more"
    ),
    "a schedule of NaN later": case(
        lambda: simulated(schedule=lambda k: 1.0 if k < 2 else math.nan), e.ConfigError, "gives nan for round 2"
    ),
    "a schedule that goes backwards": case(
        lambda: simulated(schedule=lambda k: -1.0), e.ConfigError, "gives -1.0", "0 or more"
    ),
    "a schedule that is a number": case(lambda: simulated(schedule=0.5), e.ConfigError, "schedule = 0.5", "a function"),
    "a schedule after its end": case(
        lambda: simulated(schedule=Schedule("cosine", rounds=2, warmup=3)), e.ConfigError, "warmup = 3", "say over"
    ),
    "a device by another name": case(lambda: simulated(device="gpu"), e.ConfigError, "'gpu'", "'cpu' or 'cuda'"),
    "a function as a callback": case(
        lambda: simulated(callbacks=[failing]), e.ConfigError, "callbacks holds", "AfterRound(function)"
    ),
    "one callback without a list": case(
        lambda: simulated(callbacks=fm.callbacks.EarlyStopping()), e.ConfigError, "expected a list", "EarlyStopping()"
    ),
    "no patience": case(lambda: fm.callbacks.EarlyStopping(patience=0), e.ConfigError, "patience = 0", "one at least"),
    "a least of words": case(
        lambda: fm.callbacks.EarlyStopping(least="much"), e.ConfigError, "least = 'much'", "0 or more"
    ),
    "a stop that is true or false": case(
        lambda: simulated(callbacks=[fm.callbacks.StopWhen(is_long)]),
        e.ConfigError,
        "gives False",
        "or None to go on",
    ),
    "a pause of nothing": case(
        lambda: fm.callbacks.PauseWhen(None), e.ConfigError, "PauseWhen came with None", "a function from nothing"
    ),
    "events in a number": case(
        lambda: fm.callbacks.TensorBoard(3), e.ConfigError, "TensorBoard came with 3", "expected a folder"
    ),
    "a folder that is a number": case(lambda: simulated(out=3), e.ConfigError, "out = 3", "expected a folder"),
}

CODEC_WORDS = {
    "misspelled": case(lambda: simulated(codec="mpd:m=4"), e.ConfigError, "'mpd'", "did you mean mpdd?"),
    "as in Python": case(lambda: simulated(codec="MPDD(m=4)"), e.ConfigError, "did you mean mpdd:m=400?"),
    "another parameter": case(
        lambda: simulated(codec="mpdd:n=4"), e.ConfigError, "no parameter 'n'", "m, bits, family"
    ),
    "no m": case(lambda: simulated(codec="mpdd"), e.ConfigError, "needs m", "mpdd:m="),
    "m of 0": case(lambda: fm.MPDD(m=0), e.CodecError, "m = 0", "from 1 to 2^31"),
    "another number of bits": case(lambda: fm.MPDD(m=4, bits=3), e.CodecError, "bits = 3", "32, 16, 8, 4, 1"),
    "a class": case(lambda: simulated(codec=fm.MPDD), e.CodecError, "MPDD is a class", "MPDD(m=…)"),
    "a number": case(lambda: simulated(codec=400), e.CodecError, "codec = 400", "MPDD(m=400)"),
    "more directions than coordinates": case(
        lambda: simulated(codec=fm.MPDD(m=4000, family="hadamard")), e.ConfigError, "m = 4000", "lower m"
    ),
    "a file that is missing": case(
        lambda: simulated(codec="nofile.py:Mine:m=3"), e.ConfigError, "no file nofile.py", "where paths begin"
    ),
    "a path to something else": case(
        lambda: simulated(codec="torch.nn:Linear"), e.ConfigError, "torch.nn:Linear", "derives from fedmpdd.Codec"
    ),
    "keys in two places": case(
        lambda: simulated(codec="mpdd:m=4:keys=shared", keys="partitioned"),
        e.ConfigError,
        "keys = 'partitioned'",
        "the codec says keys = 'shared'",
    ),
    "noise without a clip": case(
        lambda: simulated(codec="mpdd:m=4", noise_multiplier=1.0), e.ConfigError, "noise_multiplier = 1.0", "set clip"
    ),
}

FOLDERS = {
    "another step size": case(lambda: again({"lr": 0.3}), e.RunError, "lr: 0.1 → 0.3", "choose another folder"),
    "another codec": case(lambda: again({"codec": "mpdd:m=3"}), e.RunError, "fedsgd → mpdd", "choose another folder"),
    "fewer rounds": case(lambda: again({"rounds": 2}), e.RunError, "rounds = 2", "has 3 already"),
    "another loss": case(
        lambda: again({}, regression(metrics={"l1": functional.l1_loss})), e.RunError, "metrics", "another folder"
    ),
    "other examples": case(
        lambda: again({}, fm.Task(network(), fm.partition((X, Y), 8), (X, Y), loss=functional.mse_loss)),
        e.RunError,
        "other examples",
        "choose another folder",
    ),
    "another model": case(
        lambda: again({}, regression(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))),
        e.RunError,
        "another model",
        "choose another folder",
    ),
    "a history of an empty folder": case(
        lambda: fm.History.read(tempfile.mkdtemp()), e.RunError, "is not a run", "no config.json"
    ),
    "a history made of a folder": case(lambda: fm.History(Path("runs")), e.RunError, "'runs'", "History.read(folder)"),
}

COMPARISONS = {
    "no codec": case(lambda: compared([]), e.ConfigError, "nothing to compare", "name codecs"),
    "one codec without a list": case(lambda: compared(fm.FedSGD()), e.ConfigError, "codecs = FedSGD()", "a list"),
    "words in one text": case(lambda: compared("fedsgd,mpdd:m=4"), e.ConfigError, "expected a list of codecs"),
    "a codec twice": case(lambda: compared([fm.FedSGD(), "fedsgd"]), e.ConfigError, "the same codec", "leave one"),
    "no seeds": case(lambda: compared(seeds=0), e.ConfigError, "seeds = 0", "1 or more"),
    "a seed twice": case(lambda: compared(seeds=[1, 1]), e.ConfigError, "seeds = [1, 1]", "different"),
    "a target of NaN": case(lambda: compared(target=math.nan), e.ConfigError, "target nan", "expected a number"),
    "a target in percent": case(
        lambda: compared(task=fm.Task(network(2), fm.partition((X, CLASSES), 4), (X, CLASSES)), target=80),
        e.ConfigError,
        "target 80",
        "up to 1",
    ),
    "a budget in words": case(lambda: compared(budget="1MB"), e.ConfigError, "budget = '1MB'", "1_000_000 bytes"),
    "a stop at no target": case(lambda: compared(stop_at_target=True), e.ConfigError, "stop_at_target", "target=0.8"),
    "a baseline that is not compared": case(
        lambda: compared(baseline=fm.MPDD(m=7)), e.ConfigError, "mpdd:m=7", "add it to them"
    ),
    "a setting misspelled": case(lambda: compared(round=3), e.ConfigError, "round is no setting", "rounds"),
    "a page in a folder that is missing": case(
        lambda: compared(("fedsgd",)).report("/nowhere/page.html"),
        e.InputError,
        "does not exist",
        "choose another place",
    ),
}

LOOPS = {
    "gradients that are None": case(
        lambda: fm.torch.Client(network(), fm.MPDD(m=8)).frame(), e.GradientError, "no gradient", "loss.backward()"
    ),
    "gradients that are NaN": case(spoiled_frame, e.GradientError, "nan", "finite"),
    "a frozen model": case(lambda: fm.torch.Client(frozen(), fm.MPDD(m=8)), e.ConfigError, "requires_grad", "unfreeze"),
    "a codec in words": case(
        lambda: fm.torch.Client(network(), "mpdd:m=8"),
        e.CodecError,
        "'mpdd:m=8'",
        "expected an object",
    ),
    "a model's class": case(lambda: fm.torch.Client(nn.Linear, fm.MPDD(m=8)), e.ConfigError, "torch.nn.Module"),
    "names and parameters": case(
        lambda: fm.torch.Client(network().named_parameters(), fm.MPDD(m=8)),
        e.ConfigError,
        "model.parameters()",
    ),
    "a codec of losses": case(
        lambda: fm.torch.Client(network(), DeComFL(m=4)), e.CodecError, "losses", "another codec"
    ),
    "a key below 0": case(lambda: client().frame(-1), e.KeyRangeError, "seed -1", "0 to 2^64"),
    "no key where keys are assigned": case(lambda: client(assigned_keys=True).frame(), e.CodecError, "pass the key"),
    "a round below 0": case(lambda: client().frame(1, round_number=-1), e.CodecError, "round_number = -1", "from 0"),
    "no frames": case(lambda: server().step([]), e.CodecError, "no frames", "no step"),
    "one frame without a list": case(lambda: server().step(client().frame()), e.CodecError, "expected a list"),
    "frames that are words": case(lambda: server().step(["abc"]), e.MagicError, "'abc'", "expected bytes"),
    "a frame twice": case(lambda: twice(client().frame()), e.CodecError, "frames 0 and 1 are the same", "keep one"),
    "a frame that was cut": case(
        lambda: server().step([client().frame()[:-3]]), e.FrameLengthError, "45 bytes", "ask for it again"
    ),
    "a frame that is damaged": case(
        lambda: server().step([client().frame()[:-4] + bytes(4)]), e.ChecksumError, "damaged", "ask for it again"
    ),
    "a frame of another codec": case(
        lambda: server(fm.MPDD(m=9)).step([client().frame()]), e.SessionMismatchError, "m=9", "the same codec, model"
    ),
    "a frame of another model": case(
        lambda: server(outputs=2).step([client().frame()]), e.SessionMismatchError, "d = 146", "the same codec, model"
    ),
    "a frame of another round": case(
        lambda: server(fm.Peaks(m=2, group=8, grows_to=8, grows_after=4)).step(
            [client(fm.Peaks(m=2, group=8, grows_to=8, grows_after=4)).frame(1)], round_number=50
        ),
        e.SessionMismatchError,
        "both sides must use the same",
    ),
    "keys that nobody assigned": case(
        lambda: server().step([client().frame(5)], keys=[5]), e.CodecError, "keys came", "leave keys out"
    ),
    "another key": case(
        lambda: server(assigned_keys=True).step([client(assigned_keys=True).frame(5)], keys=[6]),
        e.ChecksumError,
        "another key",
    ),
    "too many weights": case(
        lambda: server().step([client().frame()], weights=[1, 2]), e.CodecError, "weights of shape [2]", "needs one"
    ),
    "weights as one number": case(
        lambda: server().step([client().frame()], weights=1), e.CodecError, "weights = 1", "one of each frame"
    ),
    "keys as one number": case(
        lambda: server(assigned_keys=True).step([client(assigned_keys=True).frame(5)], keys=5),
        e.CodecError,
        "keys = 5",
        "one of each frame",
    ),
    "an optimiser of another model": case(
        lambda: stepped_with(torch.optim.SGD(network().parameters(), lr=0.1)), e.ConfigError, "0.weight", "this model"
    ),
    "an optimiser's class": case(lambda: stepped_with(torch.optim.Adam), e.ConfigError, "torch.optim.Adam(model."),
    "an optimiser that asks for the loss again": case(
        lambda: stepped_with(torch.optim.LBFGS(network().parameters())), e.ConfigError, "LBFGS", "one gradient"
    ),
    "a hook of words": case(lambda: fm.torch.ddp_hook("mpdd:m=4"), e.CodecError, "'mpdd:m=4'", "MPDD(m=400)"),
    "a hook of losses": case(lambda: fm.torch.ddp_hook(DeComFL(m=4)), e.CodecError, "losses", "another codec"),
    "norms of no model": case(lambda: fm.torch.replace_batch_norm("net"), e.ConfigError, "'net'", "Module"),
    "norms of no groups": case(
        lambda: fm.torch.replace_batch_norm(nn.BatchNorm1d(4), groups=0), e.ConfigError, "groups = 0", "1 or more"
    ),
}

OWN_CODECS = {
    "no codec at all": case(lambda: fm.register(3), e.CodecError, "came with 3", "derives from fedmpdd.Codec"),
    "a name that is taken": case(lambda: fm.register(own_codec(name="mpdd")), e.CodecError, "'mpdd'", "change it"),
    "a number of the package": case(lambda: fm.register(own_codec(code=5)), e.CodecError, "number 5", "change it"),
    "a number that is not a user's": case(lambda: fm.register(own_codec(code=90)), e.CodecError, "90", "128 to 255"),
    "a number beyond a byte": case(lambda: fm.register(own_codec(code=300)), e.CodecError, "300", "128 to 255"),
    "a number in words": case(lambda: fm.register(own_codec(code="200")), e.CodecError, "'200'", "128 to 255"),
    "a name with a colon": case(lambda: fm.register(own_codec(name="a:b")), e.CodecError, "'a:b'", "without colon"),
    "updates of another type": case(
        lambda: with_codec(_encode=lambda *_: None), e.CodecCheckError, "_encode gives a NoneType", "expected a tuple"
    ),
    "updates of another length": case(
        lambda: with_codec(_encode=lambda self, backend, rows, keys: (rows[:, :3],)),
        e.CodecCheckError,
        "_encode gives [(8, 3)]",
        "sections says [(8, 129)]",
    ),
    "updates of other numbers": case(
        lambda: with_codec(_encode=lambda self, backend, rows, keys: (rows.astype(np.float64),)),
        e.CodecCheckError,
        "float64",
        "sections says float32",
    ),
    "an exception while encoding": case(
        lambda: with_codec(_encode=failing), e.CodecCheckError, "_encode raises KeyError: 'speaker'", "in line"
    ),
    "an estimate of another length": case(
        lambda: with_codec(_decode_sum=lambda *_: np.zeros(3, np.float32)), e.CodecCheckError, "[3]", "float32 [129]"
    ),
    "an estimate of other numbers": case(
        lambda: with_codec(_decode_sum=lambda *_: np.zeros(129)), e.CodecCheckError, "float64", "float32 [129]"
    ),
    "an estimate that is not finite": case(
        lambda: with_codec(_decode_sum=lambda *_: np.full(129, np.nan, np.float32)), e.CodecError, "beyond float32"
    ),
    "a frame of another length": case(
        lambda: client(own_codec(_encode=lambda self, backend, rows, keys: (rows[:, :3],))()).frame(),
        e.CodecCheckError,
        "[(1, 3)]",
        "[(1, 129)]",
    ),
    "a check of a class": case(
        lambda: fm.testing.check_codec(fm.MPDD),
        e.CodecError,
        "MPDD is a class",
        "MPDD(m=…)",
    ),
    "a check of no coordinates": case(
        lambda: fm.testing.check_codec(fm.MPDD(m=4), d=0), e.CodecCheckError, "d = 0", "give another d="
    ),
    "a check of too few coordinates": case(
        lambda: fm.testing.check_codec(fm.MPDD(m=400, family="hadamard")), e.CodecCheckError, "lower m", "another d="
    ),
}

TABLE = {
    f"{part}: {name}": one
    for part, cases in {
        "data": DATA,
        "partition": PARTITIONS,
        "model": MODELS,
        "loss and metrics": LOSSES,
        "settings": SETTINGS,
        "codec": CODEC_WORDS,
        "folder": FOLDERS,
        "compare": COMPARISONS,
        "torch": LOOPS,
        "own codec": OWN_CODECS,
    }.items()
    for name, one in cases.items()
}


@pytest.mark.parametrize(("use", "error", "words"), TABLE.values(), ids=list(TABLE))
def test_a_wrong_use_is_one_line_that_says_what_to_do(
    use: Callable[[], object], error: type[e.FedmpddError], words: tuple[str, ...]
) -> None:
    with pytest.raises(e.FedmpddError) as caught:
        use()
    message = str(caught.value)
    assert type(caught.value) is error, message
    assert "\n" not in message
    assert len(message) <= LONGEST, message
    for word in words:
        assert word in message, message


def test_a_codec_that_fails_its_checks_has_a_line_for_each() -> None:
    short = own_codec(_encode=lambda self, backend, rows, keys: (rows[:, :3],))()
    with pytest.raises(e.CodecCheckError, match=r"fails \d+ of 15 checks at d = 200:\n") as caught:
        fm.testing.check_codec(short)
    assert all(len(line) <= LONGEST for line in str(caught.value).splitlines())
