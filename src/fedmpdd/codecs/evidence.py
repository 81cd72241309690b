"""What an update tells who knows its key: what an attacker holds a guess of the gradient against.

A codec answers with one of these, so that an audit can attack a codec that it has never heard of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Coordinates:
    """Estimates of the gradients themselves.

    Args:
        targets: what each update decodes to [updates, d].
        known: which of the coordinates the update says something about [updates, d]; None for all.

    """

    targets: Float32
    known: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Projections:
    """Scalars along directions that the attacker can make.

    Args:
        family: of the directions.
        keys: of the updates.
        levels: the scalars in units of their step [updates, m].
        steps: what one level is worth [updates]; for signs the scale that came with them.
        rounding: "exact", "levels" (a scalar lies within one step of its level) or "signs".
        sized: whether the steps tell how long the gradients are; signs that come without a scale do not.

    """

    family: str
    keys: Sequence[Any]
    levels: Float32
    steps: NDArray[np.float64]
    rounding: str
    sized: bool = True


@dataclass(frozen=True)
class Choices:
    """Of each group of directions the one along which the derivative is largest in size, and its sign.

    Args:
        family: of the directions.
        keys: of the updates.
        group: how many directions one is chosen from.
        places: which of its group each peak is [updates, m].
        negative: whether it is negative [updates, m].
        norms: about how long each gradient is [updates].

    """

    family: str
    keys: Sequence[Any]
    group: int
    places: NDArray[np.int64]
    negative: NDArray[np.bool_]
    norms: NDArray[np.float64]


Evidence = Coordinates | Projections | Choices
