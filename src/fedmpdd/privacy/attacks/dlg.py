"""Deep Leakage from Gradients: match the decoded gradient, image and label together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from fedmpdd.privacy.matching import Match, SquaredDifference, match_decoded
from fedmpdd.privacy.observation import Observation, one_hot
from fedmpdd.privacy.optimise import adam, lbfgs


@dataclass(frozen=True)
class DLG(Attack):
    """As published: N(0, 1) start, squared differences, no prior and no box; L-BFGS of history 100, or Adam.

    This is the attack of the paper: on FedMPDD it matches the server's estimate ĝ. Runs from several starts are made
    side by side and the lowest loss is kept. Labels are optimised with the images, as published; where they are
    granted, every other start uses them. Neither way is better for all: softmax regression with small weights needs
    the first, with large ones the second.
    """

    iterations: int = 1_200
    optimiser: str = "lbfgs"
    restarts: int = 2
    joint: bool = True
    name: str = "dlg"

    def matches(self, observations: Sequence[Observation]) -> list[Match]:
        return by_round(observations, lambda updates: SquaredDifference(match_decoded(updates)))

    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        check_together(observations)
        granted = granted_labels(observations) is not None
        ways = (True, False) if self.joint and granted else (self.joint,)
        several = [o for o in observations for _ in range(self.restarts * len(ways))]
        joint = torch.tensor(ways * (len(observations) * self.restarts), device=observations[0].device)
        return keep_best(self._run(several, joint, seed, progress), self.restarts * len(ways))

    def _run(
        self, observations: Sequence[Observation], joint: Tensor, seed: int, progress: Progress | None
    ) -> Reconstruction:
        """Attack; `joint` says for which problems labels are optimised too."""
        victim, batch = observations[0].victim, observations[0].batch
        problems, pixels = len(observations), batch * int(torch.Size(victim.shape).numel())
        matches = self.matches(observations)
        known = granted_labels(observations)
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn((problems, pixels + batch * victim.classes), generator=generator)  # on the CPU: one start
        start = start.to(observations[0].device)

        def images_of(x: Tensor) -> Tensor:
            return x[:, :pixels].view(problems, batch, *victim.shape)

        def labels_of(x: Tensor) -> Tensor:
            soft = torch.softmax(x[:, pixels:].view(problems, batch, victim.classes), dim=2)
            if known is None:
                return soft
            return torch.where(joint[:, None, None], soft, one_hot(known, victim.classes))

        def objective(x: Tensor) -> Tensor:
            return explain(observations, matches, images_of(x), labels_of(x))

        if self.optimiser == "lbfgs":
            states = lbfgs(objective, start, self.iterations, history=100, search=False)
        else:
            states = adam(objective, start, self.iterations, lr=0.1, decay=False)
        state, history = follow(states, self.iterations, images_of, progress, goal=1e-9)
        labels = labels_of(state.best).argmax(dim=2).cpu().numpy()
        return Reconstruction(history[-1].images, labels, state.losses.double().cpu().numpy(), history)


def keep_best(reconstruction: Reconstruction, restarts: int) -> Reconstruction:
    """Of every `restarts` neighbouring problems the one with the lowest loss at the end."""
    problems = len(reconstruction.losses) // restarts
    losses = reconstruction.losses.reshape(problems, restarts)
    best = [p * restarts + int(row.argmin()) for p, row in enumerate(losses)]
    return replace(
        reconstruction,
        images=reconstruction.images[best],
        labels=reconstruction.labels[best],
        losses=reconstruction.losses[best],
        history=tuple(s._replace(images=s.images[best], losses=s.losses[best]) for s in reconstruction.history),
    )
