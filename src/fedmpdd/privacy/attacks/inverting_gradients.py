"""Inverting Gradients: the cosine of the decoded gradient, total variation, signed Adam inside the box of pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmpdd.privacy.attacks.base import (
    Attack,
    Progress,
    Reconstruction,
    by_round,
    check_together,
    explain,
    follow,
    granted_labels,
)
from fedmpdd.privacy.attacks.dlg import keep_best
from fedmpdd.privacy.labels import enumerate_labels
from fedmpdd.privacy.matching import Cosine, Match, match_decoded
from fedmpdd.privacy.observation import Observation, one_hot
from fedmpdd.privacy.optimise import adam
from fedmpdd.privacy.priors import total_variation


@dataclass(frozen=True)
class InvertingGradients(Attack):
    """As published, with fewer iterations by default (4,800 to 24,000 there); labels enumerated where not granted."""

    iterations: int = 2_400
    tv: float = 1e-2
    restarts: int = 1
    name: str = "inverting-gradients"

    def matches(self, observations: Sequence[Observation]) -> list[Match]:
        return by_round(observations, lambda updates: Cosine(match_decoded(updates)))

    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        check_together(observations)
        labelled = enumerate_labels(self, observations, seed)
        several = [o for o in labelled for _ in range(self.restarts)]
        return keep_best(self._run(several, seed, progress), self.restarts)

    def _run(self, observations: Sequence[Observation], seed: int, progress: Progress | None) -> Reconstruction:
        victim, batch = observations[0].victim, observations[0].batch
        problems, matches = len(observations), self.matches(observations)
        known = granted_labels(observations)
        assert known is not None
        labels = one_hot(known, victim.classes)

        def images_of(x: Tensor) -> Tensor:
            return x.view(problems, batch, *victim.shape)

        def objective(x: Tensor) -> Tensor:
            images = images_of(x)
            return explain(observations, matches, images, labels) + self.tv * total_variation(images)

        pixels = batch * int(torch.Size(victim.shape).numel())
        start = torch.randn((problems, pixels), generator=torch.Generator().manual_seed(seed))  # on the CPU: one start
        start = start.to(observations[0].device)
        states = adam(objective, start, self.iterations, lr=0.1, signed=True, clamp=(0.0, 1.0))
        _, history = follow(states, self.iterations, images_of, progress)
        images, classes = history[-1].images, known.cpu().numpy()
        return Reconstruction(images, classes, self.losses_at(observations, images, classes), history)
