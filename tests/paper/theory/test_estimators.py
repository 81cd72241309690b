"""The estimator's rows: what holds holds, what is planted is found. Fixed seeds; intervals miss once in 10,000 runs."""

from collections.abc import Iterator

import numpy as np
import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.directions import using
from fedmpdd_paper.theory import averaging, estimators, norms
from fedmpdd_paper.theory.claims import Row
from fedmpdd_paper.theory.draws import spread_gradients, squared


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with using(threads=1):
        yield


def by_claim(rows: Iterator[Row]) -> dict[str, Row]:
    found = {row.claim: row for row in rows}
    assert all(row.corrected_holds is not False for row in found.values())
    return found


def test_covariance_over_all_signs_is_the_corrected_one() -> None:
    gradient = np.array([3.0, -1.0, 0.5, 2.0])
    expected = squared(gradient) * np.eye(4) + np.outer(gradient, gradient) - 2 * np.diag(gradient**2)
    np.testing.assert_allclose(estimators.sign_covariance(gradient), expected, atol=1e-12)


def test_bias_is_found_where_there_is_one() -> None:
    """(1, 0.99, 0, …) with one bit has a bias of 0.86 by docs/codec.md: the first coordinate decides every sign."""
    peaked = np.zeros(20, dtype=np.float32)
    peaked[:2] = 1.0, 0.99
    found = estimators.found_bias(MPDD(m=8, bits=1), peaked, 2_000, seed=1)
    assert found.low > 0
    assert found.value == pytest.approx(0.86, abs=0.02)  # 0.86 · cos of the angle to the suspected direction


def test_verdicts_on_the_estimator() -> None:
    rows = by_claim(estimators.rows(lambda text: None))
    failed = [claim for claim, row in rows.items() if row.verdict == "fails"]
    assert len(failed) == 3
    assert all(claim.startswith("Lemma 1") for claim in failed)
    conditional = {row.verdict for row in rows.values() if "only if" in row.verdict}
    assert conditional == {
        "holds only if no coordinate outweighs the others",
        "holds only if there is one client",
    }
    assert all(row.verdict == "holds" for claim, row in rows.items() if claim.startswith(("Lemma 3", "our formula")))


def test_verdicts_on_norms() -> None:
    rows = by_claim(norms.rows(lambda text: None))
    assert {claim for claim, row in rows.items() if row.verdict == "holds"} == {
        "what JL does say: ‖Uᵀg‖/√m within (1 ± ε)‖g‖ with probability 1 − δ"
    }
    assert all(row.verdict == "fails" for claim, row in rows.items() if claim.startswith("Lemma 2"))


def test_averaging_follows_the_formulas() -> None:
    assert {row.verdict for row in averaging.rows(lambda text: None)} == {"holds"}


def test_clients_share_what_is_common() -> None:
    gradients = spread_gradients(30, 400, seed=3, common=2.0)
    alignment = squared(gradients.mean(axis=0)) * 30 / squared(gradients)
    assert alignment == pytest.approx(4 / 5, abs=0.1)
