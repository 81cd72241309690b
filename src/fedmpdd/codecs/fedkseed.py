"""FedKSeed: scalars of zeroth-order steps, each along a direction that is drawn from a pool of K shared ones.

The pool is the same for all clients and rounds, so that the server's model is always the first one plus a sum along K
directions. Which of them an update uses follows from its key and costs no bytes; the original sends these choices. The
original's directions are normal ones, ours are ±1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

from fedmpdd.codecs.backends import Array, Backend
from fedmpdd.codecs.base import Codec, Parameters, Update, check_bits
from fedmpdd.codecs.evidence import Evidence
from fedmpdd.codecs.loss_codec import LossCodec
from fedmpdd.codecs.mpdd import BITS, MPDD
from fedmpdd.codecs.scalar_codec import Terms
from fedmpdd.codecs.scalar_codes import EncodedScalars, ScalarCode
from fedmpdd.directions import Key, derive_seed, family_named, rounding_words
from fedmpdd.errors import CodecError

POOL_SEED = int.from_bytes(b"FedKSeed", "big")  # of the directions of all pools: no update has to name it
POOLS = tuple(2**k for k in range(1, 25))


@dataclass(frozen=True)
class FedKSeed(LossCodec):
    """m scalars of `bits` bits, each along one of `pool` directions that all clients and rounds share.

    With local_steps = m a client takes a step along each, as the original's clients do, and sends how far it went.

    Example:
        >>> simulate(task, FedKSeed(m=16), keys="derived", local_steps=16, local_lr=0.01)  # doctest: +SKIP

    """

    pool: int = 4_096
    bits: int = 32

    name: ClassVar[str] = "fedkseed"
    code: ClassVar[int] = 14
    unbiased: ClassVar[bool] = False  # of a gradient only the part along the pool can arrive
    in_a_row: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits, BITS)
        if not isinstance(self.pool, int) or isinstance(self.pool, bool) or self.pool not in POOLS:
            raise CodecError(f"pool = {self.pool!r} is not a size of pools: expected a power of two from 2 to 2^24")

    @property
    def scalars(self) -> ScalarCode:
        return MPDD(self.m, self.bits).scalars

    def with_bits(self, bits: int) -> "FedKSeed":
        return FedKSeed(self.m, self.log2_step, self.pool, bits)

    def check(self, d: int, slot: int = 0) -> None:
        family_named(self.family).check(d, self.pool, 0)

    def work(self, d: int, slot: int = 0) -> int:
        """See Codec: a direction by itself takes as long as four neighbours."""
        return 4 * d * self.m

    def parameters(self) -> Parameters:
        return Parameters(self.pool.bit_length() - 1, self.log2_step + 32 * BITS.index(self.bits), self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        number, log2_step = divmod(parameters.second, 32)
        if number >= len(BITS):
            raise CodecError(f"{parameters} is no {cls.name} codec: {number} is no number of a size of scalars")
        return cls(parameters.size, log2_step, 2 ** min(parameters.first, 32), BITS[number])

    def revealed_bits(self, d: int) -> int:
        return MPDD(self.m, self.bits).revealed_bits(d)

    def direction_keys(self, key: Key, begin: int, end: int) -> list[Key]:
        """See ScalarCodec: the numbers of directions in the pool are random words of the key."""
        return [Key(POOL_SEED, number) for number in choices(key, self.m, self.pool)[begin:end]]

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> tuple[Array, ...]:
        moments = backend.moments(gradients)
        chosen = [self.direction_keys(key, 0, self.m) for key in keys]
        columns = [backend.project(self.family, gradients, list(column), 1) for column in zip(*chosen, strict=True)]
        return self.write(backend, backend.xp.concatenate(columns, 1), moments, keys)

    def terms(self, backend: Backend, written: EncodedScalars, keys: Sequence[Key], factors: Array) -> Terms:
        """See ScalarCodec: a row of one number for each scalar."""
        multipliers = self.scalars.multipliers(factors, written.scales, self.m)
        numbers = written.numbers
        if written.packed:
            numbers = 1 - 2 * backend.cast(backend.unpack_bits(numbers, self.m), "<f4")
        repeated = multipliers[:, None] + backend.zeros((len(keys), self.m), "<f8")
        chosen = [one for key in keys for one in self.direction_keys(key, 0, self.m)]
        return Terms(numbers.reshape(-1, 1), repeated.reshape(-1), chosen, 1, packed=False)

    def evidence(self, updates: Sequence[Update]) -> Evidence:
        """See Codec: what each update decodes to."""
        return Codec.evidence(self, updates)

    def variance(self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None) -> float:
        """Return the error of the mean of n clients with keys of their own, as MPDD.variance does.

        It has two parts: what m choices leave out of the pool, which falls with n, and what the pool leaves out of the
        gradient, which clients have in common. A part of it is a bias that no number of rounds removes.
        """
        self.check(d)
        if n < 1 or not 0 <= (1 if alignment is None else alignment) <= 1 + 1e-9:
            raise CodecError(f"n = {n}, alignment = {alignment}: expected n of at least 1 and an alignment from 0 to 1")
        common = (d - 1) / self.pool
        one = d / self.m * self.scalars.second_moment(self.m) + (1 - 1 / self.m) * (1 + common) - 1
        shared = 1 / n if alignment is None else alignment
        return one / n + common * (shared - 1 / n)


@lru_cache(maxsize=1_024)
def choices(key: Key, count: int, pool: int) -> list[int]:
    """Return which directions of the pool an update with this key uses, one may be there twice.

    The words are those that round scalars, under a seed of their own: rounding must not follow the directions.
    """
    words = rounding_words([Key(derive_seed(key.seed, 0, 1), key.slot)], count)[0]
    return [int(word) & (pool - 1) for word in words]
