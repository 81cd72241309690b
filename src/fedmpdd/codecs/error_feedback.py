"""Error feedback: what a codec left out of an update is added to the client's next gradient.

State is no codec's business, so this is a wrapper around one: updates are those of the codec and decode as such.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedmpdd.codecs.base import Codec, Float32, Update
from fedmpdd.directions import Key, check_finite, check_gradients
from fedmpdd.errors import CodecError


class ErrorFeedback:
    """A codec with one memory per client that took part: a = ε + g, send codec(a), ε = a − decoded.

    For codecs whose error is smaller than what they encode, TopK and SignSGD above all. A codec that is known to lose
    more than it is given (RandK, FedMPDD of few directions) would make memories grow without bound and is refused.
    Not for codecs that add noise: the memory takes back, a round later, what the noise was to hide.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._memory: dict[int, Float32] = {}

    def encode(self, gradients: Float32, keys: Sequence[Key | int], clients: Sequence[int]) -> list[Update]:
        """Encode gradients [clients, d] of the clients of these numbers, and remember what was left out.

        If this raises, no memory has changed.
        """
        check_gradients(gradients)
        self._check(clients, *gradients.shape)
        check_finite(gradients)
        corrected = gradients.copy()
        with np.errstate(over="ignore"):
            for row, client in enumerate(clients):
                if client in self._memory:
                    corrected[row] += self._memory[client]
            _check_no_overflow(corrected)
            updates = self.codec.encode(corrected, keys)
            for row, update in enumerate(updates):
                corrected[row] -= self.codec.decode_mean([update])
            _check_no_overflow(corrected)
        # Rows of their own: a view would keep the whole batch alive for the sake of one client.
        self._memory.update((client, corrected[row].copy()) for row, client in enumerate(clients))
        return updates

    def state(self) -> dict[int, Float32]:
        """Return a copy of all memories by client, for a checkpoint."""
        return {client: memory.copy() for client, memory in self._memory.items()}

    def load(self, state: Mapping[int, Float32]) -> None:
        """Put back what `state` returned, instead of all memories there are."""
        for client, memory in state.items():
            if not isinstance(memory, np.ndarray) or memory.dtype != np.float32 or memory.ndim != 1:
                raise CodecError(
                    f"the memory of client {client} is not a float32 array [d]; pass what state() returned"
                )
            if not np.isfinite(memory).all():
                raise CodecError(f"the memory of client {client} is not finite: the checkpoint is damaged")
        self._memory = {client: memory.copy() for client, memory in state.items()}

    def _check(self, clients: Sequence[int], count: int, d: int) -> None:
        if len(clients) != count or len(set(clients)) != count:
            raise CodecError(
                f"{count} gradients came with clients {list(clients)}; each needs one, and none twice in a round"
            )
        for client in clients:
            if client in self._memory and self._memory[client].size != d:
                raise CodecError(
                    f"the memory of client {client} has d = {self._memory[client].size}, its gradient {d}; "
                    "a new model needs a new ErrorFeedback"
                )
        self.check(d)

    def check(self, d: int) -> None:
        """Raise CodecError if memories of d coordinates would grow without bound."""
        lost = None if self.codec.variance_is_bound else self.codec.variance(d)
        if lost is not None and lost >= 1:
            raise CodecError(
                f"{self.codec} loses {lost:.3g} times the square of what it encodes at d = {d}, so that memories would "
                "grow without bound; expected less than 1: send more, or use a codec such as topk or signsgd"
            )


def _check_no_overflow(values: Float32) -> None:
    if not np.isfinite(values).all():
        raise CodecError(
            "gradient plus memory overflows float32: the gradient is too large; scale or clip it before encoding"
        )
