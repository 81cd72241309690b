import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedmpdd as fm
from fedmpdd.privacy.text_scores import (
    distances,
    read_by_outsider,
    read_by_server,
    scores_by_length,
    scores_of_candidates,
    scores_of_classes,
)
from fedmpdd.uplink import Protection
from tests.privacy.text_cases import sent

D = 600
CODECS = [
    fm.FedSGD(),
    fm.MPDD(40),
    fm.MPDD(40, bits=8),
    fm.MPDD(60, bits=1, family="hadamard"),
    fm.Peaks(8, group=16),
    fm.TopK(100),
    fm.QSGD(bits=4),
]


def gradients(count: int, seed: int = 0) -> Tensor:
    """Of common directions mostly, and of something of their own."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(99).standard_normal((5, D))
    return torch.from_numpy((rng.standard_normal((count, 5)) @ common + rng.standard_normal((count, D))) / 10).float()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_true_gradient_reads_like_the_update(codec: fm.Codec) -> None:
    rows = gradients(20)
    reading = read_by_server(sent(rows[0], codec))
    residuals = (reading.of(rows) - reading.values).square().mean(dim=1)
    assert int(residuals.argmin()) == 0
    assert float(residuals[0]) <= 3 * reading.variance + 0.05 * float(residuals[1:].mean())


def test_a_protected_update_is_read_as_it_was_clipped() -> None:
    row = gradients(1)
    codec = fm.MPDD(40)
    protection = Protection(codec, clip=0.05, noise_multiplier=0.01)
    observed = sent(row[0], codec)
    (update,) = protection.encode(row.numpy(), [observed.key], [np.random.default_rng(0)]).updates()
    seen: Any = type(observed)(observed.flat, b"", codec, observed.key, protection)
    vars(seen)["update"] = update
    reading = read_by_server(seen)
    assert reading.variance == pytest.approx(protection.noise_deviation**2)
    assert float((reading.of(row)[0] - reading.values).square().mean()) < 3 * reading.variance


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("batch", [1, 4])
def test_the_candidate_of_the_batch_is_found(codec: fm.Codec, batch: int) -> None:
    found = 0
    for seed in range(8):
        rows = gradients(batch + 60, seed)
        candidates = torch.cat([rows[:1], rows[batch : batch + 9]])
        observed = sent(rows[:batch].mean(dim=0), codec, seed)
        found += int(scores_of_candidates(observed, candidates, rows[batch + 9 :], batch).argmax()) == 0
    # Guesses find one of ten: 3 or more of 8 in 4 of 100 tries, 7 or more never.
    assert found >= (7 if batch == 1 else 3)


def test_distances_are_those_of_the_inverse() -> None:
    rng = np.random.default_rng(0)
    for samples, numbers in ((4, 9), (9, 4)):
        spread, residuals = (torch.from_numpy(rng.standard_normal((rows, numbers))) for rows in (samples, 3))
        small = spread @ spread.T
        ridge = 0.3 + 0.01 * float(small.trace()) / min(samples, numbers)
        covariance = spread.T @ spread + ridge * torch.eye(numbers, dtype=torch.float64)
        expected = torch.einsum("ki,ij,kj->k", residuals, torch.linalg.inv(covariance), residuals)
        assert torch.allclose(distances(residuals, spread, 0.3), expected)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_class_of_a_gradient_is_found(codec: fm.Codec) -> None:
    rows, labels = gradients(80), torch.arange(80) % 3
    rows += (
        2
        * torch.nn.functional.one_hot(labels, 5).float()
        @ torch.randn(5, D, generator=torch.Generator().manual_seed(1))
    )
    prior = torch.tensor([1.0, 1.0, 1.0, 1.0]) / 4
    right = 0
    for number in range(12):
        reading = read_by_server(sent(rows[number], codec, number))
        right += int(scores_of_classes(reading, rows[12:], labels[12:], prior).argmax()) == int(labels[number])
    assert right >= 10  # guesses: 4; 10 of 12 in one try of a thousand


def test_a_class_that_nobody_knows_is_never_chosen() -> None:
    rows = gradients(10)
    prior = torch.tensor([0.0, 0.1, 0.9])
    scores = scores_of_classes(read_by_server(sent(rows[0], fm.FedSGD())), rows, torch.zeros(10).long(), prior)
    assert scores[1:].tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("codec", [fm.MPDD(200), fm.MPDD(40, bits=1), fm.Peaks(8, group=16)], ids=str)
def test_an_outsider_reads_lengths(codec: fm.Codec) -> None:
    rows = gradients(6) * torch.tensor([1.0, 10, 100, 1000, 0.1, 0.01])[:, None]
    reading = read_by_outsider(sent(rows[2], codec))
    assert float((reading.of(rows) - reading.values)[2].abs()) < 0.5
    assert int(scores_by_length(sent(rows[2], codec), rows).argmax()) == 2


def test_an_update_without_a_number_tells_nothing() -> None:
    """As of coordinates that are all zero, which is how a frame says nothing of them."""
    rows = gradients(30)
    observed = sent(torch.zeros(D), fm.RandK(5))
    scores = scores_of_candidates(observed, rows[:5], rows[5:], 8)
    assert torch.isfinite(scores).all()
    empty = torch.zeros(3, 0, dtype=torch.float64)
    assert distances(empty, torch.zeros(4, 0, dtype=torch.float64), 0.0).tolist() == [0, 0, 0]
