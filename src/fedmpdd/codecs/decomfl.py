"""DeComFL: zeroth-order scalars. Clients compute losses only, at the model moved a little along shared directions.

Directions are those of this project, ±1 and the same for all clients of a round (keys = "shared"), where the original
takes normal ones; its scalars are forward differences, ours central ones, which are more exact at the same bytes.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.base import Parameters, check_count
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.codecs.scalar_codec import ScalarCodec
from fedmpdd.codecs.scalar_codes import Float32Code, ScalarCode
from fedmpdd.errors import CodecError


@dataclass(frozen=True)
class DeComFL(ScalarCodec):
    """m scalars (f(x + μu) − f(x − μu)) / 2μ with μ = 2^−log2_step.

    A gradient can be encoded too: its scalars are then what the differences tend to as μ falls.
    """

    m: int = 10
    log2_step: int = 10

    name: ClassVar[str] = "decomfl"
    code: ClassVar[int] = 11
    source: ClassVar[str] = "losses"
    family: ClassVar[str] = "rademacher"  # type: ignore[misc]

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
    def count(self) -> int:
        return self.m

    @property
    def scalars(self) -> ScalarCode:
        return Float32Code()

    def parameters(self) -> Parameters:
        return Parameters(second=self.log2_step, size=self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(m=parameters.size, log2_step=parameters.second)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """See Codec. For keys of their own; shared directions make errors common too, and they do not fall with n."""
        return MPDD(self.m).variance(d, n)
