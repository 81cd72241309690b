"""One attack, made and kept: with an attack that knows the truth, and mixes it up."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmpdd.privacy.attack_results import make_result
from fedmpdd.privacy.attacks import ATTACKS, Reconstruction, Setting
from fedmpdd.privacy.case import Case, make_case
from fedmpdd.privacy.config import load_audit
from fedmpdd.privacy.observation import Observation

CODEC = "mpdd:m=30:clip=1:noise_multiplier=2.0"
CHANGES = ["dataset=mnist-5k", "audit.models=[]", "model=logistic", "audit.images=2", "audit.batch=3"]


class Oracle:
    """Returns the private images of each batch in another order."""

    case: Case
    setting: Setting

    def __init__(self, setting: Setting) -> None:
        type(self).setting = setting

    def run(self, observations: Sequence[Observation], *, seed: int, progress: Callable[[float], None]) -> Any:
        progress(1.0)
        order = [2, 0, 1]
        return Reconstruction(self.case.images[:, order], self.case.labels[:, order], np.array([5.0, 6.0]), ())

    def losses_at(self, observations: Sequence[Observation], images: Any, labels: Any) -> Any:
        assert np.array_equal(images, self.case.images)
        assert np.array_equal(labels, self.case.labels)
        return np.array([1.0, 2.0])


def test_a_result_compares_images_in_the_order_of_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = load_audit("audit-mnist", CHANGES, codecs=CODEC)
    Oracle.case = make_case(audit)
    monkeypatch.setitem(ATTACKS, "oracle", Oracle)
    shares: list[float] = []
    make_result(audit, Oracle.case, CODEC, "oracle", tmp_path / "cell.npz", shares.append)
    with np.load(tmp_path / "cell.npz") as stored:
        assert np.array_equal(stored["images"], Oracle.case.images)
        assert np.array_equal(stored["labels"], Oracle.case.labels)
        assert stored["each"][:, 0].tolist() == pytest.approx([1.0] * 6)
        assert stored["each"][:, 1].tolist() == [0.0] * 6
        assert stored["losses"].tolist() == [5.0, 6.0]
        assert stored["truth"].tolist() == [1.0, 2.0]
    assert shares == [1.0]
    assert Oracle.setting.noisy
    assert (Oracle.setting.curvature, Oracle.setting.rounds) == ("linear", 1)
