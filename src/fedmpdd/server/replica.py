"""A model that goes from round to round: the server's own, a client's that follows it, one that a journal rebuilds.

All of them take the same step along the same decoded mean, on NumPy's arrays or on tensors, and come to the same bits.
"""

from collections.abc import Sequence
from typing import Any, Generic

from fedmpdd.codecs import Codec
from fedmpdd.codecs.backends import backend_of
from fedmpdd.server.step import Step, Vector
from fedmpdd.uplink.mixed import AnyMean, read_mean


class Replica(Generic[Vector]):
    """A model, the server's optimiser, and the number of the next round.

    Args:
        flat: the parameters, float32 [d].
        step: what the server does with a mean gradient.
        next_round: from 0; Adam counts rounds.

    """

    def __init__(self, flat: Vector, step: Step[Vector], next_round: int = 0) -> None:
        self.flat, self.step, self.next_round = flat, step, next_round

    def take(self, mean: AnyMean | None, factor: float = 1.0) -> None:
        """Go one round further along a mean; along none where nobody answered.

        factor: how much of the estimated step to take.
        """
        if mean is not None:
            flat: Any = self.flat
            estimate = mean.estimate()
            if type(estimate) is not type(flat):  # decoded on the CPU, for a model on a GPU
                estimate = backend_of(flat).like(estimate)
            if factor != 1.0:
                estimate = estimate * float(factor)  # a float of Python: rounded to float32, then one product each
            self.flat = self.step(flat, estimate, self.next_round)
        self.next_round += 1

    def apply(self, data: bytes, codec: Codec | Sequence[Codec], factor: float = 1.0) -> None:
        """Go one round further by the bytes of its bundle, or raise WireError.

        codec: of its updates; several, in the order of the run's links, where clients have different ones.
        """
        flat: Any = self.flat
        self.take(read_mean(data, codec, len(flat), str(backend_of(flat).device)), factor)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The model, and what the server's optimiser keeps: all that somebody needs who has neither."""
        return (self.flat, *self.step.state.values())

    def load(self, vectors: tuple[Vector, ...], next_round: int) -> None:
        """Go on from the vectors of another replica."""
        self.flat, *state = vectors
        self.step.state = dict(zip(self.step.state, state, strict=True))
        self.next_round = next_round
