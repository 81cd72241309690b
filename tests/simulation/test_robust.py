"""Robust means in the local engine: off by default, and journalled so that a replay finds the same model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedmpdd.errors import ConfigError
from fedmpdd.runs.folders import Run
from fedmpdd.simulation import federation_of, parse_config
from fedmpdd.simulation.replay import replay
from tests.frozen.trainings import images

BASE: dict[str, Any] = {"model": "logistic", "clients": 12, "clients_per_round": 8, "batch": 4, "lr": 0.05, "rounds": 6}
CODECS: list[dict[str, Any]] = [
    {"name": "mpdd", "m": 60, "keys": "shared"},
    {"name": "mpdd", "m": 60, "bits": 1, "family": "hadamard", "keys": "shared"},
    {"name": "mpdd", "m": 60, "bits": 1, "family": "hadamard", "keys": "partitioned"},
    {"name": "peaks", "m": 9, "group": 16},
    {"name": "topk", "k": 60, "error_feedback": True},
    {"name": "fedsgd"},
]


def config(codec: dict[str, Any], **changes: Any) -> Any:
    return parse_config({**BASE, "device": "cpu", "codec": codec, **changes})


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: "-".join(map(str, codec.values())))
def test_honest_clients_learn_as_with_the_plain_mean(codec: dict[str, Any]) -> None:
    accuracies = []
    settings: tuple[dict[str, float] | None, ...] = (None, {})
    for robust in settings:
        federation = federation_of(config(codec, robust=robust, rounds=20, evaluate_every=20), images(8))
        for _ in range(19):
            federation.run_round()
        accuracy = federation.run_round().accuracy
        assert accuracy is not None
        accuracies.append(accuracy)
    assert accuracies[1] > accuracies[0] - 0.1


@pytest.mark.parametrize("codec", [CODECS[0], CODECS[1], CODECS[2]], ids=["trimmed", "signs", "partitioned"])
@pytest.mark.parametrize("bits", [None, 8])
def test_a_journal_leads_to_the_same_model(tmp_path: Path, codec: dict[str, Any], bits: int | None) -> None:
    if bits is not None and codec["keys"] != "shared":
        pytest.skip("downlink_bits is for shared keys")
    changes: dict[str, Any] = {"dataset": "mnist-5k", "downlink": "replay", "robust": {}, "weighting": "examples"}
    summary = Run.create(tmp_path / "run", config(codec, downlink_bits=bits, **changes)).train()
    replayed = replay(tmp_path / "run").as_dict()
    assert (replayed["matches"], replayed["sha256"]) == (True, summary["model_sha256"])


def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    settings = config(CODECS[2], dataset="mnist-5k", robust={})
    whole = Run.create(tmp_path / "whole", settings).train()
    cut = Run.create(tmp_path / "cut", settings)
    rounds = cut.federation
    cut.train(stopped=lambda: rounds.next_round == 3)
    del cut
    assert Run.resume(tmp_path / "cut").train()["model_sha256"] == whole["model_sha256"]


def test_settings_are_used() -> None:
    models = []
    for robust in (None, {}, {"trim": 0.0, "disagreement": 1e9}, {"shrink": 0.5}):
        federation = federation_of(config(CODECS[0], robust=robust), images(8))
        for _ in range(3):
            federation.run_round()
        models.append(federation.flat)
    assert not any(torch.equal(models[i], models[j]) for i in range(4) for j in range(i))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"robust": {"trim": 0.5}}, "robust.trim"),
        ({"robust": {"shrink": 0.0}}, "robust.shrink"),
        ({"robust": {"trim": 0.1, "other": 1}}, "robust.other is not a key"),
        ({"robust": {}, "secure": {"clip": 1.0}}, "nobody sees single updates"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(CODECS[0], **changes)
