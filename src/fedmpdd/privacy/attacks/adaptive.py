"""The attack of somebody who has the seed, as every server does: match what was sent, in the space it was sent in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedmpdd.errors import InputError
from fedmpdd.privacy.attacks.base import (
    Attack,
    Progress,
    Reconstruction,
    Snapshot,
    by_round,
    check_together,
    explain,
    follow,
    granted_labels,
)
from fedmpdd.privacy.attacks.dlg import keep_best
from fedmpdd.privacy.labels import enumerate_labels
from fedmpdd.privacy.matching import Match, match_sent
from fedmpdd.privacy.observation import Observation, one_hot
from fedmpdd.privacy.optimise import adam, lbfgs
from fedmpdd.privacy.priors import PublicImages, total_variation

# What the first guess usually leaves unexplained. Where it leaves less, as at weights so small that most of a gradient
# does not depend on the image, smoothness counts for less, or it would outweigh all that is left to explain.
REFERENCE_SCALE = 1e-2
STAGES = 4  # in which total variation falls: an optimiser with a memory must not see its objective change every step


@dataclass(frozen=True)
class Adaptive(Attack):
    """L-BFGS, or signed Adam for networks without a second derivative, on what was sent, with a prior on images.

    prior: "smooth" (pixels in their box by a sigmoid, total variation that fades, a start at the public mean of the
    class where there is one) or "components" (a public class mean plus its principal components, each as likely as it
    is among public images: for few scalars, which cannot describe an image). Labels are granted, or enumerated, or,
    with `joint`, optimised together with smooth images.
    """

    iterations: int = 600
    optimiser: str = "lbfgs"
    prior: str = "smooth"
    tv_first: float = 1e-2
    tv_last: float = 1e-5
    components: int = 60
    restarts: int = 1
    joint: bool = False
    public: PublicImages | None = field(default=None, repr=False)
    name: str = "adaptive"

    def matches(self, observations: Sequence[Observation]) -> list[Match]:
        return by_round(observations, match_sent)

    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        check_together(observations)
        labelled = list(observations) if self.joint else enumerate_labels(self, observations, seed)
        several = [o for o in labelled for _ in range(self.restarts)]
        return keep_best(self._run(several, seed, progress), self.restarts)

    def _run(self, observations: Sequence[Observation], seed: int, progress: Progress | None) -> Reconstruction:
        victim, batch, problems = observations[0].victim, observations[0].batch, len(observations)
        matches, known = self.matches(observations), granted_labels(observations)
        generator = torch.Generator().manual_seed(seed)
        if self.prior == "components":
            pixels_of, start = self._components(known, generator, observations[0].device)
        else:
            pixels_of, start = torch.sigmoid, self._smooth_start(observations, known, generator)
        size, device = start.shape[1], observations[0].device
        if known is None:
            start = torch.cat([start, torch.zeros(problems, batch * victim.classes)], dim=1)
        start = start.to(device)  # drawn on the CPU: the same on every device
        nats = sum(match.nats for match in matches)

        def images_of(x: Tensor) -> Tensor:
            return pixels_of(x[:, :size]).view(problems, batch, *victim.shape)

        def labels_of(x: Tensor) -> Tensor:
            if known is not None:
                return one_hot(known, victim.classes)
            return torch.softmax(x[:, size:].view(problems, batch, victim.classes), dim=2)

        with torch.no_grad():
            unexplained = explain(observations, matches, images_of(start), labels_of(start))
        scale = (unexplained / REFERENCE_SCALE).clamp_max(1.0)

        def objective_with(variation: float) -> Callable[[Tensor], Tensor]:
            def objective(x: Tensor) -> Tensor:
                images = images_of(x)
                losses = explain(observations, matches, images, labels_of(x))
                if self.prior == "components":
                    return losses + 0.5 * x[:, :size].square().sum(dim=1) / nats
                return losses + variation * scale * total_variation(images)

            return objective

        stages = 1 if self.prior == "components" else STAGES
        length = max(1, self.iterations // stages)
        history: list[Snapshot] = []
        x = start
        for stage in range(stages):
            objective = objective_with(self.tv_first * (self.tv_last / self.tv_first) ** (stage / max(1, stages - 1)))

            def report(share: float, stage: int = stage) -> None:
                if progress is not None:
                    progress((stage + share) / stages)

            states = (
                lbfgs(objective, x, length)
                if self.optimiser == "lbfgs"
                else adam(objective, x, length, lr=0.1, signed=True)
            )
            state, snapshots = follow(states, length, images_of, report)
            history += [s._replace(iteration=stage * length + s.iteration) for s in snapshots]
            x = state.best
        images = history[-1].images
        labels = labels_of(x).argmax(dim=2).cpu().numpy()
        return Reconstruction(images, labels, self.losses_at(observations, images, labels), tuple(history))

    def _smooth_start(
        self, observations: Sequence[Observation], known: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        problems, batch = len(observations), observations[0].batch
        start = 0.5 * torch.randn((problems, batch * int(np.prod(observations[0].victim.shape))), generator=generator)
        if self.public is None or known is None:
            return start
        means = np.stack([[self.public.class_mean(label) for label in labels] for labels in known.tolist()])
        return torch.logit(torch.from_numpy(means).reshape(problems, -1).clamp(0.05, 0.95)) + 0.1 * start

    def _components(
        self, known: Tensor | None, generator: torch.Generator, device: torch.device
    ) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        if self.public is None or known is None:
            raise InputError('prior = "components" needs public images and labels that are granted or enumerated')
        spaces = [[self.public.class_components(label, self.components) for label in row] for row in known.tolist()]
        mean = torch.from_numpy(np.stack([[m for m, _ in row] for row in spaces]))  # [problems, batch, n]
        basis = torch.from_numpy(np.stack([[b for _, b in row] for row in spaces]))  # [problems, batch, components, n]
        mean, basis = mean.to(device), basis.to(device)
        problems, batch, count, _ = basis.shape

        def pixels_of(x: Tensor) -> Tensor:
            return (mean + torch.einsum("pbk,pbkn->pbn", x.view(problems, batch, count), basis)).clamp(0, 1)

        return pixels_of, 0.1 * torch.randn((problems, batch * count), generator=generator)
