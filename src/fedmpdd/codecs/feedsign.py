"""FeedSign: the sign of a difference of losses along a direction that all clients share, and a majority vote.

The vote is a part of decoding: among updates of one key each direction gets the sign that more of their weight has, and
none where it is a tie. The step size of the server is then how far the model goes, whatever the gradient's length.
The original's directions are normal ones, ours are ±1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fedmpdd.codecs.backends import HOST, Array, Backend
from fedmpdd.codecs.base import Batch, Parameters, Update, mean_factors
from fedmpdd.codecs.loss_codec import LossCodec
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.codecs.scalar_codec import ScalarCodec, Terms
from fedmpdd.codecs.scalar_codes import BareSignCode, EncodedScalars, ScalarCode
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError

TIE = 2.0**-40  # of all weight: sums of weights below it differ from 0 by rounding alone


@dataclass(frozen=True)
class FeedSign(LossCodec):
    """m signs of differences of losses, along directions that all clients share; the original's m is 1.

    Example:
        >>> simulate(task, FeedSign(), keys="shared", lr=0.001)  # doctest: +SKIP

    """

    m: int = 1

    name: ClassVar[str] = "feedsign"
    code: ClassVar[int] = 15
    shares_key: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    @property
    def scalars(self) -> ScalarCode:
        return BareSignCode()

    @property
    def adds_up(self) -> bool:
        return False

    def with_bits(self, bits: int) -> ScalarCodec:
        """See ScalarCodec. One bit a scalar needs no scale here either, since a vote is a sign."""
        return self if bits == 1 else MPDD(self.m, bits)

    def parameters(self) -> Parameters:
        return Parameters(second=self.log2_step, size=self.m)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(m=parameters.size, log2_step=parameters.second)

    def revealed_bits(self, d: int) -> int:
        return self.m

    def terms(self, backend: Backend, written: EncodedScalars, keys: Sequence[Key], factors: Array) -> Terms:
        """See ScalarCodec: one row for each key, the vote of its updates."""
        signs = 1 - 2 * backend.cast(backend.unpack_bits(written.numbers, self.m), "<f8")
        voters: dict[Key, list[int]] = {}
        for place, key in enumerate(keys):
            voters.setdefault(key, []).append(place)
        votes, weights = [], []
        for places in voters.values():
            total, weight = signs[places[0]] * factors[places[0]], factors[places[0]]
            for place in places[1:]:  # one after another: the same bits on every machine
                total, weight = total + signs[place] * factors[place], weight + factors[place]
            votes.append(backend.cast(total > TIE, "<f4") - backend.cast(total < -TIE, "<f4"))
            weights.append(weight / self.m)
        stack = backend.xp.stack
        return Terms(stack(votes), stack(weights), list(voters), self.m, packed=False)

    def mean_update(self, updates: Sequence[Update], bits: int, weights: Sequence[float] | None = None) -> Update:
        """Return the vote of updates with one key as one update; with one bit a tie becomes a plus."""
        if len({update.key for update in updates}) != 1:
            raise CodecError('the updates have different keys, so that they cannot vote; use keys = "shared"')
        batch = Batch.of(updates)
        written = self.scalars.read(HOST, batch.columns, self.m)
        vote = self.terms(HOST, written, batch.keys, mean_factors(len(updates), weights)).numbers[0]
        return self.update_of(vote.astype("<f8"), updates[0].d, updates[0].key, bits)
