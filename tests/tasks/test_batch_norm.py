"""Batch norm: whose statistics normalise, and that nobody is surprised."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmpdd.errors import ConfigError
from fedmpdd.simulation import Federation, parse_config
from fedmpdd.tasks.batch_norm import RunningStatistics
from tests.tasks.own import FEATURES, regression, with_batch_norm

STATISTICS = 4 * 2 * 16  # bytes: means and variances of 16 features
CONFIG = {"clients": 8, "clients_per_round": 4, "batch": 10, "rounds": 6, "evaluate_every": 2, "lr": 0.3}


def federation(
    choice: str | None, *, model: nn.Module | None = None, frames: bool = False, **changes: object
) -> Federation:
    task = regression(model or with_batch_norm(), batch_norm=choice)
    return Federation(parse_config({**CONFIG, "codec": {"name": "fedsgd"}, **changes}), task)


def test_somebody_has_to_choose() -> None:
    with pytest.raises(ConfigError, match=r'batch norm \(1; 1 in all\).*batch_norm="averaged".*replace_batch_norm'):
        federation(None)
    with pytest.raises(ConfigError, match='expected "averaged" or "local"'):
        federation("global")


def test_averaged_statistics_are_those_of_the_batches_and_cost_bytes() -> None:
    fed = federation("averaged")
    plain = federation("local")
    assert fed._statistics is not None
    plan = fed._plan_of(0)
    flat = fed.flat.clone()
    counted, without = fed.run_round(), plain.run_round()
    assert counted.uplink_bytes - without.uplink_bytes == 4 * STATISTICS
    assert counted.payload_bytes - without.payload_bytes == 4 * STATISTICS
    assert counted.downlink_bytes - without.downlink_bytes == 4 * STATISTICS
    assert torch.equal(fed.flat, plain.flat)
    # By hand: what enters the layer for each client's minibatch, averaged, a tenth of the way from (0, 1).
    weight, bias = flat[: 16 * FEATURES].view(16, FEATURES), flat[16 * FEATURES : 16 * FEATURES + 16]
    inputs, _ = fed.task.clients.store.gather(torch.from_numpy(plan.batches[:, 0]))
    entering = inputs @ weight.T + bias
    means, variances = entering.mean(dim=1).mean(dim=0), entering.var(dim=1, correction=1).mean(dim=0)
    expected = torch.cat([0.1 * means, 0.9 + 0.1 * variances])
    torch.testing.assert_close(fed._statistics.vector, expected)


@pytest.mark.parametrize("choice", ["averaged", "local"])
@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_it_learns_and_is_tested_in_eval_mode(choice: str, how: str) -> None:
    fed = federation(choice, gradients=how, rounds=40)
    before = fed.evaluate(fed.flat).loss
    for _ in range(40):
        fed.run_round()
    assert fed.evaluate(fed.flat).loss < 0.5 * before


def test_a_trained_model_has_the_statistics_it_was_tested_with() -> None:
    fed = federation("averaged", rounds=4)
    for _ in range(4):
        fed.run_round()
    inputs, targets = fed.task.test.gather(torch.arange(64))
    loss = nn.functional.mse_loss(fed.trained_model(inputs), targets).item()
    assert loss == pytest.approx(fed.evaluate(fed.flat).loss, rel=1e-5)


def test_statistics_survive_a_checkpoint() -> None:
    whole, first, second = (federation("averaged") for _ in range(3))
    for _ in range(6):
        whole.run_round()
    for _ in range(3):
        first.run_round()
    second.load_state(first.state(), 3)
    for _ in range(3):
        second.run_round()
    assert whole._statistics is not None
    assert second._statistics is not None
    assert torch.equal(whole._statistics.vector, second._statistics.vector)


@pytest.mark.parametrize(
    "changes",
    [
        {"secure": {"clip": 1.0}},
        {"codec": {"name": "mpdd", "m": 4, "clip": 1.0, "noise_multiplier": 1.0}},
        {"codec": {"name": "mpdd", "m": 4, "clip": 1.0}, "client": "forward"},
    ],
)
def test_statistics_do_not_travel_where_they_would_spoil_something(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='batch_norm = "averaged"'):
        federation("averaged", **changes)


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize(
    "changes", [{"codec": {"name": "mpdd", "m": 4}, "client": "forward"}, {"codec": {"name": "decomfl", "m": 4}}]
)
def test_statistics_without_gradients_are_those_with_them(how: str, changes: dict[str, Any]) -> None:
    fed, backward = federation("averaged", gradients=how, **changes), federation("averaged")
    counted, usual = fed.run_round(), backward.run_round()
    assert fed._statistics is not None
    assert backward._statistics is not None
    torch.testing.assert_close(fed._statistics.vector, backward._statistics.vector)
    assert counted.downlink_bytes == usual.downlink_bytes


def test_nothing_needs_to_be_chosen_without_statistics() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 1))
    assert np.isfinite(federation(None, model=model).run_round().loss or np.nan)


def test_running_statistics_follow_weights() -> None:
    running = RunningStatistics(nn.BatchNorm1d(1, momentum=0.5))
    running.take(torch.tensor([[1.0, 1.0], [4.0, 3.0]]), [1.0, 2.0])
    torch.testing.assert_close(running.vector, torch.tensor([1.5, 0.5 + 0.5 * 7 / 3]))
