"""One call from a task and a codec to a history."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from fedmpdd.codecs import Codec
from fedmpdd.display import round_display
from fedmpdd.errors import ConfigError
from fedmpdd.imports import import_path_of, is_named, name_object, quote
from fedmpdd.runs import driver
from fedmpdd.runs.folders import Run
from fedmpdd.runs.history import History
from fedmpdd.server.step import OPTIMISERS, SCHEDULES, Schedule, StepRule
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.engine import federation_of, make_federation
from fedmpdd.tasks.data import Dataset
from fedmpdd.tasks.losses import CrossEntropy
from fedmpdd.tasks.metrics import Accuracy
from fedmpdd.tasks.task import Task
from fedmpdd.torch.step import make_optimiser
from fedmpdd.uplink.codec_config import CodecConfig, parse_codec

Factory = Callable[[Iterable[nn.Parameter]], Optimizer]


def simulate(
    task: Task,
    codec: Codec | str | Sequence[Codec | str],
    *,
    rounds: int = 100,
    per_round: int | None = None,
    batch: int = 1,
    lr: float | None = None,
    seed: int = 17,
    server: str | StepRule | Factory = "sgd",
    local_optimiser: str | Factory | None = None,
    schedule: str | Schedule | Callable[[int], float] = "constant",
    out: str | Path | None = None,
    callbacks: Sequence[driver.Callback] = (),
    progress: bool = True,
    **settings: Any,
) -> History:
    """Train a task, all clients in this process, and return how it went.

    Everything random follows from the task and the settings: the same call gives the same model.

    Args:
        task: model, loss, metrics and the clients' data.
        codec: what clients send, an object such as `MPDD(m=400)` or words such as "mpdd:m=400". A list of these is for
            clients with different links: client i has number i mod their count (docs/links.md).
        rounds: how many.
        per_round: clients that take part in a round; all of them by default.
        batch: examples of each client's minibatch.
        lr: the server's step size, 0.1 by default; that of the optimiser if `server` makes one.
        seed: of everything random but the split of the examples.
        server: how the server steps: "sgd", "momentum", "adam", a StepRule, or a function from parameters to an
            optimiser of torch.optim.
        local_optimiser: likewise for clients, who then send how far they came; `local_lr` is its step size, or that of
            plain descent.
        schedule: "constant", "cosine" or "linear" over all rounds, a Schedule, or a function from the number of a round
            to a factor of the step size.
        out: a run folder, which is gone on with if it is there: with the same settings, and as many rounds or more.
            None to keep nothing on the disk.
        callbacks: see `fedmpdd.callbacks`.
        progress: whether to show a bar on standard error.
        settings: any other key of a config, docs/federation.md: local_steps=5, evaluate_every=10, device="cuda", …; and
            the keys beside a codec: keys="partitioned", error_feedback=True, clip=1.0, noise_multiplier=2.0.

    Returns:
        The history. Its `model` is a copy of the task's model with the trained parameters.

    Example:
        >>> history = simulate(task, MPDD(m=8), rounds=3, batch=4, progress=False)
        >>> len(history)
        3

    """
    config = run_config(
        task,
        codec,
        rounds=rounds,
        per_round=per_round,
        batch=batch,
        lr=lr,
        seed=seed,
        server=server,
        local_optimiser=local_optimiser,
        schedule=schedule,
        **settings,
    )
    return train(config, task=task, out=out, callbacks=callbacks, progress=progress)


def train(
    config: RunConfig,
    *,
    task: Task | Dataset | None = None,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    callbacks: Sequence[driver.Callback] = (),
    progress: bool = True,
) -> History:
    """Train what a config says, all clients in this process, and return how it went.

    `simulate` makes a config of its arguments and calls this. So does everything that trains the paper's tables.

    Args:
        config: of `load_config`, or of `run_config`.
        task: what the config names as its dataset and model, where it is loaded already; None to load it.
        out: a run folder, which is gone on with if it is there; None to keep nothing on the disk.
        data_dir: where the datasets of this package are; the folder in FEDMPDD_DATA by default.
        callbacks: see `fedmpdd.callbacks`.
        progress: whether to show a bar on standard error.

    Returns:
        The history. Its `model` has the trained parameters.

    Example:
        >>> config = load_config("demo", ["rounds=2", "clients=4", "clients_per_round=2"])
        >>> len(train(config, progress=False))
        2

    """
    if not isinstance(config, RunConfig):
        raise ConfigError(f'config = {quote(config)}: expected one of load_config, like fm.load_config("demo")')
    driver.check_callbacks(callbacks)
    folder, data = folder_of(out), folder_of(data_dir, "data_dir")
    run = None if folder is None else Run.at(folder, config, data, task=task)
    if run is None:
        federation = make_federation(config, data) if task is None else federation_of(config, task)
    else:
        federation = run.federation
    with ExitStack() as stack:
        beside = list(callbacks)
        if progress:
            name = config.codec_words if folder is None else folder.name
            start = stack.enter_context(round_display())
            beside.insert(0, driver.progress(start(name, config.rounds, federation.next_round, config.score)))
        if run is None:
            history = driver.train(driver.Training(federation), beside)
        else:
            run.train(callbacks=beside)
            history = run.history
    history.model = federation.trained_model
    return history


def run_config(
    task: Task,
    codec: Codec | str | Sequence[Codec | str],
    *,
    rounds: int = 100,
    per_round: int | None = None,
    batch: int = 1,
    lr: float | None = None,
    server: str | StepRule | Factory = "sgd",
    local_optimiser: str | Factory | None = None,
    schedule: str | Schedule | Callable[[int], float] = "constant",
    **settings: Any,
) -> RunConfig:
    """Return the config of a call of `simulate`: what a run folder would hold.

    Args:
        task: see `simulate`, as for the others.
        codec: what clients send.
        rounds: how many.
        per_round: clients that take part in a round.
        batch: examples of each client's minibatch.
        lr: the server's step size.
        server: how the server steps.
        local_optimiser: how clients step.
        schedule: of the step size.
        settings: any other key of a config.

    Returns:
        The config. What has no import path stands in it by a name that this process alone knows.

    Example:
        >>> run_config(task, "mpdd:m=8", rounds=3).codec.name
        'mpdd'

    """
    if not isinstance(task, Task):
        raise ConfigError(
            f"task = {quote(task)}: expected fm.Task(model=…, loss=…, clients=…, test=…), which holds model and data"
        )
    beside = {key: settings.pop(key) for key in list(settings) if key in CodecConfig.model_fields and key != "name"}
    lr = plain(lr)
    if isinstance(codec, Codec | str):
        table = _codec_table(codec)
    else:
        table, settings["links"] = _link_tables(codec)
    for key in beside:
        if key in table and table[key] != beside[key]:
            raise ConfigError(f"{key} = {quote(beside[key])}, and the codec says {key} = {table[key]!r}; keep one")
    unknown = [key for key in settings if key not in RunConfig.model_fields or key in _OF_TASK]
    for key in unknown:
        raise ConfigError(_unknown(key))
    rule, base_lr = _server(server)
    if lr is not None and base_lr is not None and lr != base_lr:
        raise ConfigError(f"lr = {lr}, and the optimiser of server= was made with lr = {base_lr}; give it in one place")
    step_size = base_lr if lr is None else lr
    values = {
        **_described(task),
        "clients": task.clients.partition.clients,
        "clients_per_round": task.clients.partition.clients if per_round is None else per_round,
        "rounds": rounds,
        "batch": batch,
        "server": rule,
        "local_optimiser": None if local_optimiser is None else object_named(local_optimiser),
        "schedule": _schedule(schedule),
        "codec": {**table, **beside},
        **({} if step_size is None else {"lr": step_size}),
        **settings,
    }
    return parse_config({key: plain(value) for key, value in values.items()})


def plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python, which a config can hold; and anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def folder_of(path: Any, name: str = "out") -> Path | None:
    """Return a folder as a path, or raise ConfigError for what is none."""
    if path is not None and not isinstance(path, str | Path):
        raise ConfigError(f'{name} = {quote(path)}: expected a folder, like "runs/first", or None')
    return None if path is None else Path(path)


_OF_TASK = ("dataset", "model", "loss", "metrics", "batch_norm", "clients", "clients_per_round", "partition", "codec")


def _described(task: Task) -> dict[str, Any]:
    """What a config says of a task: names by which its parts are found again, or known to be of this process."""
    metrics = None
    if list(task.metrics) != ["accuracy"] or not isinstance(task.metrics["accuracy"], Accuracy):
        metrics = [f"{name}={object_named(metric.function)}" for name, metric in task.metrics.items()]
    return {
        "dataset": name_object(task),
        "model": object_named(task.model),
        "loss": "cross-entropy" if isinstance(task.loss, CrossEntropy) else object_named(task.loss.function),
        "metrics": metrics,
        "batch_norm": task.batch_norm,
    }


def object_named(value: Any) -> str:
    """Return what a config calls something of a user's: its import path, or a name that this process alone knows."""
    if isinstance(value, str):
        return value
    path = import_path_of(value) if hasattr(value, "__qualname__") and hasattr(value, "__module__") else None
    return path or name_object(value)


def _codec_table(codec: Codec | str) -> dict[str, Any]:
    config = parse_codec(codec) if isinstance(codec, str) else CodecConfig.of(codec)
    return config.model_dump(mode="json", exclude_unset=True)


def _link_tables(codecs: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The table of a config for all clients, which is that of the first link, and those of the links."""
    tables = [_codec_table(codec) for codec in (codecs if isinstance(codecs, list | tuple) else [codecs])]
    if not tables:
        raise ConfigError(f"codec = {quote(codecs)}: expected a codec, or a list with a codec for every link")
    return tables[0], tables


def _server(server: Any) -> tuple[dict[str, Any], float | None]:
    """The table of a config, and the step size that an optimiser was made with."""
    if isinstance(server, StepRule):
        return asdict(server), None
    if isinstance(server, str):
        if server not in OPTIMISERS and not is_named(server):
            raise ConfigError(
                f"server = {server!r}: expected {', '.join(OPTIMISERS)}, a path such as torch.optim:AdamW, or a "
                "function from parameters to an optimiser"
            )
        return {"optimiser": server}, None
    trial = make_optimiser(server, [nn.Parameter(torch.zeros(1))], "server")
    if "lr" not in trial.defaults:
        raise ConfigError(
            f"server makes a {type(trial).__name__} without lr, and the server's step size is set by it; use one that "
            "takes lr, like torch.optim.Adam"
        )
    return {"optimiser": object_named(server)}, float(trial.defaults["lr"])


def _schedule(schedule: Any) -> dict[str, Any]:
    if isinstance(schedule, Schedule):
        return asdict(schedule)
    if not isinstance(schedule, str) and not callable(schedule):
        raise ConfigError(
            f"schedule = {quote(schedule)}: expected {', '.join(SCHEDULES)}, a Schedule, or a function from the number "
            "of a round to a factor of lr"
        )
    return {"kind": object_named(schedule)}


_ELSEWHERE = {  # what other libraries call a setting, and what it is called here
    "clients_per_round": "per_round",
    "learning_rate": "lr",
    "batch_size": "batch",
    "num_rounds": "rounds",
    "epochs": "local_epochs",
    "num_epochs": "local_epochs",
    "optimizer": "server or local_optimiser",
    "optimiser": "server or local_optimiser",
    "scheduler": "schedule",
}


def _unknown(key: str) -> str:
    if key in _OF_TASK and key not in _ELSEWHERE:
        return f"{key} is the task's to say, or an argument of its own; see fm.Task and fm.partition"
    arguments = ("rounds", "per_round", "batch", "lr", "server", "schedule", "callbacks", "progress", "out")
    known = [*arguments, *(set(RunConfig.model_fields) - set(_OF_TASK)), *CodecConfig.model_fields]
    close = [_ELSEWHERE[key]] if key in _ELSEWHERE else difflib.get_close_matches(key, sorted(known), 1)
    return f"{key} is no setting of a run{f'; did you mean {close[0]}?' if close else ''} (docs/federation.md has all)"
