"""The one interface of all attacks: observations in, reconstructions and their losses out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.errors import InputError
from fedmpdd.privacy.matching import Match
from fedmpdd.privacy.observation import Observation, one_hot
from fedmpdd.privacy.optimise import State

Progress = Callable[[float], None]  # how much is done, from 0 to 1
SNAPSHOTS = 30  # images kept on the way, for SSIM against iterations


class Snapshot(NamedTuple):
    """What an attack had after so many iterations."""

    iteration: int
    images: NDArray[np.float32]  # [problems, batch, channels, height, width]
    losses: NDArray[np.float64]  # [problems]


@dataclass(frozen=True)
class Reconstruction:
    """What an attack found for each of the observations."""

    images: NDArray[np.float32]  # [problems, batch, channels, height, width], in [0, 1]
    labels: NDArray[np.int64]  # [problems, batch]
    losses: NDArray[np.float64]  # [problems], of what was found
    history: tuple[Snapshot, ...]


class Attack(ABC):
    """Something that turns observations into images. Several observations are attacked side by side.

    They must be of one codec, one batch size and the same models; each is a problem of its own.
    """

    name: str

    @abstractmethod
    def matches(self, observations: Sequence[Observation]) -> list[Match]:
        """Return what a guess is compared with: one match per round, over all problems."""

    @abstractmethod
    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        """Attack."""

    def losses_at(
        self, observations: Sequence[Observation], images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the matching loss [problems], priors left out, of images [problems, batch, …] and their labels.

        At the truth it says whether an attack that found something else was stuck or misled.
        """
        first = observations[0]
        probabilities = one_hot(torch.from_numpy(labels).to(first.device), first.victim.classes)
        guesses = torch.from_numpy(images).to(first.device)
        with torch.no_grad():
            losses = explain(observations, self.matches(observations), guesses, probabilities)
        return losses.double().cpu().numpy()


def explain(observations: Sequence[Observation], matches: Sequence[Match], images: Tensor, labels: Tensor) -> Tensor:
    """Losses [problems] of guesses, added up over the rounds that were seen."""
    victim = observations[0].victim
    total = torch.zeros(len(images), device=images.device)
    for observed, match in zip(observations[0].updates, matches, strict=True):
        total = total + match(victim.gradients(observed.flat, images, labels))
    return total


def by_round(observations: Sequence[Observation], make: Callable[..., Match]) -> list[Match]:
    """One match per round, each over all problems."""
    return [make([o.updates[r] for o in observations]) for r in range(len(observations[0].updates))]


def granted_labels(observations: Sequence[Observation]) -> Tensor | None:
    """Labels [problems, batch] if the attacker has them, None if not."""
    given = [o.labels for o in observations]
    if any(labels is None for labels in given):
        return None
    return torch.stack([labels for labels in given if labels is not None])


def check_together(observations: Sequence[Observation]) -> None:
    """Raise InputError unless the observations can be attacked side by side."""
    if not observations:
        raise InputError("there is nothing to attack; pass at least one observation")
    first = observations[0]
    for o in observations:
        same = (o.victim is first.victim, o.batch == first.batch, len(o.updates) == len(first.updates))
        if not all(same) or o.updates[0].codec != first.updates[0].codec:
            raise InputError("observations of different codecs, batches or numbers of rounds; attack them one by one")


def follow(
    states: Iterator[State],
    iterations: int,
    images_of: Callable[[Tensor], Tensor],
    progress: Progress | None,
    *,
    goal: float = 0.0,
) -> tuple[State, tuple[Snapshot, ...]]:
    """Run an optimiser to its end, or until all losses are `goal`, keeping snapshots on the way."""
    every = max(1, iterations // SNAPSHOTS)
    history: list[Snapshot] = []
    state = None
    for state in states:
        done = bool((state.losses <= goal).all())
        if state.iteration % every == 0 or state.iteration in (1, iterations) or done:
            images = images_of(state.best).detach().clamp(0, 1).cpu().numpy().copy()
            history.append(Snapshot(state.iteration, images, state.losses.double().cpu().numpy().copy()))
            if progress is not None:
                progress(state.iteration / iterations)
        if done:
            break
    assert state is not None, "an attack runs at least one iteration"
    return state, tuple(history)
