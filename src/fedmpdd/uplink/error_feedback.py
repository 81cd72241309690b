"""Error feedback: what a codec left out of an update is added to the client's next gradient.

State is no codec's business, so this is a wrapper around one: updates are those of the codec and decode as such.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmpdd.codecs import Batch, Codec
from fedmpdd.codecs.backends import backend_of
from fedmpdd.codecs.base import Float32
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError

_BIASED = "a codec such as topk or signsgd"


class ErrorFeedback:
    """A codec with one vector per client that took part: a = ε + g, send codec(a), ε = a − decoded.

    For codecs whose error is smaller than what they encode, TopK and SignSGD above all. A codec that is known to lose
    more than it is given (RandK, FedMPDD of few directions) would make the vectors grow without bound and is refused.
    Not for codecs that add noise: the memory takes back, a round later, what the noise was to hide.

    Vectors stay where the gradients are: arrays, or tensors on a GPU.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._vectors: dict[int, Any] = {}

    def encode(self, gradients: Any, keys: Sequence[Key | int], clients: Sequence[int]) -> Batch:
        """Encode gradients [clients, d] of the clients of these numbers; if this raises, no vector has changed."""
        self._check(clients, *gradients.shape)
        backend = backend_of(gradients)
        corrected = backend.copy(gradients)
        with np.errstate(over="ignore"):
            for row, client in enumerate(clients):
                if client in self._vectors:
                    corrected[row] += backend.like(self._vectors[client])
            self._check_overflow(gradients, corrected)
            batch = self.codec.encode_batch(corrected, keys)
            for row in range(len(clients)):
                corrected[row] -= batch.part(slice(row, row + 1)).decode()
            self._check_overflow(gradients, corrected)
        # Copies: a view would keep the whole batch alive for the sake of one client.
        self._vectors.update((client, backend.copy(corrected[row])) for row, client in enumerate(clients))
        return batch

    def check(self, d: int) -> None:
        """Raise CodecError if vectors of d coordinates would grow without bound, or have nothing to remember."""
        check_memory(self.codec)
        part = None if self.codec.variance_is_bound else self.codec.variance(d)
        if part is not None and part >= 1:
            raise CodecError(
                f"{self.codec} loses {part:.3g} times the square of what it encodes at d = {d}, so that memories would "
                f"grow without bound; expected less than 1: send more, or use {_BIASED}"
            )

    def state(self) -> dict[int, Float32]:
        """Return a copy of all vectors by client, for a checkpoint."""
        return {client: np.array(backend_of(vector).host(vector)) for client, vector in self._vectors.items()}

    def load(self, state: Mapping[int, Float32]) -> None:
        """Put back what `state` returned, instead of all vectors there are."""
        for client, vector in state.items():
            if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.ndim != 1:
                raise CodecError(
                    f"the memory of client {client} is not a float32 array [d]; pass what state() returned"
                )
            if not np.isfinite(vector).all():
                raise CodecError(f"the memory of client {client} is not finite: the checkpoint is damaged")
        self._vectors = {client: vector.copy() for client, vector in state.items()}

    def _check(self, clients: Sequence[int], count: int, d: int) -> None:
        if len(clients) != count or len(set(clients)) != count:
            raise CodecError(
                f"{count} gradients came with clients {list(clients)}; each needs one, and none twice in a round"
            )
        for client in clients:
            if client in self._vectors and len(self._vectors[client]) != d:
                raise CodecError(
                    f"the memory of client {client} has d = {len(self._vectors[client])}, its gradient {d}; "
                    f"a new model needs a new {type(self).__name__}"
                )
        self.check(d)

    def _check_overflow(self, gradients: Any, values: Any) -> None:
        """Raise CodecError if a gradient and its memory together went beyond float32."""
        backend = backend_of(gradients)
        if not bool(backend.xp.isfinite(values).all()):
            backend.check_finite(gradients)
            raise CodecError(
                "gradient plus memory overflows float32: the gradient is too large; scale or clip it before encoding"
            )


def check_memory(codec: Codec, *, has_gradient: bool = True, hidden: bool = False) -> None:
    """Raise CodecError where clients have nothing to remember, or must not.

    Args:
        codec: of their updates.
        has_gradient: whether clients compute gradients.
        hidden: whether updates are clipped or noisy, so that less is seen of a client.

    """
    if codec.source != "gradient" or not has_gradient:
        raise CodecError(
            "error_feedback remembers what an update leaves out of a gradient, and clients without one (client = "
            f'"forward", or a codec of losses) cannot know; leave it out, or make gradients and choose {_BIASED}'
        )
    if hidden:
        raise CodecError(
            "error_feedback takes back, a round later, what clipping and noise were to hide; leave out one of them"
        )
