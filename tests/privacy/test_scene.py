"""What an audit attacks."""

from pathlib import Path

import numpy as np
import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.federation.config import parse_config
from fedmpdd.federation.runs import Run
from fedmpdd.privacy.config import load_audit
from fedmpdd.privacy.scene import set_scene

CHANGES = ["dataset=mnist-5k", "audit.models=[]", "model=logistic", "audit.images=2"]


def test_the_private_images_are_not_public() -> None:
    scene = set_scene(load_audit("audit-mnist", CHANGES, codecs="mpdd:m=20"))
    for image in scene.images[:, 0]:
        assert not (scene.public.images == image).all(axis=(1, 2, 3)).any()
        assert (scene.pool.images == image).all(axis=(1, 2, 3)).any()
    assert scene.guesses["zero"] < scene.guesses["class mean"]
    assert np.isfinite(scene.bits_per_image)


def test_a_checkpoint_is_attacked(tmp_path: Path) -> None:
    values = {"dataset": "mnist-5k", "pixels": "unit", "model": "logistic", "rounds": 3, "device": "cpu"}
    run = Run.create(tmp_path / "run", parse_config(values))
    run.train()
    audit = load_audit("audit-mnist", CHANGES, codecs="mpdd:m=20", run=tmp_path / "run")
    assert np.array_equal(set_scene(audit).flat, run.federation.flat)
    other = load_audit("audit-mnist", [*CHANGES, "model=lenet"], codecs="mpdd:m=20", run=tmp_path / "run")
    with pytest.raises(ConfigError, match="trained logistic"):
        set_scene(other)
