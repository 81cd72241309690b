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
    side by side and the lowest loss is kept.
    """

    iterations: int = 1_200
    optimiser: str = "lbfgs"
    restarts: int = 2
    name: str = "dlg"

    def matches(self, observations: Sequence[Observation]) -> list[Match]:
        """See Attack."""
        return by_round(observations, lambda sights: SquaredDifference(match_decoded(sights)))

    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        """See Attack."""
        check_together(observations)
        several = [o for o in observations for _ in range(self.restarts)]
        found = self._run(several, seed, progress)
        return keep_best(found, self.restarts)

    def _run(self, observations: Sequence[Observation], seed: int, progress: Progress | None) -> Reconstruction:
        victim, batch = observations[0].victim, observations[0].batch
        problems, pixels = len(observations), batch * int(torch.Size(victim.shape).numel())
        matches, known = self.matches(observations), granted_labels(observations)
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(
            (problems, pixels + (0 if known is not None else batch * victim.classes)), generator=generator
        )

        def images_of(x: Tensor) -> Tensor:
            return x[:, :pixels].view(problems, batch, *victim.shape)

        def labels_of(x: Tensor) -> Tensor:
            if known is not None:
                return one_hot(known, victim.classes)
            return torch.softmax(x[:, pixels:].view(problems, batch, victim.classes), dim=2)

        def objective(x: Tensor) -> Tensor:
            return explain(observations, matches, images_of(x), labels_of(x))

        if self.optimiser == "lbfgs":
            states = lbfgs(objective, start, self.iterations, history=100, search=False)
        else:
            states = adam(objective, start, self.iterations, lr=0.1, decay=False)
        state, history = follow(states, self.iterations, images_of, progress, enough=1e-9)
        labels = labels_of(state.best).argmax(dim=2).numpy()
        return Reconstruction(history[-1].images, labels, state.losses.double().numpy(), history)


def keep_best(found: Reconstruction, restarts: int) -> Reconstruction:
    """Of every `restarts` neighbouring problems the one with the lowest loss at the end."""
    problems = len(found.losses) // restarts
    best = [p * restarts + int(found.losses[p * restarts : (p + 1) * restarts].argmin()) for p in range(problems)]
    return replace(
        found,
        images=found.images[best],
        labels=found.labels[best],
        losses=found.losses[best],
        history=tuple(s._replace(images=s.images[best], losses=s.losses[best]) for s in found.history),
    )
