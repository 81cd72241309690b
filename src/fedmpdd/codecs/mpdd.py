"""FedMPDD: m directional derivatives of the gradient and a seed (Algorithm 2 of the paper).

With m = 1 and 32 bits it is FedPDD (Algorithm 1). Fewer bits, and hadamard directions, are this project's own; the
derivations of scales and variances are in docs/codec.md.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.arithmetic import repeated_share
from fedmpdd.codecs.base import Parameters, check_bits, check_count
from fedmpdd.codecs.scalar_codec import ScalarCodec
from fedmpdd.codecs.scalar_codes import Float32Code, LevelCode, ScalarCode, SignCode
from fedmpdd.directions import family_named, family_numbered, hadamard_size
from fedmpdd.errors import CodecError

BITS = (32, 16, 8, 4, 1)


@dataclass(frozen=True)
class MPDD(ScalarCodec):
    """m scalars of `bits` bits along directions of `family`.

    Example:
        >>> updates = MPDD(m=400, bits=1, family="hadamard").encode(gradients, keys)  # doctest: +SKIP

    """

    m: int
    bits: int = 32
    family: str = "rademacher"

    name: ClassVar[str] = "mpdd"
    code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_count("m", self.m, "directions")
        check_bits(self.bits, BITS)
        family_named(self.family)

    @property
    def count(self) -> int:
        return self.m

    @property
    def scalars(self) -> ScalarCode:
        if self.bits == 32:
            return Float32Code()
        return SignCode() if self.bits == 1 else LevelCode(self.bits)

    def parameters(self) -> Parameters:
        return Parameters(family_named(self.family).code, self.bits, self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(m=parameters.size, bits=parameters.second, family=family_numbered(parameters.first).name)

    def revealed_bits(self, d: int) -> int:
        return self.m * self.bits + (32 if self.bits < 32 else 0)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """Return the error of the mean of n clients, relative to the mean squared norm of their gradients.

        Independent keys: the error of one client divided by n. Partitioned (one seed, one slot a client): errors of
        clients cancel as far as gradients agree; `alignment` is ‖mean gradient‖² / mean ‖gradient‖², from 0 (they
        cancel) over 1/n (unrelated, the default) to 1 (all the same). One bit: for gradients that spread over many
        coordinates; the bias that others have (docs/codec.md) comes on top.
        """
        self.check(d)
        if n < 1 or not 0 <= (1 if alignment is None else alignment) <= 1 + 1e-9:
            raise CodecError(f"n = {n}, alignment = {alignment}: expected n of at least 1 and an alignment from 0 to 1")
        overlap = family_named(self.family).overlap(d)
        one = d / self.m * self.scalars.second_moment(self.m) + (1 - 1 / self.m) * overlap - 1
        if not partitioned or n == 1:
            return one / n
        shared = 1 / n if alignment is None else alignment
        repeated = repeated_share(hadamard_size(d), self.m, n) if self.family == "hadamard" else 0.0
        cosine = (shared - 1 / n) * n / (n - 1)  # of two clients' gradients, on average: from −1/(n − 1) to 1
        # Two signs of one row agree more often than the cosine says: E = 2/π · asin(cosine).
        signs = not self.scalars.graded
        same_row = d * math.asin(min(1.0, cosine)) / cosine if signs and cosine != 0 else d
        return one / n + ((1 - repeated) * overlap + repeated * same_row - 1) * (shared - 1 / n)
