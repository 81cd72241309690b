"""What wrappers around codecs have in common: a vector per client that took part, kept between rounds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from fedmpdd.codecs.base import Codec, Float32, Update
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError


class Memories(ABC):
    """A codec with one memory per client. Updates are those of the codec; `finish` is what the server does besides."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._memory: dict[int, Float32] = {}

    @abstractmethod
    def encode(self, gradients: Float32, keys: Sequence[Key | int], clients: Sequence[int]) -> list[Update]:
        """Encode gradients [clients, d] of the clients of these numbers; if this raises, no memory has changed."""

    @abstractmethod
    def check(self, d: int) -> None:
        """Raise CodecError if the codec cannot be used so with d coordinates."""

    def finish(self, estimate: Float32, clients: Sequence[int], weights: Sequence[float] | None) -> Float32:
        """Turn the decoded mean of the last updates into the estimate of the mean gradient."""
        return estimate

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
                    f"a new model needs a new {type(self).__name__}"
                )
        self.check(d)


def check_no_overflow(values: Float32) -> None:
    """Raise CodecError if a gradient and its memory together went beyond float32."""
    if not np.isfinite(values).all():
        raise CodecError(
            "gradient plus memory overflows float32: the gradient is too large; scale or clip it before encoding"
        )


def relative_error(codec: Codec, d: int) -> float:
    """E‖decoded − g‖² / ‖g‖² of an unbiased codec, or CodecError if it is not one whose error is known."""
    error = None if codec.variance_is_bound or not codec.unbiased else codec.variance(d)
    if error is None:
        raise CodecError(f"{codec} is not unbiased with a known error; expected such a codec, mpdd or randk say")
    return error
