"""Trainings of a config from Python: shipped ones, files, run folders."""

from pathlib import Path

import pytest
import torch

import fedmpdd as fm
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.runs.history import METRICS

TINY = ["rounds=3", "clients=6", "clients_per_round=3", "evaluate_every=1", "device=cpu"]


def test_a_shipped_config_trains_in_memory_and_in_a_folder_to_the_same_model(tmp_path: Path) -> None:
    config = fm.load_config("demo", TINY)
    in_memory = fm.train(config, progress=False)
    in_folder = fm.train(config, out=tmp_path / "run", progress=False)
    assert len(in_memory) == len(in_folder) == 3
    for name, value in in_memory.model.state_dict().items():
        assert torch.equal(value, in_folder.model.state_dict()[name])
    kept = fm.read_run(tmp_path / "run")
    assert kept.finished
    assert kept.config == config
    assert kept.history.final_accuracy == in_memory.final_accuracy


def test_a_folder_is_gone_on_with_and_is_not_trained_twice(tmp_path: Path) -> None:
    class Stop(fm.callbacks.StopWhen):
        def __init__(self) -> None:
            super().__init__(lambda history: "two are enough" if history.last.rounds >= 2 else None)

    whole = fm.train(fm.load_config("demo", TINY), out=tmp_path / "whole", progress=False)
    config = fm.load_config("demo", TINY)
    assert len(fm.train(config, out=tmp_path / "run", callbacks=[Stop()], progress=False)) == 2
    assert len(fm.train(config, out=tmp_path / "run", progress=False)) == 3
    sha256 = [(fm.read_run(tmp_path / name).summary or {})["model_sha256"] for name in ("whole", "run")]
    assert sha256[0] == sha256[1]
    before = (tmp_path / "run" / METRICS).read_bytes()
    again = fm.train(config, out=tmp_path / "run", progress=False)
    assert (tmp_path / "run" / METRICS).read_bytes() == before
    assert [entry.accuracy for entry in again.rounds] == [entry.accuracy for entry in whole.rounds]


def test_other_settings_in_a_folder_and_unknown_configs_are_refused(tmp_path: Path) -> None:
    fm.train(fm.load_config("demo", TINY), out=str(tmp_path / "run"), progress=False)
    with pytest.raises(RunError, match=r"with other settings: codec\.m: .* → 7"):
        fm.train(fm.load_config("demo", [*TINY, "codec.m=7"]), out=tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match=r"neither a file nor one of the shipped ones: .*demo"):
        fm.load_config("lenett")
