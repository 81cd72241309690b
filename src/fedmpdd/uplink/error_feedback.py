"""Error feedback: what a codec left out of an update is added to the client's next gradient.

State is no codec's business, so these are wrappers around one: updates are those of the codec and decode as such.
"""

from collections.abc import Sequence

import numpy as np

from fedmpdd.codecs.base import Float32, Update
from fedmpdd.directions import Key, check_finite, check_gradients
from fedmpdd.errors import CodecError
from fedmpdd.uplink.memories import Memories, check_no_overflow, relative_error


class ErrorFeedback(Memories):
    """A codec with one memory per client that took part: a = ε + g, send codec(a), ε = a − decoded.

    For codecs whose error is smaller than what they encode, TopK and SignSGD above all. A codec that is known to lose
    more than it is given (RandK, FedMPDD of few directions) would make memories grow without bound and is refused.
    Not for codecs that add noise: the memory takes back, a round later, what the noise was to hide.
    """

    def factor(self, d: int) -> float:
        """What decoded updates are multiplied by, on both sides."""
        return 1.0

    def encode(self, gradients: Float32, keys: Sequence[Key | int], clients: Sequence[int]) -> list[Update]:
        """See Memories: encode what is remembered too, and remember what was left out."""
        check_gradients(gradients)
        self._check(clients, *gradients.shape)
        check_finite(gradients)
        corrected = gradients.copy()
        factor = np.float32(self.factor(gradients.shape[1]))
        with np.errstate(over="ignore"):
            for row, client in enumerate(clients):
                if client in self._memory:
                    corrected[row] += self._memory[client]
            check_no_overflow(corrected)
            updates = self.codec.encode(corrected, keys)
            for row, update in enumerate(updates):
                corrected[row] -= factor * self.codec.decode_mean([update])
            check_no_overflow(corrected)
        # Rows of their own: a view would keep the whole batch alive for the sake of one client.
        self._memory.update((client, corrected[row].copy()) for row, client in enumerate(clients))
        return updates

    def check(self, d: int) -> None:
        """Raise CodecError if memories of d coordinates would grow without bound."""
        lost = None if self.codec.variance_is_bound else self.codec.variance(d)
        if lost is not None and lost >= 1:
            raise CodecError(
                f"{self.codec} loses {lost:.3g} times the square of what it encodes at d = {d}, so that memories would "
                "grow without bound; expected less than 1: send more, or use a codec such as topk or signsgd"
            )


class DampedFeedback(ErrorFeedback):
    """Error feedback for unbiased codecs that lose more than they are given: decoded updates are shrunk.

    An estimate of relative error ω, divided by 1 + ω, loses 1 − 1/(1 + ω) of what it encodes, which is less than all of
    it. For FedMPDD with float32 scalars that is the sum over directions divided by m + d − 1 instead of m.
    """

    def factor(self, d: int) -> float:
        """See ErrorFeedback."""
        return 1 / (1 + relative_error(self.codec, d))

    def check(self, d: int) -> None:
        """See Memories."""
        relative_error(self.codec, d)

    def finish(self, estimate: Float32, clients: Sequence[int], weights: Sequence[float] | None) -> Float32:
        """See Memories."""
        return estimate * np.float32(self.factor(estimate.size))
