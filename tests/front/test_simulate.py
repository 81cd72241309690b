"""The front door: a task and a codec to a history, whatever the task is made of."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmpdd as fm
from fedmpdd.errors import ConfigError, FedmpddError, RunError
from fedmpdd.front import simulate
from fedmpdd.front.callbacks import EarlyStopping
from fedmpdd.runs.driver import AfterRound, Callback
from fedmpdd.runs.history import History
from fedmpdd.tasks.task import Task, partition
from tests.tasks.own import FEATURES, class_data, network, regression, regression_data, with_dropout

SETTINGS: dict[str, Any] = {"rounds": 6, "per_round": 4, "batch": 5, "evaluate_every": 3, "progress": False}
CODEC = fm.MPDD(m=16, bits=1, family="hadamard")


def r2(outputs: Tensor, targets: Tensor) -> float:
    return float(1 - ((outputs - targets) ** 2).sum() / ((targets - targets.mean()) ** 2).sum())


def parameters(history: History) -> np.ndarray[Any, Any]:
    model: Any = history.model
    return np.concatenate([value.detach().numpy().ravel() for value in model.parameters()])


def test_a_regression_learns_and_says_how_well() -> None:
    task = regression(metrics={"r2": r2})
    history = simulate(task, fm.FedSGD(), **{**SETTINGS, "rounds": 60, "per_round": 8}, lr=0.3)
    assert len(history) == 60
    assert history.score == "r2"
    first, last = (history.evaluations[number].metrics["r2"] or 0.0 for number in (0, -1))
    assert last > 0.9 > first
    inputs, targets = regression_data(64, seed=1)
    assert r2(history.model(inputs).detach(), targets) == pytest.approx(last, abs=1e-5)


def test_the_same_call_gives_the_same_model_and_another_seed_another() -> None:
    first, again, other = (simulate(regression(), CODEC, **SETTINGS, seed=seed) for seed in (1, 1, 2))
    assert (parameters(first) == parameters(again)).all()
    assert (parameters(first) != parameters(other)).any()


@pytest.mark.parametrize("codec", [CODEC, fm.Peaks(m=2, group=32), "mpdd:m=8:keys=partitioned", "qsgd:bits=4"], ids=str)
def test_codecs_are_objects_or_words(codec: Any) -> None:
    history = simulate(regression(), codec, **SETTINGS)
    assert math.isfinite(history.rounds[-1].loss or math.nan)
    assert history.last.uplink_bytes > 0


def test_dropout_is_on_while_training_and_the_same_however_gradients_are_taken() -> None:
    results = {how: simulate(regression(with_dropout()), CODEC, **SETTINGS, gradients=how) for how in ("vmap", "loop")}
    np.testing.assert_allclose(parameters(results["vmap"]), parameters(results["loop"]), rtol=1e-4, atol=1e-6)
    without = simulate(regression(with_dropout().eval()), CODEC, **SETTINGS)  # eval mode of the object is not kept
    assert (parameters(without) == parameters(results["vmap"])).all()
    plain = nn.Sequential(*(child for child in with_dropout() if not isinstance(child, nn.Dropout)))
    assert not np.allclose(parameters(simulate(regression(plain), CODEC, **SETTINGS)), parameters(results["vmap"]))


def test_dropout_does_not_depend_on_who_is_in_a_vectorised_call(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(regression(with_dropout()), CODEC, **SETTINGS)
    monkeypatch.setattr("fedmpdd.simulation.clients.CHUNK_CLIENTS", 3)
    parts = simulate(regression(with_dropout()), CODEC, **SETTINGS)
    np.testing.assert_allclose(parameters(whole), parameters(parts), rtol=1e-4, atol=1e-6)


def test_frozen_parameters_cost_no_bytes() -> None:
    model: Any = network()
    model[0].requires_grad_(False)
    history = simulate(regression(model), fm.FedSGD(), **SETTINGS)
    assert history.last.payload_bytes == 6 * 4 * 4 * 17
    assert torch.equal(history.model[0].weight, model[0].weight)
    assert not torch.equal(history.model[2].weight, model[2].weight)


OPTIMISERS: dict[str, Any] = {
    "words": {"server": "adam", "lr": 0.01},
    "torch": {"server": lambda parameters: torch.optim.AdamW(parameters, lr=0.01)},
    "an import path": {"server": "torch.optim:RMSprop(alpha=0.9)", "lr": 0.01},
    "cosine": {"schedule": "cosine"},
    "a function": {"schedule": lambda k: 0.5**k},
    "local steps": {"local_steps": 3, "local_lr": 0.1, "lr": 1.0},
    "local epochs": {"local_epochs": 2, "local_lr": 0.1, "lr": 1.0},
    "local adam": {"local_steps": 3, "local_optimiser": lambda p: torch.optim.Adam(p, lr=0.01), "lr": 1.0},
    "local adam, its step size apart": {
        "local_steps": 3,
        "local_optimiser": "torch.optim:Adam",
        "local_lr": 0.01,
        "lr": 1.0,
    },
    "fedprox": {"local_steps": 3, "local_lr": 0.1, "proximal": 0.5, "lr": 1.0},
}


@pytest.mark.parametrize("settings", OPTIMISERS.values(), ids=list(OPTIMISERS))
def test_servers_and_clients_step_as_they_are_asked_and_go_on_from_the_disk(settings: Any, tmp_path: Path) -> None:
    class Stop(Callback):
        def after_round(self, training: Any, metrics: Any) -> None:
            training.is_paused = metrics.round == 2

    whole = simulate(regression(), fm.FedSGD(), **{**SETTINGS, **settings})
    before = regression_loss(network())
    assert (whole.evaluations[-1].loss_of_test or math.inf) < before
    task = regression()
    simulate(task, fm.FedSGD(), **{**SETTINGS, **settings}, out=tmp_path / "run", callbacks=[Stop()])
    resumed = simulate(task, fm.FedSGD(), **{**SETTINGS, **settings}, out=tmp_path / "run")
    assert (parameters(resumed) == parameters(whole)).all()


def regression_loss(model: nn.Module) -> float:
    inputs, targets = regression_data(64, seed=1)
    return nn.functional.mse_loss(model(inputs), targets).item()


def test_local_epochs_see_every_example_and_clients_of_few_do_less() -> None:
    sizes = (10, 20, 5)
    clients = [regression_data(size, seed=size) for size in sizes]
    task = Task(nn.Linear(FEATURES, 1), clients, regression_data(8), loss=nn.functional.mse_loss)
    seen: list[int] = []

    def count(training: Any, metrics: Any) -> None:
        batches = training.federation._plan_of(metrics.round).batches
        seen.extend(int((rows >= 0).sum()) for rows in batches)

    settings = {**SETTINGS, "per_round": 3, "rounds": 1}
    simulate(task, fm.FedSGD(), **settings, local_epochs=2, local_lr=0.1, lr=1.0, callbacks=[AfterRound(count)])
    assert seen == [2 * size for size in sizes]


def test_fedprox_holds_clients_back() -> None:
    def moved(proximal: float) -> float:
        settings = {**SETTINGS, "rounds": 1}
        history = simulate(
            regression(), fm.FedSGD(), **settings, local_steps=10, local_lr=0.3, lr=1.0, proximal=proximal
        )
        start = np.concatenate([value.detach().numpy().ravel() for value in network().parameters()])
        return float(np.linalg.norm(parameters(history) - start))

    assert moved(2.0) < 0.7 * moved(0.0)


def next_token() -> Task:
    torch.manual_seed(0)
    tokens = torch.arange(40).repeat(4)[: 16 * 8].view(16, 8) % 10
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10), Swapped())
    data = (tokens[:, :-1], tokens[:, 1:])
    return Task(model, partition(data, 4), data)


class Swapped(nn.Module):
    """Positions last, as cross-entropy has them."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits.transpose(1, 2)


def segmentation() -> Task:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (32, 1, 6, 6), dtype=torch.uint8)
    masks = (images[:, 0] > 127).to(torch.uint8)
    return Task(nn.Conv2d(1, 2, 1), partition((images, masks), 4), (images, masks))


def multi_label() -> Task:
    inputs, _ = regression_data()
    data = (inputs, (inputs[:, :3] > 0).float())
    loss = nn.functional.binary_cross_entropy_with_logits
    return Task(nn.Linear(FEATURES, 3), partition(data, 4), data, loss=loss)


def own_batches() -> Task:
    """A loss of model and batch, examples as dicts."""
    inputs, targets = regression_data()
    data = {"x": inputs, "y": targets}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    def error(model: nn.Module, batch: Any) -> float:
        return float((model(batch["x"]) - batch["y"]).abs().mean())

    return Task(network(), partition(data, 4), data, loss=loss, metrics={"-error": error})


TASKS = {
    "classes": lambda: Task(network(2), partition(class_data(), 4, "dirichlet"), class_data(32)),
    "next token": next_token,
    "segmentation": segmentation,
    "multi-label": multi_label,
    "dicts": own_batches,
}


@pytest.mark.parametrize("make", TASKS.values(), ids=list(TASKS))
@pytest.mark.parametrize("client", ["backward", "forward"])
def test_targets_of_every_shape_are_learned(make: Any, client: str) -> None:
    settings = {**SETTINGS, "rounds": 12, "batch": 2}
    codec = "mpdd:m=64" if client == "forward" else "fedsgd"
    history = simulate(make(), codec, **settings, client=client, lr=0.3)
    assert history.rounds[-1].loss is not None
    assert history.evaluations[-1].loss_of_test < history.evaluations[0].loss_of_test  # type: ignore[operator]


def test_callbacks_hear_of_every_round() -> None:
    heard: list[int] = []
    simulate(regression(), CODEC, **SETTINGS, callbacks=[AfterRound(lambda _, metrics: heard.append(metrics.round))])
    assert heard == list(range(6))


def test_a_training_ends_when_nothing_gets_better() -> None:
    stop = EarlyStopping(patience=3, least=10.0)
    settings = {**SETTINGS, "rounds": 40, "evaluate_every": 2}
    assert len(simulate(regression(), CODEC, **settings, callbacks=[stop])) == 8
    assert stop.reason == "nothing better in 3 evaluations"
    assert len(simulate(regression(), CODEC, **settings, callbacks=[EarlyStopping(patience=20)])) == 40
    with pytest.raises(ConfigError, match="patience = 0"):
        EarlyStopping(patience=0)


def test_the_front_door_is_the_package_itself() -> None:
    for name in ("History", "Task", "callbacks", "partition", "simulate", "testing", "torch"):
        assert name in dir(fm)
        assert getattr(fm, name)
    with pytest.raises(AttributeError, match="no attribute 'simulation_'"):
        fm.simulation_  # noqa: B018


def test_a_folder_is_a_run_like_any_other(tmp_path: Path) -> None:
    history = simulate(regression(metrics={"r2": r2}), CODEC, **SETTINGS, out=tmp_path / "run")
    from fedmpdd.runs.history import read_run

    record = read_run(tmp_path / "run")
    assert record.history.evaluations == history.evaluations
    assert record.history.score == "r2"


def test_a_folder_is_gone_on_with_by_the_same_settings_and_more_rounds(tmp_path: Path) -> None:
    whole = simulate(regression(), CODEC, **{**SETTINGS, "rounds": 9})
    simulate(regression(), CODEC, **SETTINGS, out=tmp_path / "run")
    longer = simulate(regression(), CODEC, **{**SETTINGS, "rounds": 9}, out=tmp_path / "run")
    assert (parameters(longer) == parameters(whole)).all()
    for settings, word in (
        ({"lr": 0.2}, r"with other settings: lr: 0\.1 → 0\.2; choose another folder.*only rounds"),
        ({"rounds": 8}, r"rounds = 8, and .* has 9 already"),
        ({"schedule": "cosine", "rounds": 9}, r"schedule\.kind: constant → cosine, schedule\.rounds: 0 → 9"),
    ):
        with pytest.raises(RunError, match=word):
            simulate(regression(), CODEC, **{**SETTINGS, "rounds": 9, **settings}, out=tmp_path / "run")


BAD: dict[str, tuple[Any, str]] = {
    "an unknown setting": ({"local_step": 3}, "local_step is no setting of a run; did you mean local_steps"),
    "a setting of the task": ({"dataset": "mnist"}, "dataset is the task's to say"),
    "too many a round": ({"per_round": 9}, "clients_per_round = 9 of clients = 8 are 9; expected 1 to all"),
    "a batch that nobody has": ({"batch": 21}, "batch = 21 is more than client 0 holds"),
    "an unknown server": ({"server": "lion"}, "server = 'lion': expected sgd, momentum, adam"),
    "a server that is none": ({"server": lambda p: None}, "gives a NoneType"),
    "two step sizes": ({"server": lambda p: torch.optim.SGD(p, lr=0.1), "lr": 0.2}, "give it in one place"),
    "an unknown schedule": ({"schedule": "step"}, "'step': expected 'constant', 'cosine', 'linear'"),
    "a local optimiser that is none": (
        {"local_steps": 3, "local_optimiser": lambda p: 3},
        "local_optimiser gives a int",
    ),
    "a journal of torch's steps": (
        {"server": lambda p: torch.optim.SGD(p, lr=0.1), "journal": True},
        "who follows the model",
    ),
    "layers of another model": ({"gradients": "layers"}, 'gradients = "layers"'),
    "an unknown codec": ({"codec": "mpd"}, "mpd"),
}


@pytest.mark.parametrize(("settings", "message"), BAD.values(), ids=list(BAD))
def test_wrong_settings_are_refused_in_a_line(settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(regression(), settings.pop("codec", CODEC), **{**SETTINGS, **settings}, out=tmp_path / "run")
    assert isinstance(caught.value, FedmpddError)
    assert "\n" not in str(caught.value)


class Choosing(nn.Module):
    """A model that looks at its numbers, which no vectorised call can follow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs if float(outputs.detach().sum()) > 0 else -outputs


class Recurrent(nn.Module):
    """A model with a layer that PyTorch vectorises by a loop of its own, and warns of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.memory, self.out = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.memory(inputs[..., None])[0][:, -1])
        return outputs


@pytest.mark.parametrize("make", [Choosing, Recurrent])
def test_models_that_cannot_be_vectorised_go_client_by_client(make: Any) -> None:
    chosen, looped = (simulate(regression(make()), "mpdd:m=4", **SETTINGS, gradients=how) for how in ("auto", "loop"))
    assert (parameters(chosen) == parameters(looped)).all()


@pytest.mark.parametrize("frozen", [False, True])
def test_layers_are_left_where_they_do_not_do(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU "auto" begins with layers: with targets per pixel, or a frozen layer, it goes on without them."""
    from fedmpdd.simulation.config import RunConfig

    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Tanh(), nn.Conv2d(3, 2, 1))
    images = torch.randn(32, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    masks = (images[:, 0] > 0).long()
    if frozen:
        model, masks = nn.Sequential(*model, nn.Flatten(), nn.Linear(32, 2)), masks[:, 0, 0]
        model[0].requires_grad_(False)
    task = Task(model, partition((images, masks), 4), (images, masks))
    expected = simulate(task, "mpdd:m=4", **SETTINGS)
    monkeypatch.setattr(RunConfig, "gradient_method", "layers")
    assert (parameters(simulate(task, "mpdd:m=4", **SETTINGS)) == parameters(expected)).all()


def test_targets_that_are_left_out_count_in_no_loss_and_no_accuracy() -> None:
    tokens = torch.arange(40).repeat(4)[: 16 * 9].view(16, 9) % 10
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    padded = torch.cat([targets, torch.full((16, 8), -100)], dim=1)
    longer = torch.cat([inputs, torch.zeros(16, 8, dtype=torch.long)], dim=1)
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10), Swapped())
    settings = {**SETTINGS, "per_round": 4, "batch": 4, "rounds": 9}
    histories = [
        simulate(Task(model, partition(data, 4), data), fm.FedSGD(), **settings, lr=1.0)
        for data in ((inputs, targets), (longer, padded))
    ]
    for short, long in zip(*(history.evaluations for history in histories), strict=True):
        assert short.loss_of_test == pytest.approx(long.loss_of_test, rel=1e-4)
        assert short.accuracy == long.accuracy


def test_accuracy_is_a_word_beside_metrics_of_ones_own() -> None:
    def error(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.argmax(dim=1) != targets).float().mean())

    task = Task(
        network(2), partition(class_data(), 4), class_data(32), metrics={"error": error, "accuracy": "accuracy"}
    )
    tested = simulate(task, CODEC, **SETTINGS).evaluations[-1].metrics
    assert (tested["error"] or 0.0) + (tested["accuracy"] or 0.0) == pytest.approx(1)


def test_numbers_may_be_those_of_numpy(tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": np.int64(6), "seed": np.int64(17), "per_round": np.int32(4)}
    data = regression_data()
    task = Task(network(), partition(data, np.int64(8)), data, loss=nn.functional.mse_loss)  # type: ignore[arg-type]
    history = simulate(task, CODEC, **settings, lr=np.float64(0.1), out=tmp_path / "run")
    assert history.as_rows() == simulate(task, CODEC, **SETTINGS, lr=0.1).as_rows()


def test_a_folder_is_read_by_its_history(tmp_path: Path) -> None:
    history = simulate(regression(metrics={"r2": r2}), CODEC, **SETTINGS, out=tmp_path / "run")
    assert History.read(str(tmp_path / "run")).as_rows() == history.as_rows()
