from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD, Codec, FedSGD
from fedmpdd.directions import Key
from fedmpdd.errors import InputError
from fedmpdd.privacy.attacks.gi_nas import CELLS, GINAS, Architecture, Generator, draw
from fedmpdd.privacy.observation import Observation, Victim, observe
from fedmpdd.tasks import models

SHAPE, CLASSES = (1, 8, 8), 4
TINY = GINAS(iterations=40, candidates=6, channels=8, levels=2, lr=1e-2)


@cache
def victim() -> tuple[Victim, torch.Tensor]:
    model, flat = models.build("logistic", SHAPE, CLASSES, init="default", seed=1)
    return Victim(model, SHAPE, CLASSES, (0.0,), (1.0,)), flat


def pictures(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Bright squares at different places, of different classes."""
    images = np.zeros((count, *SHAPE), dtype=np.float32)
    for i in range(count):
        images[i, 0, 1 + i : 5 + i, 2:6] = 0.9
    return images, np.arange(count) % CLASSES


def seen(
    images: NDArray[np.float32], labels: NDArray[np.int64], codec: Codec | None = None, *, grant: bool = True
) -> Observation:
    public, flat = victim()
    return observe(public, [flat], codec or FedSGD(), [Key(7)], images, labels, grant_labels=grant)


def single(i: int, codec: Codec | None = None, *, grant: bool = True) -> Observation:
    images, labels = pictures(i + 1)
    return seen(images[i:], labels[i:], codec, grant=grant)


@pytest.mark.parametrize("matching", ["decoded", "sent"])
def test_the_loss_falls_and_the_image_appears(matching: str) -> None:
    observations = [single(0), single(1)]
    found = replace(TINY, matching=matching, iterations=80).run(observations, seed=3)
    assert found.images.shape == (2, 1, *SHAPE)
    assert found.images.dtype == np.float32
    assert found.images.min() >= 0
    assert found.images.max() <= 1
    assert (found.losses < 0.2 * found.history[0].losses).all()
    truth = np.stack([pictures(2)[0][:1], pictures(2)[0][1:]])
    start = found.history[0].images
    assert np.mean((found.images - truth) ** 2) < 0.3 * np.mean((start - truth) ** 2)


def test_losses_are_those_of_the_images() -> None:
    observations = [single(0), single(1)]
    found = TINY.run(observations, seed=3)
    # The images went to float32 and back, and a loss is a difference of close numbers.
    np.testing.assert_allclose(found.losses, TINY.losses_at(observations, found.images, found.labels), rtol=1e-5)
    np.testing.assert_allclose(found.losses, found.history[-1].losses, atol=1e-6)
    assert found.history[-1].iteration == TINY.iterations
    assert [snapshot.iteration for snapshot in found.history] == sorted({s.iteration for s in found.history})


@pytest.mark.parametrize("matching", ["decoded", "sent"])
def test_nothing_is_left_to_explain_at_the_truth(matching: str) -> None:
    images, labels = pictures(2)
    losses = replace(TINY, matching=matching).losses_at([seen(images, labels)], images[None], labels[None])
    assert losses[0] == pytest.approx(0, abs=1e-6)


def test_the_search_keeps_the_candidate_with_the_lowest_loss() -> None:
    candidates = list(TINY.search(single(0), np.random.default_rng([5, 0])))
    assert len(candidates) == TINY.candidates
    assert len({candidate.architecture for candidate in candidates}) > 1
    best = min(candidates, key=lambda candidate: candidate.loss)
    begun = TINY.run([single(0)], seed=5).history[0]  # the first iteration looks at the initial weights
    assert begun.losses[0] == pytest.approx(best.loss)
    assert best.loss < max(candidate.loss for candidate in candidates)
    with torch.no_grad():
        np.testing.assert_allclose(begun.images[0], best.network(best.weights, best.noise), atol=1e-6)


def test_the_seed_decides_and_pytorchs_own_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (TINY.run([single(0)], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(first.images, again.images)
    np.testing.assert_array_equal(first.losses, again.losses)
    assert not np.array_equal(first.images, other.images)


def test_a_batch_comes_from_one_generator() -> None:
    images, labels = pictures(2)
    found = replace(TINY, iterations=60).run([seen(images, labels)], seed=1)
    assert found.images.shape == (1, 2, *SHAPE)
    assert found.labels.tolist() == [labels.tolist()]
    assert found.losses[0] < 0.5 * found.history[0].losses[0]
    assert not np.array_equal(found.images[0, 0], found.images[0, 1])


def test_labels_that_are_not_granted_are_found() -> None:
    found = TINY.run([single(2, grant=False), single(1, grant=False)], seed=1)
    assert found.labels.tolist() == [[2], [1]]


def test_sent_scalars_are_matched_in_their_own_space() -> None:
    images, labels = pictures(1)
    attack = replace(TINY, matching="sent", iterations=60)
    observation = single(0, MPDD(100))
    found = attack.run([observation], seed=1)
    assert found.losses[0] < 0.3 * found.history[0].losses[0]
    assert attack.losses_at([observation], images[None], labels[None])[0] == pytest.approx(0, abs=1e-6)
    # The server's estimate is far from the gradient, so that the truth does not match it.
    assert TINY.losses_at([observation], images[None], labels[None])[0] > 0.1


def test_of_several_restarts_the_best_is_kept() -> None:
    once = TINY.run([single(0)], seed=4).losses[0]
    assert replace(TINY, restarts=3).run([single(0)], seed=4).losses[0] <= once


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    TINY.run([single(0), single(1)], seed=1, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize("cell", CELLS[::7])
@pytest.mark.parametrize(("levels", "side"), [(2, 7), (3, 8), (3, 28)])
def test_every_architecture_keeps_the_shape(cell: tuple[str, str, int, str], levels: int, side: int) -> None:
    skips = draw(levels, np.random.default_rng(levels)).skips
    noise = torch.randn((1, 3, side, side), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        images = Generator(Architecture(skips, *cell), 8, 3)(noise)
    assert images.shape == noise.shape
    assert 0 <= images.min() < images.max() <= 1


def test_draws_cover_the_space() -> None:
    random = np.random.default_rng(0)
    drawn = [draw(3, random) for _ in range(2_000)]
    assert {architecture[1:] for architecture in drawn} == set(CELLS)
    share = np.mean([architecture.skips for architecture in drawn], axis=0)
    assert share.shape == (3, 3)
    np.testing.assert_allclose(share, 0.5, atol=0.06)


@pytest.mark.parametrize(
    "wrong", [{"matching": "guessed"}, {"channels": 6}, {"channels": 0}, {"candidates": 0}, {"iterations": 0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        GINAS(**wrong)  # type: ignore[arg-type]
