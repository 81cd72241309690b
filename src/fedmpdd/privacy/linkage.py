"""Linkage: given candidates, which one was it? Needs no reconstruction and is often exact where that fails."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmpdd.pages.verdicts import CANDIDATES
from fedmpdd.privacy.matching import match_sent
from fedmpdd.privacy.observation import Observation, one_hot

FEWEST_CANDIDATES = 5  # among fewer, a guess is right too often to be told from knowledge


class Linkage(NamedTuple):
    """How many true images were found, as a share, among how many candidates each."""

    share: float
    candidates: int


def rank_of_truth(observation: Observation, candidates: NDArray[np.float32], label: int) -> int:
    """Return how many of the candidates [count, …] explain a batch of one better than the first, which is the truth."""
    victim, count = observation.victim, len(candidates)
    labels = one_hot(torch.full((count, 1), label, device=observation.device), victim.classes)
    images = torch.from_numpy(candidates)[:, None].to(observation.device)
    losses = torch.zeros(count, device=observation.device)
    with torch.no_grad():
        for observed in observation.updates:
            gradients = victim.gradients(observed.flat, images, labels)
            losses += match_sent([observed] * count)(gradients)
    return int((losses[1:] < losses[0]).sum())


def linkage(
    observations: Sequence[Observation],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    others: NDArray[np.float32],
    other_labels: NDArray[np.int64] | None,
    *,
    candidates: int = CANDIDATES,
    seed: int = 0,
) -> Linkage | None:
    """Return the share of batches of one [problems, 1, …] whose true image is found among so many of its class.

    Args:
        observations: of the batches.
        images: the true ones.
        labels: theirs.
        others: that decoys are drawn from.
        other_labels: theirs; None where any of them is a decoy.
        candidates: how many there are to choose from, the true one among them; fewer where there are not so many.
        seed: of the draws.

    Returns:
        The share, and the least number of candidates that there were; None for batches of several images, and where
        some image has hardly any decoys, so that to find it says nothing.

    """
    if observations[0].batch != 1:
        return None
    rng = np.random.default_rng(seed)
    linked, fewest = 0, candidates
    for observation, image, label in zip(observations, images[:, 0], labels[:, 0], strict=True):
        same = np.arange(len(others)) if other_labels is None else np.flatnonzero(other_labels == label)
        # The truth must not be among its own decoys.
        same = same[(others[same] != image).any(axis=(1, 2, 3))]
        decoys = others[rng.choice(same, min(candidates - 1, len(same)), replace=False)]
        fewest = min(fewest, len(decoys) + 1)
        if fewest < FEWEST_CANDIDATES:
            return None
        linked += rank_of_truth(observation, np.concatenate([image[np.newaxis], decoys]), int(label)) == 0
    return Linkage(linked / len(observations), fewest)
