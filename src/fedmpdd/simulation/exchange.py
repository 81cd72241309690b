"""From the clients' gradients to the server's estimate: through real frames, or without leaving a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import MPDD, Codec, DeComFL, Update, mean_rounding, rivals_torch, update_of_scalars
from fedmpdd.codecs.base import Float32, mean_factors
from fedmpdd.directions import Key
from fedmpdd.simulation.sections import CodecConfig
from fedmpdd.uplink import RobustMean
from fedmpdd.uplink.control_variates import ControlVariates
from fedmpdd.uplink.error_feedback import DampedFeedback, ErrorFeedback
from fedmpdd.uplink.memories import Memories
from fedmpdd.uplink.protection import NoiseSource, Private
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.frames import Session


class TorchErrorFeedback(ErrorFeedback):
    """Error feedback whose memories stay where the gradients are."""

    def __init__(self, codec: Codec, device: torch.device) -> None:
        super().__init__(codec)
        self._device = device
        self._tensors: dict[int, Tensor] = {}

    def decoded(self, gradients: Tensor, keys: list[Key], clients: Sequence[int]) -> Tensor:
        """Return what the corrected gradients' updates stand for, and remember what they left out."""
        zero = torch.zeros_like(gradients[0])
        corrected = gradients + torch.stack([self._tensors.get(client, zero) for client in clients])
        result = rivals_torch.decoded(self.codec, corrected, keys)
        left = corrected - result
        self._tensors.update((client, row.clone()) for client, row in zip(clients, left, strict=True))
        return result

    def state(self) -> dict[int, Float32]:
        """See ErrorFeedback."""
        return {client: memory.cpu().numpy() for client, memory in self._tensors.items()}

    def load(self, state: Mapping[int, Float32]) -> None:
        """See ErrorFeedback."""
        super().load(state)
        self._tensors = {client: torch.from_numpy(memory).to(self._device) for client, memory in self._memory.items()}
        self._memory = {}


@dataclass(frozen=True)
class Sent:
    """What the clients of a round sent, and how many bytes that was, all clients together."""

    content: Any  # between `send` and `receive` of one exchange
    uplink_bytes: int  # whole compact frames
    payload_bytes: int  # scale and scalars alone, as the paper counts
    clients: tuple[int, ...] = ()  # who sent it, where clients have memories


def joined(parts: Sequence[Sent]) -> Sent:
    """Return what all clients of a round sent, from what groups of them did, each a list of frames."""
    if len(parts) == 1:
        return parts[0]
    frames = [frame for part in parts for frame in part.content]
    return Sent(frames, sum(part.uplink_bytes for part in parts), sum(part.payload_bytes for part in parts))


class Received(NamedTuple):
    """The server's estimate, and the updates that it was made of where they were real ones."""

    estimate: Tensor
    bundle: Bundle | None


class Exchange(Protocol):
    """The two halves of a round's communication."""

    @property
    def by_client(self) -> bool:
        """Whether a client's update is the same whoever is sent with it, so that a round can be sent in groups."""

    def send(
        self,
        session: Session,
        gradients: Tensor,
        keys: list[Key],
        clients: NDArray[np.int64],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Sent:
        """Encode the gradients [clients, d] of a round (Algorithm 2, lines 7 to 11).

        Where updates are protected, their noise comes from these sources.
        """

    def receive(self, session: Session, sent: Sent, keys: list[Key], weights: Sequence[float] | None) -> Received:
        """Decode their mean (lines 13 to 20)."""


class FrameExchange:
    """Every update becomes a frame, and every frame is checked and read again: what really happens on a network.

    mean_bits: the server does not go on with the updates but with their mean, an update with scalars of so many bits.
    robust: how the mean is taken where clients may lie; None is the plain mean.
    shared: whether all clients of a round have one key.
    """

    def __init__(
        self,
        device: torch.device,
        memories: Memories | None = None,
        protection: Private | None = None,
        mean_bits: int | None = None,
        robust: RobustMean | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self._device = device
        self._memories = memories
        self._protection = protection
        self._mean_bits = mean_bits
        self._robust = robust
        self._shared = shared
        self.by_client = memories is None and device.type == "cpu"

    def send(
        self,
        session: Session,
        gradients: Tensor,
        keys: list[Key],
        clients: NDArray[np.int64],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Sent:
        """See Exchange."""
        # A codec takes tensors on a GPU; memories of clients are arrays.
        rows: Any = gradients if gradients.is_cuda and self._memories is None else gradients.cpu().numpy()
        if self._protection is not None:
            return self._pack(session, self._protection.encode(rows, keys, noise))
        if self._memories is None:
            return self._pack(session, session.codec.encode(rows, keys))
        self._memories.codec = session.codec
        numbers = tuple(int(client) for client in clients)
        return replace(self._pack(session, self._memories.encode(rows, keys, numbers)), clients=numbers)

    def send_losses(self, session: Session, differences: NDArray[np.float64], keys: list[Key]) -> Sent:
        """Send differences of losses, which is what DeComFL has instead of gradients."""
        codec = session.codec
        assert isinstance(codec, DeComFL)
        return self._pack(session, codec.encode_losses(differences, keys, session.d))

    def send_scalars(
        self,
        session: Session,
        scalars: NDArray[np.float64],
        keys: list[Key],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Sent:
        """Send derivatives along directions, which is what forward-mode clients have instead of gradients."""
        codec = session.codec
        assert isinstance(codec, MPDD)
        if self._protection is not None:
            return self._pack(session, self._protection.encode_scalars(scalars, keys, session.d, noise))
        updates = [
            # Rounded with the numbers that `encode` takes, so that the updates are those of backpropagation.
            update_of_scalars(codec, row, session.d, key, codec.bits, rounding=key)
            for row, key in zip(scalars, keys, strict=True)
        ]
        return self._pack(session, updates)

    def _pack(self, session: Session, updates: list[Update]) -> Sent:
        frames = [session.pack(update) for update in updates]
        payload = len(frames) * session.codec.bytes_per_update(session.d)
        return Sent(frames, sum(map(len, frames)), payload)

    def receive(self, session: Session, sent: Sent, keys: list[Key], weights: Sequence[float] | None) -> Received:
        """See Exchange."""
        assigned = keys if session.assigns_key else [None] * len(keys)
        received = [session.unpack(frame, key) for frame, key in zip(sent.content, assigned, strict=True)]
        bundle = self._bundle(received, weights, mean_rounding(keys[0]).seed)
        estimate = bundle.estimate(str(self._device))
        if self._memories is not None:
            finished = self._memories.finish(estimate.cpu().numpy(), sent.clients, weights)
            estimate = torch.from_numpy(finished).to(self._device)
        return Received(estimate, bundle)

    def _bundle(self, updates: list[Update], weights: Sequence[float] | None, sketch: int) -> Bundle:
        """What the server steps along: the updates, or one that stands for them."""
        if self._robust is not None:
            return self._robust.bundle(
                updates, weights, None, shared=self._shared, mean_bits=self._mean_bits, sketch=sketch
            )
        if self._mean_bits is not None:
            return Bundle((updates[0].codec.mean_update(updates, self._mean_bits, weights),))
        return Bundle(tuple(updates), None if weights is None else tuple(weights))


class DeviceExchange:
    """Updates stay on the GPU. Frames of a session all have one length, so that bytes are counted without them."""

    def __init__(self, device: torch.device, memories: Memories | None = None) -> None:
        self._device = device
        self._memories = memories
        self.by_client = False  # on a GPU a round is one call

    @staticmethod
    def handles(codec: Codec) -> bool:
        """Return whether a codec can be computed on a GPU from end to end."""
        return isinstance(codec, MPDD) or rivals_torch.handles(codec)

    def send(
        self,
        session: Session,
        gradients: Tensor,
        keys: list[Key],
        clients: NDArray[np.int64],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Sent:
        """See Exchange."""
        codec, count = session.codec, len(keys)
        content: Any
        if isinstance(self._memories, TorchErrorFeedback):
            self._memories.codec = codec
            content = self._memories.decoded(gradients, keys, [int(client) for client in clients])
        elif not isinstance(codec, MPDD):
            content = rivals_torch.decoded(codec, gradients, keys)
        else:
            from fedmpdd.codecs import mpdd_cuda

            for slot in {key.slot for key in keys}:
                codec.check(session.d, slot)
            content = mpdd_cuda.encode(codec, gradients, keys)
        return Sent(content, count * session.frame_bytes, count * codec.bytes_per_update(session.d))

    def receive(self, session: Session, sent: Sent, keys: list[Key], weights: Sequence[float] | None) -> Received:
        """See Exchange."""
        factors = torch.from_numpy(mean_factors(len(keys), weights)).to(self._device)
        codec = session.codec
        if not isinstance(codec, MPDD):
            return Received(factors.float() @ sent.content, None)
        from fedmpdd.codecs import mpdd_cuda

        out = torch.zeros(session.d, device=self._device)
        mpdd_cuda.decode(codec, sent.content, factors, out)
        return Received(out, None)


def make_exchange(
    codec: Codec,
    device: torch.device,
    memories: Memories | None,
    protection: Private | None,
    *,
    framed: bool,
    mean_bits: int | None,
    robust: RobustMean | None = None,
    shared: bool = False,
) -> Exchange:
    """Return how updates of this codec travel on this device; as real frames where that is asked for."""
    stays = memories is None or isinstance(memories, TorchErrorFeedback)
    plain = protection is None and not framed and mean_bits is None and robust is None
    if device.type == "cuda" and stays and plain and DeviceExchange.handles(codec):
        return DeviceExchange(device, memories)
    return FrameExchange(device, memories, protection, mean_bits, robust, shared=shared)


def make_memories(config: CodecConfig, codec: Codec, device: torch.device) -> Memories | None:
    """Return what clients remember from round to round with this codec on this device, if anything."""
    if config.memory == "control":
        return ControlVariates(codec)
    if config.memory == "damped":
        return DampedFeedback(codec)
    if not config.error_feedback:
        return None
    if device.type == "cuda" and rivals_torch.handles(codec):
        return TorchErrorFeedback(codec, device)
    return ErrorFeedback(codec)
