"""Control variates, as in DIANA: a client encodes what its gradient differs from what both sides expect of it."""

from collections.abc import Sequence

import numpy as np

from fedmpdd.codecs.base import Codec, Float32, Update, mean_factors
from fedmpdd.directions import Key, check_finite, check_gradients
from fedmpdd.uplink.memories import Memories, check_no_overflow, relative_error


class ControlVariates(Memories):
    """A codec with a vector h per client, known to it and to the server: send codec(g − h), h ← h + α · decoded.

    The server adds h back, so estimates stay unbiased, and the error is that of g − h. Both sides compute h from the
    same update, so that nothing more is sent. α = 1/(1 + ω), ω the codec's relative error: larger ones may diverge.
    What it can learn is what a client's gradients have in common from round to round; the noise of a minibatch is not.
    """

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self._used: dict[int, Float32] = {}  # of the last round, before they moved

    def encode(self, gradients: Float32, keys: Sequence[Key | int], clients: Sequence[int]) -> list[Update]:
        """See Memories."""
        check_gradients(gradients)
        self._check(clients, *gradients.shape)
        check_finite(gradients)
        d = gradients.shape[1]
        used = {client: self._memory.get(client, np.zeros(d, np.float32)) for client in clients}
        with np.errstate(over="ignore"):
            differences = gradients - np.stack([used[client] for client in clients])
            check_no_overflow(differences)
            updates = self.codec.encode(differences, keys)
            rate = np.float32(1 / (1 + relative_error(self.codec, d)))
            moved = {
                client: used[client] + rate * self.codec.decode_mean([update])
                for client, update in zip(clients, updates, strict=True)
            }
            check_no_overflow(np.stack(list(moved.values())))
        self._used = used
        self._memory.update(moved)
        return updates

    def check(self, d: int) -> None:
        """See Memories."""
        relative_error(self.codec, d)

    def finish(self, estimate: Float32, clients: Sequence[int], weights: Sequence[float] | None) -> Float32:
        """Add back what the clients left out of their last updates."""
        mean = np.zeros(estimate.size)
        for factor, client in zip(mean_factors(len(clients), weights), clients, strict=True):
            mean += factor * self._used[client]
        return estimate + mean.astype(np.float32)
