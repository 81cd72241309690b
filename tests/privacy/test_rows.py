"""What rows say, from made-up cells whose numbers all differ."""

from typing import Any

import numpy as np
import pytest

from fedmpdd.pages.verdicts import INCONCLUSIVE, NOTHING, PARTLY
from fedmpdd.privacy.case import Case, make_case
from fedmpdd.privacy.config import Audit, load_audit
from fedmpdd.privacy.rows import codec_summary, row_of

CODEC = "mpdd:m=20"
SETTINGS = ["dataset=mnist-5k", "audit.models=[]", "model=logistic", "audit.images=3", "audit.rounds=2", "rounds=40"]


@pytest.fixture(scope="module")
def audit() -> Audit:
    return load_audit("audit-mnist", [*SETTINGS, "clients=80", "participation=0.5"], codecs=CODEC)


@pytest.fixture(scope="module")
def case(audit: Audit) -> Case:
    return make_case(audit)


def cell(ssim: list[float], truth: list[float], labels: Any) -> dict[str, Any]:
    each = np.array([[value, 0.1 * i, 10.0 + i] for i, value in enumerate(ssim)])
    return {
        "each": each,
        "truth": np.array(truth),
        "losses": np.ones(len(truth)),
        "labels": labels,
        "linkage": np.array(0.25),
        "seconds": np.array(3.0),
        "history": np.array([[0, 0.1], [5, 0.2]]),
    }


def test_a_row_is_the_median_over_images(audit: Audit, case: Case) -> None:
    wrong = case.labels.copy()
    wrong[0] = (wrong[0] + 1) % 10
    cells = {
        (CODEC, "dlg"): cell([0.2, 0.3, 0.7], [2.0, 2.0, 0.5], wrong),
        ("fedsgd", "dlg"): cell([0.9, 0.95, 1.0], [1.0] * 3, case.labels),
    }
    row = row_of(audit, case, CODEC, "dlg", cells, [0.25, 0.35, 0.4])
    assert (row.ssim, row.control_ssim, row.class_mean_ssim) == (0.3, 0.95, 0.35)
    assert row.mse == pytest.approx(0.1)
    assert row.psnr == 11.0
    assert row.history == [[0, 0.1], [5, 0.2]]
    assert row.labels_found == pytest.approx(2 / 3)
    assert row.truth_fits_better == pytest.approx(1 / 3)
    assert row.linkage == 0.25
    assert row.bits_revealed == 2 * case.codec(audit, CODEC).revealed_bits(len(case.flat)) > 0
    assert row.verdict == NOTHING
    stuck = {**cells, (CODEC, "dlg"): cell([0.2, 0.3, 0.7], [0.5, 2.0, 0.5], wrong)}
    assert row_of(audit, case, CODEC, "dlg", stuck, [0.25, 0.35, 0.4]).verdict == INCONCLUSIVE
    further = {**cells, (CODEC, "dlg"): cell([0.2, 0.5, 0.7], [2.0] * 3, wrong)}
    assert row_of(audit, case, CODEC, "dlg", further, [0.25, 0.35, 0.4]).verdict == PARTLY


def test_the_meter_counts_the_whole_run(audit: Audit, case: Case) -> None:
    cells = {
        (text, "dlg"): cell([0.1] * 3, [2.0] * 3, case.labels) if text == CODEC else cell([1.0] * 3, [2.0] * 3, None)
        for text in (CODEC, "fedsgd")
    }
    row = row_of(audit, case, CODEC, "dlg", cells, [0.3] * 3)
    found = codec_summary(audit, case, CODEC, [row])
    assert found["verdict"] == NOTHING
    assert found["meter"]["updates_per_client"] == 20  # 40 rounds, half of the clients in each
    assert found["meter"]["paper"] == pytest.approx(20 * 20 / 7_850)
