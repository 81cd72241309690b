"""DeComFL: zeroth-order scalars. Clients compute losses only, at the model moved a little along shared directions.

Directions are those of this project, ±1 and the same for all clients of a round (keys = "shared"), where the original
takes normal ones; its scalars are forward differences, ours central ones, which are more exact at the same bytes.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.base import Parameters
from fedmpdd.codecs.loss_codec import LossCodec
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.codecs.scalar_codes import Float32Code, ScalarCode


@dataclass(frozen=True)
class DeComFL(LossCodec):
    """m scalars (f(x + μu) − f(x − μu)) / 2μ with μ = 2^−log2_step.

    With local_steps = T a client takes T steps, each along m / T directions, as the original's clients do.
    """

    name: ClassVar[str] = "decomfl"
    code: ClassVar[int] = 11
    shares_key: ClassVar[bool] = True

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
