"""Labels that the attacker was not granted: try every class for a short while and keep the one that fits best."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedmpdd.errors import InputError
from fedmpdd.privacy.observation import Observation

SHARE = 8  # of the iterations of an attack go into each class


def enumerate_labels(attack: Any, observations: Sequence[Observation], seed: int) -> list[Observation]:
    """Return the observations with labels: those granted, or the best of all classes after a short attack each."""
    if all(o.labels is not None for o in observations):
        return list(observations)
    first = observations[0]
    if first.batch != 1:
        raise InputError(
            f"labels of batches of {first.batch} cannot be enumerated; grant them, or use an attack that optimises them"
        )
    classes = range(first.victim.classes)
    tried = [replace(o, labels=torch.tensor([label], device=o.device)) for o in observations for label in classes]
    short = replace(attack, iterations=max(10, attack.iterations // SHARE), restarts=1)
    losses = short.run(tried, seed=seed).losses.reshape(len(observations), len(classes))
    return [
        replace(o, labels=torch.tensor([int(row.argmin())], device=o.device))
        for o, row in zip(observations, losses, strict=True)
    ]
