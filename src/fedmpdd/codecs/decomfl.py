"""DeComFL: zeroth-order scalars. Clients compute losses only, at the model moved a little along shared directions.

Directions are those of this project, ±1 and the same for all clients of a round (keys = "shared"), where the original
takes normal ones; its scalars are forward differences, ours central ones, which are more exact at the same bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import as_float32
from fedmpdd.codecs._packing import check_finite_values, length_of
from fedmpdd.codecs.base import (
    LARGEST_COORDINATE,
    Arrays,
    Codec,
    Float32,
    Parameters,
    Section,
    Update,
    check_count,
)
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import Key, check_key
from fedmpdd.errors import CodecError


@dataclass(frozen=True)
class DeComFL(Codec):
    """m scalars (f(x + μu) − f(x − μu)) / 2μ with μ = 2^−log2_step.

    A gradient can be encoded too: its scalars are then what the differences tend to as μ falls.
    """

    m: int = 10
    log2_step: int = 10

    name: ClassVar[str] = "decomfl"
    code: ClassVar[int] = 11
    unbiased: ClassVar[bool] = True
    from_losses: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("m", self.m, "directions")
        integer = isinstance(self.log2_step, int) and not isinstance(self.log2_step, bool)
        if not integer or not 0 <= self.log2_step <= 20:  # below 2^−20 float32 parameters hardly move
            raise CodecError(f"log2_step = {self.log2_step!r} is not a step 2^−it: expected an integer from 0 to 20")

    @property
    def step(self) -> float:
        """μ, how far the model is moved."""
        return 2.0**-self.log2_step

    @property
    def _projections(self) -> MPDD:
        return MPDD(self.m)

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        self._projections.check(d, slot)

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return (Section("scalars", "<f4", self.m),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        check_finite_values(arrays[0], LARGEST_COORDINATE)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec."""
        return self._projections.work(d)

    def _bound(self, updates: Sequence[Update]) -> float:
        """See Codec."""
        return self._projections._bound(updates)

    def magnitude(self, update: Update) -> float:
        """See Codec."""
        return length_of(update.arrays[0]) / math.sqrt(self.m)

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters(second=self.log2_step, size=self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(m=parameters.size, log2_step=parameters.second)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """See Codec. For keys of their own; shared directions make errors common too, and they do not fall with n."""
        return self._projections.variance(d, n)

    def encode_losses(self, differences: NDArray[np.float64], keys: Sequence[Key], d: int) -> list[Update]:
        """Make updates of f(x + μu) − f(x − μu) [clients, m], for directions u of the keys."""
        if differences.shape != (len(keys), self.m):
            raise CodecError(f"differences have shape {list(differences.shape)}, expected [{len(keys)}, {self.m}]")
        scalars = as_float32(differences / (2 * self.step), "a difference of losses", LARGEST_COORDINATE)
        return [Update(self, d, check_key(key), (row.copy(),)) for key, row in zip(keys, scalars, strict=True)]

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        return self._projections._encode(gradients, keys)

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        return self._projections._decode_sum(updates, factors, d)
