"""FedSGD: the whole gradient. What every other codec is measured against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.backends import Array, Backend
from fedmpdd.codecs.base import Arrays, Codec, Columns, Parameters, Section, Update
from fedmpdd.codecs.packing import check_finite_values, length_of
from fedmpdd.directions import Key


class Dense(Codec):
    """d float32 values, averaged by the server as they are."""

    unbiased: ClassVar[bool] = True
    needs_key: ClassVar[bool] = False
    self_contained: ClassVar[bool] = True

    def sections(self, d: int) -> tuple[Section, ...]:
        return (Section("values", "<f4", d),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        check_finite_values(arrays[0])

    def magnitude(self, update: Update) -> float:
        return length_of(update.arrays[0])

    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        (values,) = columns
        return backend.weighted_sum(d, factors, lambda i, part: values[i][part])


@dataclass(frozen=True)
class FedSGD(Dense):
    """All d coordinates as float32."""

    name: ClassVar[str] = "fedsgd"
    code: ClassVar[int] = 2

    @property
    def adds_up(self) -> bool:
        return True

    def parameters(self) -> Parameters:
        return Parameters()

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls()

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """See Codec. Nothing is lost."""
        return 0.0

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        return (backend.copy(gradients),)  # an update does not change with the caller's array
