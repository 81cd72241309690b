"""The path of an update: what a client does with a gradient, what travels, and what a server steps along.

Every engine takes this path. It is made of parts that know nothing of each other: a codec, a memory, a protection, and
a way to take the mean. A part refuses what it cannot do; there is no table of what goes together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedmpdd.codecs import Batch, Codec, Update
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import CodecError
from fedmpdd.uplink.error_feedback import ErrorFeedback, check_memory
from fedmpdd.uplink.protection import NoiseSource, Protection
from fedmpdd.uplink.robust import RobustMean
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.frames import Session


@dataclass(frozen=True)
class Uploads:
    """What some clients of a round sent.

    Args:
        batch: their updates, where they were made.
        frame_bytes: whole compact frames, all clients together.
        payload_bytes: scale and scalars alone, as the paper counts.

    """

    batch: Batch
    frame_bytes: int
    payload_bytes: int

    def updates(self) -> list[Update]:
        """Return the updates, in the order of their clients."""
        return self.batch.updates()

    @classmethod
    def joined(cls, parts: "Sequence[Uploads]") -> "Uploads":
        """Return what several groups of clients sent as one."""
        batch = Batch.joined([part.batch for part in parts])
        return cls(batch, sum(part.frame_bytes for part in parts), sum(part.payload_bytes for part in parts))


@dataclass(frozen=True)
class Mean:
    """What a server steps along: the updates and their weights, or one update that stands for them."""

    batch: Batch
    weights: tuple[float, ...] | None = None

    def estimate(self) -> Any:
        """Decode the mean gradient, as an array or a tensor where the updates are."""
        return self.batch.decode(self.weights)

    @classmethod
    def of(cls, bundle: Bundle, device: str = "cpu") -> "Mean | None":
        """Return what a bundle holds, on a device; None where it is empty."""
        return cls(Batch.of(bundle.updates, device), bundle.weights) if bundle.updates else None

    def bundle(self) -> Bundle:
        """Return it as a journal keeps it, and as it travels to who follows the model."""
        return Bundle(tuple(self.batch.updates()), self.weights)


class Uplink:
    """A codec, and what is done with its updates before and after they travel.

    Args:
        codec: for the model that is trained: see Codec.for_shapes.
        d: coordinates of the model.
        keys: who chooses keys: "sent", "derived", "partitioned" or "shared".
        memory: what clients remember from round to round.
        protection: what clients do to hide themselves.
        mean_bits: the server steps along one update, the mean, with scalars of so many bits; None for the updates.
        robust: how the mean is taken where clients may lie; None is the plain mean.

    """

    in_groups = True  # a client's update is the same whoever is encoded with it

    def __init__(
        self,
        codec: Codec,
        d: int,
        keys: str = "sent",
        *,
        memory: ErrorFeedback | None = None,
        protection: Protection | None = None,
        mean_bits: int | None = None,
        robust: RobustMean | None = None,
    ) -> None:
        self.codec, self.d, self.keys = codec, d, keys
        self.memory, self.protection = memory, protection
        self.mean_bits, self.robust = mean_bits, robust
        self._sessions: dict[Codec, Session] = {}
        check_parts(codec, keys, remembers=memory is not None, protection=protection, mean_bits=mean_bits)
        self.session(0)
        if memory is not None:
            memory.check(d)

    @property
    def shared(self) -> bool:
        """Whether all clients of a round have one key."""
        return self.keys == "shared"

    def session(self, round_number: int) -> Session:
        """Return the session that the frames of a round belong to."""
        codec = self.codec.at_round(round_number)
        if codec not in self._sessions:
            self._sessions[codec] = Session(codec, self.d, sends_seed=self.keys == "sent")
        return self._sessions[codec]

    # -------------------------------------------------------------------------------------- on the client's side

    def encode(
        self,
        round_number: int,
        gradients: Any,
        keys: Sequence[Key],
        clients: Sequence[int],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Uploads:
        """Encode the gradients [clients, d] of a round (Algorithm 2, lines 7 to 11).

        Args:
            round_number: from 0.
            gradients: an array, or a tensor on a GPU.
            keys: one for each.
            clients: their numbers, by which a memory knows them.
            noise: what protected updates draw their noise from; None for the operating system.

        """
        session = self.session(round_number)
        if self.protection is not None:
            protection = replace(self.protection, codec=session.codec)
            return self._uploads(session, protection.encode(gradients, keys, noise))
        if self.memory is None:
            return self._uploads(session, session.codec.encode_batch(gradients, keys))
        self.memory.codec = session.codec
        return self._uploads(session, self.memory.encode(gradients, keys, clients))

    def encode_scalars(
        self, round_number: int, scalars: Any, keys: Sequence[Key], noise: Sequence[NoiseSource] | None = None
    ) -> Uploads:
        """Encode scalars [clients, count] that clients have instead of gradients: derivatives along directions."""
        session = self.session(round_number)
        if self.protection is not None:
            protection = replace(self.protection, codec=session.codec)
            return self._uploads(session, protection.encode_scalars(scalars, keys, self.d, noise))
        return self._uploads(session, session.codec.along_directions().encode_scalars(scalars, keys, self.d))

    def _uploads(self, session: Session, batch: Batch) -> Uploads:
        count = len(batch)
        return Uploads(batch, count * session.frame_bytes, count * session.codec.bytes_per_update(self.d))

    def uploads_of(self, updates: Sequence[Update]) -> Uploads:
        """Return updates of one round, which came in frames, as what clients sent."""
        codec = updates[0].codec
        frame_bytes = Session(codec, self.d, sends_seed=self.keys == "sent").frame_bytes
        payload_bytes = codec.bytes_per_update(self.d)
        return Uploads(Batch.of(updates), len(updates) * frame_bytes, len(updates) * payload_bytes)

    # -------------------------------------------------------------------------------------------- on the way

    def through_frames(self, round_number: int, uploads: Uploads) -> Uploads:
        """Return what arrives when every update becomes a frame, and every frame is checked and read again."""
        session, batch = self.session(round_number), uploads.batch
        frames = [session.pack(update) for update in batch.updates()]
        assigned: Sequence[Key | None] = batch.keys if session.assigns_key else [None] * len(frames)
        updates = [session.unpack(frame, key) for frame, key in zip(frames, assigned, strict=True)]
        return Uploads(Batch.of(updates, batch.device), sum(map(len, frames)), uploads.payload_bytes)

    # -------------------------------------------------------------------------------------- on the server's side

    def mean(
        self,
        uploads: Uploads,
        weights: Sequence[float] | None = None,
        reference: float | None = None,
        sketch: int | None = None,
    ) -> Mean:
        """Return what the server steps along.

        Args:
            uploads: the updates of a round that count.
            weights: of the clients, None for equal ones.
            reference: the running median magnitude, for a robust mean that knows one.
            sketch: the seed of the directions in which a robust mean compares updates, which no liar should know; by
                default one that follows from the first client's key.

        """
        batch = uploads.batch
        if self.robust is not None:
            bundle = self.robust.bundle(
                batch.updates(),
                weights,
                reference,
                shared=self.shared,
                mean_bits=self.mean_bits,
                sketch=derive_seed(batch.keys[0].seed, 0, 0) if sketch is None else sketch,
            )
            return Mean(Batch.of(bundle.updates, batch.device), bundle.weights)
        if self.mean_bits is not None:
            mean = batch.codec.along_directions().mean_update(batch.updates(), self.mean_bits, weights)
            return Mean(Batch.of([mean], batch.device))
        return Mean(batch, None if weights is None else tuple(weights))


def check_parts(
    codec: Codec,
    keys: str,
    *,
    remembers: bool = False,
    protection: Protection | None = None,
    mean_bits: int | None = None,
) -> None:
    """Raise CodecError where parts of an uplink cannot work together, whatever the model."""
    if mean_bits is not None:
        codec.along_directions()
        if keys != "shared":
            raise CodecError(
                f'a mean of {mean_bits} bits is one of scalars along the same directions; it needs keys = "shared"'
            )
    if remembers:
        check_memory(codec, hidden=protection is not None)
