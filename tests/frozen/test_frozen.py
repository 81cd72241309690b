"""What must not change: the bits of models, frames and files, the keys of documents, the exported names.

`record.json` was made by `python -m tests.frozen.make`. A test here that fails says that a change is not the clean-up
that it was meant to be: mend the change, not the record.
"""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from fedmpdd.report import collect
from fedmpdd.simulation import shipped_configs
from fedmpdd.simulation.config import load_config
from tests.frozen import formats, resuming
from tests.frozen.documents import exported_names, measured
from tests.frozen.make import MODULES, RECORD
from tests.frozen.portable import run_portably, why_not_portable
from tests.frozen.trainings import has_data

EXPECTED: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
portable = pytest.mark.skipif(why_not_portable() is not None, reason=str(why_not_portable()))


def changed(expected: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """Return the rows that are not what they were, as (was, is)."""
    return {name: (row, current.get(name)) for name, row in expected.items() if current.get(name) != row}


@pytest.fixture(scope="module")
def trainings() -> dict[str, Any]:
    """All trainings, ten rounds each, in one process of their own."""
    rows: dict[str, Any] = json.loads(run_portably("tests.frozen.trainings"))
    return rows


@portable
@pytest.mark.slow
def test_models_of_every_codec_with_every_feature(trainings: dict[str, Any]) -> None:
    assert len(EXPECTED["matrix"]) > 500
    assert changed(EXPECTED["matrix"], trainings["matrix"]) == {}


@portable
@pytest.mark.parametrize("config", shipped_configs())
@pytest.mark.slow
def test_models_of_shipped_configs_on_bundled_digits(trainings: dict[str, Any], config: str) -> None:
    name = f"{config} mnist-5k"
    assert trainings["shipped"][name] == EXPECTED["shipped"][name]


@portable
@pytest.mark.parametrize("config", shipped_configs())
@pytest.mark.slow
def test_models_of_shipped_configs(trainings: dict[str, Any], config: str) -> None:
    dataset = load_config(config).dataset
    if not has_data(dataset):
        pytest.skip(f"{dataset} is not here; name a folder that has it in FEDMPDD_DATA")
    name = f"{config} {dataset}"
    assert trainings["shipped"][name] == EXPECTED["shipped"][name]


def test_frames_bundles_records_steps_and_samples() -> None:
    for part, rows in formats.PARTS.items():
        expected = EXPECTED[part]
        if part == "frames":  # what SA-FedLora's factors are depends on LAPACK; they are compared portably below
            expected = {name: row for name, row in expected.items() if not name.startswith("sa-fedlora")}
        assert changed(expected, rows()) == {}, part


@portable
def test_frames_of_codecs_that_need_lapack() -> None:
    frames = json.loads(run_portably("tests.frozen.formats"))["frames"]
    assert changed(EXPECTED["frames"], frames) == {}


@portable
def test_folders_of_earlier_versions_are_replayed_and_resumed_to_the_same_bits() -> None:
    assert json.loads(run_portably("tests.frozen.resuming")) == EXPECTED["folders"]


def test_folders_of_earlier_versions_are_read() -> None:
    collection = collect([resuming.HERE])
    assert {run.folder.name: len(run.history) for run in collection.runs} == dict.fromkeys(
        resuming.FOLDERS, resuming.STOP_AFTER
    )
    assert collection.left_out == []


@pytest.mark.slow
def test_documents_keep_their_keys(tmp_path: Path) -> None:
    now = measured(tmp_path)
    for name, paths in EXPECTED["documents"].items():
        assert set(paths) - set(now[name]) == set(), name


@pytest.mark.parametrize("module", MODULES)
def test_exported_names_only_grow(module: str) -> None:
    assert set(EXPECTED["names"][module]) - set(exported_names(module)) == set()
