"""FedSGD: the whole gradient. What every other codec is measured against."""

from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs._dense import Dense
from fedmpdd.codecs.base import Arrays, Float32, Parameters
from fedmpdd.directions import Key, check_finite


@dataclass(frozen=True)
class FedSGD(Dense):
    """All d coordinates as float32."""

    name: ClassVar[str] = "fedsgd"
    code: ClassVar[int] = 2
    unbiased: ClassVar[bool] = True
    needs_key: ClassVar[bool] = False

    def parameters(self) -> Parameters:
        """See Codec."""
        return Parameters()

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls()

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """See Codec. Nothing is lost."""
        return 0.0

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        check_finite(gradients)
        return [(gradient.copy(),) for gradient in gradients]  # an update does not change with the caller's array
