"""Linkage: given candidates, which one was it? Needs no reconstruction and is often exact where that fails."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedmpdd.privacy.matching import match_sent
from fedmpdd.privacy.observation import Observation, one_hot


def rank_of_truth(observation: Observation, candidates: NDArray[np.float32], label: int) -> int:
    """Return how many of the candidates [count, …] explain a batch of one better than the first, which is the truth."""
    victim, count = observation.victim, len(candidates)
    labels = one_hot(torch.full((count, 1), label), victim.classes)
    losses = torch.zeros(count)
    with torch.no_grad():
        for observed in observation.updates:
            gradients = victim.gradients(observed.flat, torch.from_numpy(candidates)[:, None], labels)
            losses += match_sent([observed] * count)(gradients)
    return int((losses[1:] < losses[0]).sum())


def linkage(
    observations: Sequence[Observation],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    others: NDArray[np.float32],
    other_labels: NDArray[np.int64],
    *,
    candidates: int = 100,
    seed: int = 0,
) -> float | None:
    """Share of batches of one [problems, 1, …] whose true image is found among so many of its class; else None."""
    if observations[0].batch != 1:
        return None
    rng = np.random.default_rng(seed)
    linked = 0
    for observation, image, label in zip(observations, images[:, 0], labels[:, 0], strict=True):
        same = np.flatnonzero(other_labels == label)
        # The truth must not be among its own decoys.
        same = same[(others[same] != image).any(axis=(1, 2, 3))]
        decoys = others[rng.choice(same, min(candidates - 1, len(same)), replace=False)]
        linked += rank_of_truth(observation, np.concatenate([image[np.newaxis], decoys]), int(label)) == 0
    return linked / len(observations)
