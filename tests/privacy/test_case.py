"""What an audit attacks."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedmpdd.errors import ConfigError, RunError
from fedmpdd.privacy.case import make_case, observations_of
from fedmpdd.privacy.config import load_audit
from fedmpdd.runs.folders import Run
from fedmpdd.simulation.config import parse_config

CHANGES = ["dataset=mnist-5k", "audit.models=[]", "model=logistic", "audit.images=2"]


def test_the_private_images_are_not_public() -> None:
    case = make_case(load_audit("audit-mnist", CHANGES, codecs="mpdd:m=20"))
    for image in case.images[:, 0]:
        assert not (case.public.images == image).all(axis=(1, 2, 3)).any()
        assert (case.pool.images == image).all(axis=(1, 2, 3)).any()
    assert case.guesses["zero"] < case.guesses["class mean"]
    assert np.isfinite(case.bits_per_image)


def test_a_checkpoint_is_attacked(tmp_path: Path) -> None:
    values = {"dataset": "mnist-5k", "pixels": "unit", "model": "logistic", "rounds": 3, "device": "cpu"}
    run = Run.create(tmp_path / "run", parse_config(values))
    run.train()
    audit = load_audit("audit-mnist", CHANGES, codecs="mpdd:m=20", run=tmp_path / "run")
    assert np.array_equal(make_case(audit).flat, run.federation.flat)
    other = load_audit("audit-mnist", [*CHANGES, "model=lenet"], codecs="mpdd:m=20", run=tmp_path / "run")
    with pytest.raises(ConfigError, match="trained logistic"):
        make_case(other)


def test_of_a_codec_that_grows_the_largest_is_attacked() -> None:
    audit = load_audit("audit-mnist", CHANGES, codecs="mpdd:m=20")
    growing, grown = (
        observations_of(audit, make_case(audit), text)
        for text in ("peaks:m=4:grows_to=12:grows_after=3:keys=derived", "peaks:m=12:keys=derived")
    )
    assert [own.updates[0].frame for own in growing] == [own.updates[0].frame for own in grown]


def test_what_clients_send_is_what_the_audit_says() -> None:
    """Each round has a key of its own, protected frames are protected, and labels are granted only if known."""
    protected = "mpdd:m=30:clip=1:noise_multiplier=2.0"
    audit = load_audit("audit-mnist", [*CHANGES, "audit.rounds=2", "audit.labels=found"], codecs="mpdd:m=30")
    case = make_case(audit)
    bare, safe = (observations_of(audit, case, text) for text in ("mpdd:m=30", protected))
    assert len(bare) == len(safe) == 2
    updates = [observed for own in bare for observed in own.updates]
    assert len({observed.key for observed in updates}) == len(updates) == 4
    assert len({observed.frame for observed in updates}) == 4
    assert all(observed.protection is None for observed in updates)
    for one, other in zip(bare, safe, strict=True):
        assert one.labels is None
        assert one.updates[0].key == other.updates[0].key
        assert one.updates[0].frame != other.updates[0].frame
        assert other.updates[0].protection is not None
    granted = load_audit("audit-mnist", CHANGES, codecs="mpdd:m=30")
    for own, labels in zip(observations_of(granted, case, "mpdd:m=30"), case.labels, strict=True):
        assert own.labels is not None
        assert own.labels.tolist() == labels.tolist()


def test_a_damaged_checkpoint_is_not_attacked(tmp_path: Path) -> None:
    values = {"dataset": "mnist-5k", "pixels": "unit", "model": "logistic", "rounds": 1, "device": "cpu"}
    Run.create(tmp_path / "run", parse_config(values)).train()
    audit = load_audit("audit-mnist", CHANGES, codecs="mpdd:m=20", run=tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 4
    path.write_bytes(whole)
    with pytest.raises(RunError, match="does not have the hash that it says"):
        make_case(audit)
    path.unlink()
    with pytest.raises(RunError, match="has no checkpoint; train it first"):
        make_case(audit)


def test_an_audit_imports_only_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the folder's model, and its own only once both are the same."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("audited_for_tests", "named_by_folder_for_tests"):
        (tmp_path / f"{name}.py").write_text("from tests.tasks.test_models import Tiny", encoding="utf-8")
    folder = tmp_path / "run"
    values = {"dataset": "mnist-5k", "pixels": "unit", "rounds": 1, "device": "cpu"}
    run = Run.create(folder, parse_config({**values, "model": "named_by_folder_for_tests:Tiny"}))
    run.train()
    del sys.modules["named_by_folder_for_tests"]
    other = load_audit("audit-mnist", [*CHANGES, "model=audited_for_tests:Tiny"], codecs="mpdd:m=20", run=folder)
    with pytest.raises(ConfigError, match="give model=named_by_folder_for_tests:Tiny"):
        make_case(other)
    assert not {"audited_for_tests", "named_by_folder_for_tests"} & set(sys.modules)
    same = load_audit("audit-mnist", [*CHANGES, "model=named_by_folder_for_tests:Tiny"], codecs="mpdd:m=20", run=folder)
    assert np.array_equal(make_case(same).flat, run.federation.flat)
