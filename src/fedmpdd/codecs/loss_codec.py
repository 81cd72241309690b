"""Codecs whose clients compute losses only: scalars are differences of losses at the model, moved a little to and fro.

How the scalars come about is told in fedmpdd.simulation.zeroth_order. A gradient can be encoded too: its scalars are
then what the differences tend to as the step falls.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmpdd.codecs.base import check_count
from fedmpdd.codecs.scalar_codec import ScalarCodec
from fedmpdd.errors import CodecError

STEPS = range(21)  # below 2^−20 float32 parameters hardly move


@dataclass(frozen=True)
class LossCodec(ScalarCodec):
    """m scalars (f(x + μu) − f(x − μu)) / 2μ with μ = 2^−log2_step, u a rademacher direction."""

    m: int = 10
    log2_step: int = 10

    source: ClassVar[str] = "losses"
    family: ClassVar[str] = "rademacher"  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_count("m", self.m, "directions")
        integer = isinstance(self.log2_step, int) and not isinstance(self.log2_step, bool)
        if not integer or self.log2_step not in STEPS:
            raise CodecError(f"log2_step = {self.log2_step!r} is not a step 2^−it: expected an integer from 0 to 20")

    @property
    def step(self) -> float:
        """μ, how far the model is moved."""
        return 2.0**-self.log2_step

    @property
    def count(self) -> int:
        return self.m
