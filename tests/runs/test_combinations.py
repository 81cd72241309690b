"""Settings that go together: each pair trains, ends in the same bits after a kill, and is replayed from its journal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedmpdd as fm
from fedmpdd.errors import ConfigError, JournalError, RunError
from fedmpdd.runs.folders import Run
from fedmpdd.runs.history import read_metrics
from fedmpdd.server import checkpoints
from fedmpdd.server.journal import JOURNAL, Journal, JournalReader
from fedmpdd.server.step import Schedule
from fedmpdd.simulation import RoundMetrics, parse_config
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.engine import federation_of
from fedmpdd.simulation.replay import replay
from tests.tasks import own
from tests.tasks.own import regression, with_batch_norm

BASE: dict[str, Any] = {
    "dataset": "tests.runs.test_combinations:plain",
    "model": "tests.tasks.own:network",
    "loss": "torch.nn.functional:mse_loss",
    "clients": 8,
    "clients_per_round": 4,
    "batch": 5,
    "lr": 0.05,
    "rounds": 7,
    "evaluate_every": 7,
    "checkpoint_every": 3,
    "device": "cpu",
}
MPDD: dict[str, Any] = {"codec": {"name": "mpdd", "m": 12}}
HADAMARD: dict[str, Any] = {"codec": {"name": "mpdd", "m": 12, "family": "hadamard"}}
DECOMFL: dict[str, Any] = {"codec": {"name": "decomfl", "m": 6}}
TOPK: dict[str, Any] = {"codec": {"name": "topk", "k": 8, "error_feedback": True}}
AVERAGED: dict[str, Any] = {
    "dataset": "tests.runs.test_combinations:averaged",
    "model": "tests.tasks.own:with_batch_norm",
    "batch_norm": "averaged",
}
ADAM: dict[str, Any] = {"local_optimiser": "torch.optim:Adam(lr=0.01)", "lr": 1.0}
MOMENTUM: dict[str, Any] = {"local_optimiser": "torch.optim:SGD(lr=0.002, momentum=0.9)", "lr": 1.0}
TOGETHER: dict[str, dict[str, Any]] = {
    "a journal and client memory": {**TOPK, "journal": True},
    "bundles down and client memory": {**TOPK, "downlink": "replay"},
    "bundles down without a journal": {**MPDD, "downlink": "replay", "journal": False},
    "bundles down, client memory and no journal": {**TOPK, "downlink": "replay", "journal": False},
    "a journal and averaged batch norm": {**MPDD, **AVERAGED, "journal": True},
    "forward mode and averaged batch norm": {**MPDD, **AVERAGED, "client": "forward"},
    "losses and averaged batch norm": {**DECOMFL, **AVERAGED, "downlink": "replay"},
    "forward mode and local steps": {**MPDD, "client": "forward", "local_steps": 3, "local_lr": 0.02, "lr": 1.0},
    "forward mode and local epochs": {**HADAMARD, "client": "forward", "local_epochs": 2, "local_lr": 0.02, "lr": 1.0},
    "forward mode and a local optimiser": {**MPDD, **ADAM, "client": "forward", "local_steps": 2},
    "losses and local epochs": {**DECOMFL, "local_epochs": 1, "local_lr": 0.01, "lr": 1.0, "journal": True},
    "losses and steps that do not divide m": {**DECOMFL, "local_steps": 4, "local_lr": 0.01, "lr": 1.0},
    "losses and more steps than directions": {**DECOMFL, "local_steps": 8, "local_lr": 0.01, "lr": 1.0},
    "losses and a local optimiser": {**DECOMFL, **ADAM, "local_steps": 3, "proximal": 0.1, "journal": True},
    "losses along directions of one's own": {"codec": {"name": "decomfl", "m": 6, "keys": "derived"}},
    "votes along directions of one's own": {"codec": {"name": "feedsign", "m": 4, "keys": "sent"}, "journal": True},
    "steps and epochs": {**MPDD, "local_epochs": 2, "local_steps": 3, "local_lr": 0.02, "lr": 1.0},
    "local steps of the server's size": {**MPDD, "local_steps": 3, "downlink": "replay"},
    "losses and steps of the server's size": {**DECOMFL, "local_steps": 3},
    "one step of a size of its own": {**MPDD, "local_lr": 0.02, "lr": 1.0},
    "one step of an optimiser": {**MPDD, **ADAM},
    "a proximal term and no steps": {**MPDD, "proximal": 0.5},
    "a cosine over all rounds": {**MPDD, "schedule": {"kind": "cosine"}, "journal": True},
    "a share of clients and their number": {**MPDD, "participation": 0.5},
}


def plain() -> fm.Task:
    return regression()


def averaged() -> fm.Task:
    return regression(with_batch_norm(), batch_norm="averaged")


class KilledError(Exception):
    """What ends a process in the middle of a round, as far as its files go."""


def kill_after(number: int) -> Any:
    def call(metrics: RoundMetrics, run: Run) -> None:
        if metrics.round == number:
            raise KilledError

    return call


def config_of(changes: dict[str, Any]) -> RunConfig:
    return parse_config({**BASE, **changes})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if not key.endswith("_s")} for row in read_metrics(folder)]


@pytest.mark.parametrize("changes", TOGETHER.values(), ids=TOGETHER.keys())
def test_what_goes_together_trains_resumes_and_is_replayed(changes: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(changes)
    whole = Run.create(tmp_path / "whole", config)
    start = whole.federation.flat.clone()
    summary = whole.train()
    assert torch.isfinite(whole.federation.flat).all()
    assert not torch.equal(whole.federation.flat, start)
    cut = Run.create(tmp_path / "cut", config)
    with pytest.raises(KilledError):
        cut.train(kill_after(4))  # the checkpoint is of round 3
    del cut
    resumed = Run.resume(tmp_path / "cut", trust_imports=True)
    assert {**resumed.train(), "run": ""} == {**summary, "run": ""}
    assert rows_of(tmp_path / "cut") == rows_of(tmp_path / "whole")
    assert (tmp_path / "cut" / JOURNAL).is_file() == config.journaled
    if config.journaled:
        replayed = replay(tmp_path / "cut", trust_imports=True)
        assert (replayed.matches, replayed.rounds) == (True, 7)
        assert replayed.as_dict()["sha256"] == summary["model_sha256"]


@pytest.mark.parametrize("name", ["a journal and client memory", "a journal and averaged batch norm"])
def test_rounds_that_clients_remember_are_those_of_the_journal(name: str, tmp_path: Path) -> None:
    """A journal whose last round says something else than what its clients send again is not gone on with."""
    run = Run.create(tmp_path / "run", config_of(TOGETHER[name]))
    with pytest.raises(KilledError):
        run.train(kill_after(4))
    del run
    with JournalReader(tmp_path / "run" / JOURNAL) as reader:
        records = list(reader)
        header, initial = reader.header, reader.initial_model()
    other = Journal.create(tmp_path / "run" / JOURNAL, header, initial)
    for record in records[:4]:
        other.append(record)
    other.append(type(records[4])(4, records[3].bundle, records[4].model_sha256, records[4].note))
    other.close()
    with pytest.raises(JournalError, match=r"round 4, computed again .* sends other updates"):
        Run.resume(tmp_path / "run", trust_imports=True)


@pytest.mark.parametrize("text", ["", "[1]", "[1, 2, -3]", '[1, 2, "3"]', "{}", "[1, 2, true]"])
def test_sizes_of_bundles_in_a_checkpoint_are_looked_at(text: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config_of(TOGETHER["bundles down without a journal"]))
    with pytest.raises(KilledError):
        run.train(kill_after(4))
    path = tmp_path / "run" / "checkpoint.safetensors"
    kept = checkpoints.read_checkpoint(path, run.federation.model.d, "", ())
    assert len(json.loads(kept.notes["bundle_bytes"])) == 3
    checkpoints.write_checkpoint(path, kept.vectors, {**kept.notes, "bundle_bytes": text})
    del run
    with pytest.raises(RunError, match="expected 3 numbers of bytes"):
        Run.resume(tmp_path / "run", trust_imports=True)


def trained(**changes: Any) -> torch.Tensor:
    history = fm.train(config_of(changes), progress=False)
    return torch.nn.utils.parameters_to_vector(history.model.parameters()).detach()


def test_steps_of_the_servers_size_average_models() -> None:
    """FedAvg by its name: what is sent is divided by lr, and the server's step multiplies it with lr again."""
    sums = trained(codec={"name": "fedsgd"}, local_steps=4, lr=0.05)
    models = trained(codec={"name": "fedsgd"}, local_steps=4, local_lr=0.05, lr=1.0)
    torch.testing.assert_close(sums, models, rtol=1e-5, atol=1e-6)
    losses = {"codec": {"name": "decomfl", "m": 6}, "local_steps": 3}
    torch.testing.assert_close(
        trained(**losses, lr=0.05), trained(**losses, local_lr=0.05, lr=1.0), rtol=1e-4, atol=1e-5
    )


def test_one_step_is_a_gradient() -> None:
    plainly = trained(codec={"name": "fedsgd"}, lr=0.05)
    torch.testing.assert_close(trained(codec={"name": "fedsgd"}, local_lr=0.05, lr=1.0), plainly)
    by_optimiser = trained(codec={"name": "fedsgd"}, local_optimiser="torch.optim:SGD(lr=0.05)", lr=1.0)
    torch.testing.assert_close(by_optimiser, plainly)
    assert torch.equal(trained(codec={"name": "fedsgd"}, lr=0.05, proximal=0.5), plainly)  # at x the term is zero


def test_steps_of_an_epoch_end_at_local_steps() -> None:
    long = trained(**MPDD, local_epochs=2, local_steps=1_000, local_lr=0.02, lr=1.0)
    assert torch.equal(long, trained(**MPDD, local_epochs=2, local_lr=0.02, lr=1.0))
    assert not torch.equal(long, trained(**MPDD, local_epochs=2, local_steps=3, local_lr=0.02, lr=1.0))


def test_a_schedule_goes_over_all_rounds_unless_it_says_how_many() -> None:
    config = config_of({"schedule": {"kind": "linear", "warmup": 2}})
    assert config.schedule == Schedule("linear", rounds=7, warmup=2)
    assert parse_config(config.model_dump(mode="json")) == config
    assert config_of({"schedule": {"kind": "linear", "rounds": 9}}).schedule.rounds == 9
    assert config_of({"schedule": {"kind": "constant"}}).schedule.rounds == 0


def test_bytes_of_an_image_are_raw_too_and_those_of_a_text_always() -> None:
    tables = ({"pixels": "raw"}, {"dataset": "python-docs", "model": "transformer-tiny", "clients": 2})
    images, texts = (
        fm.simulation.make_federation(parse_config({"model": "logistic", "device": "cpu", **table})) for table in tables
    )
    for federation, most in ((images, 255), (texts, 127)):
        inputs, _ = federation.task.clients.store.gather(torch.arange(50))
        assert inputs.max() >= 0.8 * most
        assert torch.equal(inputs, inputs.round())


def test_decomfl_shares_directions_unless_told_otherwise() -> None:
    assert config_of(DECOMFL).codec.keys == "shared"
    assert config_of({"codec": {"name": "decomfl", "keys": "sent"}}).codec.keys == "sent"
    assert fm.load_config("demo", ["codec=decomfl:m=4"]).codec.keys == "shared"


APART: dict[str, tuple[dict[str, Any], str]] = {
    "forward mode and coordinates": (
        {"client": "forward", "codec": {"name": "topk", "k": 8}},
        "no scalars along directions",
    ),
    "a mean of bits and coordinates": ({"downlink_bits": 8, "codec": {"name": "qsgd"}}, "no scalars along directions"),
    "clipping and coordinates": ({"codec": {"name": "topk", "k": 8, "clip": 1.0}}, "no scalars along directions"),
    "a mean of bits and directions apart": ({**MPDD, "downlink_bits": 8}, 'needs keys = "shared"'),
    "memory and forward mode": (
        {**MPDD, "codec": {**MPDD["codec"], "error_feedback": True}, "client": "forward"},
        "clients without one",
    ),
    "memory and losses": ({"codec": {"name": "decomfl", "error_feedback": True}}, "clients without one"),
    "memory and noise": ({"codec": {**MPDD["codec"], "error_feedback": True, "clip": 1.0}}, "were to hide"),
    "memory and secure sums": (
        {"codec": {"name": "fedsgd", "error_feedback": True}, "secure": {"clip": 1.0}},
        "were to hide",
    ),
    "noise without a bound": ({"codec": {**MPDD["codec"], "noise_multiplier": 1.0}}, "no noise is enough"),
    "a grid of scales and no signs": ({"codec": {**MPDD["codec"], "scale_grid": 2.0}}, "it is for bits = 1"),
    "secure sums and coordinates": (
        {"codec": {"name": "topk", "k": 8}, "secure": {"clip": 1.0}},
        "whose numbers add up",
    ),
    "secure sums and noise": (
        {"codec": {**MPDD["codec"], "keys": "shared", "clip": 1.0}, "secure": {"clip": 1.0}},
        "secure sums clip and add noise themselves",
    ),
    "secure sums and weights": (
        {"codec": {"name": "fedsgd"}, "secure": {"clip": 1.0}, "weighting": "examples"},
        "nobody may see how much a client has",
    ),
    "secure sums and robust means": (
        {"codec": {"name": "fedsgd"}, "secure": {"clip": 1.0}, "robust": {}},
        "by which one tells liars",
    ),
    "averaged batch norm and noise": (
        {**AVERAGED, "codec": {**MPDD["codec"], "clip": 1.0}},
        "statistics travel beside them, as they are",
    ),
    "averaged batch norm and secure sums": (
        {**AVERAGED, "codec": {"name": "fedsgd"}, "secure": {"clip": 1.0}},
        "statistics travel beside them, as they are",
    ),
    "bundles down and an optimiser of PyTorch": (
        {**MPDD, "downlink": "replay", "journal": False, "server": {"optimiser": "torch.optim:AdamW"}},
        "who follows the model",
    ),
    "a share of clients and another number": (
        {"participation": 0.25},
        "participation = 0.25 .* are 2, and clients_per_",
    ),
}


@pytest.mark.parametrize(("changes", "message"), APART.values(), ids=APART.keys())
def test_what_does_not_go_together_is_said_by_the_part_that_cannot(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fm.simulation.make_federation(config_of(changes))


@pytest.mark.parametrize("keys", ["shared", "derived"])
@pytest.mark.parametrize("model", ["network", "with_dropout"])
@pytest.mark.parametrize("settings", [{"local_steps": 3}, {"local_epochs": 2}, {**MOMENTUM, "local_steps": 2}], ids=str)
def test_derivatives_and_differences_of_losses_step_alike(keys: str, model: str, settings: dict[str, Any]) -> None:
    """Along the same directions, and with the same masks of dropout."""
    ends = []
    losses: dict[str, Any] = {"codec": {"name": "decomfl", "m": 6}}
    forwards: dict[str, Any] = {"codec": {"name": "mpdd", "m": 6}, "client": "forward"}
    for changes in (losses, forwards):
        task = regression(getattr(own, model)())
        codec = {**changes["codec"], "keys": keys}
        fed = federation_of(config_of({"lr": 0.002, **changes, "codec": codec, **settings}), task)
        start = fed.flat.clone()
        for _ in range(3):
            fed.run_round()
        ends.append(fed.flat)
    assert (ends[0] - ends[1]).norm() < 0.05 * (ends[0] - start).norm()
