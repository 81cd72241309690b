"""The engine on a GPU, on made-up images: the same federation as on the CPU, up to the rounding of gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmpdd.errors import ConfigError
from fedmpdd.simulation import Federation, federation_of, parse_config
from fedmpdd.simulation.devices import resolve_device
from fedmpdd.tasks.data import Dataset, Examples

BASE: dict[str, Any] = {
    "model": "cnn-lin2022",
    "clients": 20,
    "participation": 0.5,
    "batch": 8,
    "lr": 0.05,
    "rounds": 6,
    "evaluate_every": 3,
    "codec": {"name": "mpdd", "m": 200},
}
CODECS: list[dict[str, Any]] = [
    {"name": "mpdd", "m": 200},
    {"name": "mpdd", "m": 200, "bits": 1, "family": "hadamard", "keys": "partitioned"},
    {"name": "mpdd", "m": 200, "bits": 8},
    {"name": "fedsgd"},
    {"name": "signsgd"},
    {"name": "lp-proj", "size": 50},
    {"name": "sa-fedlora", "warmup": 0},
    {"name": "eden", "rows": 2000},
    {"name": "peaks", "m": 20},
    {"name": "topk", "k": 500, "error_feedback": True},
    {"name": "decomfl", "m": 3, "keys": "shared"},
    {"name": "fedkseed", "m": 3, "keys": "derived"},
    {"name": "ferret", "m": 60},
]


def images() -> Dataset:
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 256, (10, 1, 28, 28))

    def examples(count: int) -> Examples:
        labels = np.arange(count) % 10
        noisy = 0.7 * prototypes[labels] + 0.3 * rng.integers(0, 256, (count, 1, 28, 28))
        return Examples(noisy.astype(np.uint8), labels.astype(np.int64))

    return Dataset("made-up", examples(600), examples(200), 10, (0.5,), (0.25,))


def federation(device: str, **changes: Any) -> Federation:
    return federation_of(parse_config({**BASE, **changes, "device": device}), images())


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: "-".join(map(str, codec.values())))
def test_rounds_follow_those_of_the_cpu(gpu: str, codec: dict[str, Any]) -> None:
    there, here = federation(gpu, codec=codec), federation("cpu", codec=codec)
    start = here.flat.clone()
    for _ in range(3):
        a, b = there.run_round(), here.run_round()
        assert (a.clients, a.uplink_bytes, a.payload_bytes) == (b.clients, b.uplink_bytes, b.payload_bytes)
        assert a.loss == pytest.approx(b.loss, rel=1e-3)
    # One-bit and few-bit scalars may fall on the other side once in a while: close, not equal.
    assert (there.flat.cpu() - here.flat).norm() < 0.1 * (here.flat - start).norm()
    assert (a.accuracy, b.accuracy) != (None, None)


@pytest.mark.parametrize("changes", [{}, {"local_steps": 2, "local_lr": 0.05}, {"server": {"optimiser": "adam"}}])
def test_a_config_has_one_result(gpu: str, changes: dict[str, Any]) -> None:
    def train(rounds: int, fed: Federation) -> Federation:
        for _ in range(rounds):
            fed.run_round()
        return fed

    whole, cut = train(6, federation(gpu, **changes)), train(3, federation(gpu, **changes))
    fresh = federation(gpu, **changes)
    fresh.load_state({name: value.clone() for name, value in cut.state().items()}, 3)
    assert torch.equal(whole.flat, train(3, fresh).flat)


def test_memories_survive_a_checkpoint(gpu: str) -> None:
    changes = {"codec": {"name": "topk", "k": 500, "error_feedback": True}, "participation": 1.0}
    whole, begun = (federation(gpu, **changes) for _ in range(2))
    for _ in range(2):
        whole.run_round()
        begun.run_round()
    resumed = federation(gpu, **changes)
    resumed.load_state(begun.state(), 2)
    whole.run_round()
    resumed.run_round()
    assert torch.equal(whole.flat, resumed.flat)


EVERY_CODEC: list[dict[str, Any]] = [
    *CODECS,
    {"name": "qsgd", "bits": 4},
    {"name": "topk", "k": 500},
    {"name": "randk", "k": 500},
    {"name": "eden", "bits": 1},
    {"name": "laplace", "noise": 1e-4},
    {"name": "gaussian", "noise": 1e-4},
    {"name": "signsgd", "scaled": False},
    {"name": "mpdd", "m": 200, "bits": 4, "keys": "shared"},
    {"name": "mpdd", "m": 200, "clip": 1.0, "noise_multiplier": 0.1},
]


@pytest.mark.parametrize("codec", EVERY_CODEC, ids=lambda codec: "-".join(map(str, codec.values())))
def test_a_journal_changes_no_number(gpu: str, codec: dict[str, Any]) -> None:
    """Updates that stay on the GPU, those that a journal records, and those that become frames: one model."""
    plain = federation(gpu, codec=codec)
    framed = federation_of(parse_config({**BASE, "codec": codec, "device": gpu}), images(), frames=True)
    others = [framed, federation(gpu, codec=codec, journal=True)]
    for _ in range(3):
        plain.run_round()
        for other in others:
            other.run_round()
            assert torch.equal(plain.flat, other.flat)


def test_it_learns(gpu: str) -> None:
    fed = federation(gpu, model="logistic", rounds=60, codec={"name": "mpdd", "m": 400, "family": "hadamard"})
    before = fed.evaluate(fed.flat)[0]
    for _ in range(60):
        fed.run_round()
    assert fed.evaluate(fed.flat)[0] > max(0.8, before + 0.4)


def test_auto_is_the_gpu_where_there_is_one(gpu: str) -> None:
    assert resolve_device(parse_config({**BASE, "device": "auto"})).device == "cuda"


def test_a_gpu_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(parse_config({**BASE, "device": "auto"})).device == "cpu"
    with pytest.raises(ConfigError, match=r'device = "cuda": PyTorch sees no CUDA device.*device = "cpu"'):
        federation("cuda")
