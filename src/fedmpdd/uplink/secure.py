"""What a secure sum of updates is: a gradient becomes integers that can be added up unseen, and their sum an update.

    client   gradient → numbers of the codec → clipped → integers of a ring → discrete noise → masked
    server   sum of the integers → mean of the numbers → one update → bundle

The protocol (`fedmpdd.secure_sum`) knows nothing of gradients, and whoever carries its messages nothing of either.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import NO_KEY, Codec, Update
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError
from fedmpdd.secure_sum import FixedPoint, Ring, SecureClient, Terms
from fedmpdd.uplink.discrete_gaussian import NEGLIGIBLE, closeness, discrete_gaussian
from fedmpdd.uplink.protection import NoiseSource, SystemNoise, clipped_rows
from fedmpdd.uplink.secure_rounds import levels
from fedmpdd.wire.bundle import Bundle

_LEAST_INSIDE = 0.9  # of the bound that is left for vectors once the room for rounding is taken off

Elements = NDArray[np.uint64]


@dataclass(frozen=True)
class SecureUplink:
    """The arithmetic of one secure sum of updates, the same for clients and server.

    Args:
        codec: mpdd with 32 bits, or fedsgd. Scalars must lie along the same directions: all clients have one key.
        d: coordinates of a gradient.
        clients: how many are asked in the round, whoever drops out later.
        clip: scalars are shrunk to ‖s‖ ≤ √m·clip, whole gradients to ‖g‖ ≤ clip.
        noise_multiplier: the deviation of every client's noise, in units of that bound.
        ring_bits: sums are taken modulo 2^ring_bits.

    Example:
        >>> from fedmpdd.codecs import MPDD
        >>> SecureUplink(MPDD(400), d=13_426, clients=10, clip=1.0).length
        400

    """

    codec: Codec
    d: int
    clients: int
    clip: float
    noise_multiplier: float = 0.0
    ring_bits: int = 32

    def __post_init__(self) -> None:
        """Raise InputError for a codec whose numbers do not add up, and for steps that are too coarse."""
        sections = self.codec.sections(self.d)
        if not self.codec.adds_up or [section.dtype for section in sections] != ["<f4"]:
            raise ConfigError(
                f"a secure sum adds up numbers that mean the same for all clients, and the codec is {self.codec}: use "
                "mpdd with keys=shared and 32 bits, or fedsgd"
            )
        if not (0 < self.clip < math.inf and 0 <= self.noise_multiplier < math.inf):
            raise ConfigError(
                f"clip = {self.clip!r} and noise_multiplier = {self.noise_multiplier!r}: expected finite numbers, the "
                "first above 0 and the second from 0 on"
            )
        Ring(self.ring_bits)
        if self._inside < _LEAST_INSIDE * self.bound:
            raise ConfigError(
                f"ring_bits = {self.ring_bits}: {self.length:,} numbers of {self.clients} clients leave steps of "
                f"{self.step / self.bound:.2g} of the bound, too coarse; take more bits"
            )

    @cached_property
    def length(self) -> int:
        """How many numbers a client sends."""
        return self.codec.sections(self.d)[0].length

    @cached_property
    def bound(self) -> float:
        """The longest vector of numbers of a client: a gradient of norm `clip` has scalars of about this length."""
        return self.clip * (1.0 if self.codec.scalar_codec is None else math.sqrt(self.length))

    @cached_property
    def step(self) -> float:
        """What one of the integers stands for."""
        return self.bound / levels(self.clients, self.ring_bits, self.noise_multiplier)

    @cached_property
    def noise_deviation(self) -> float:
        """The deviation of a client's noise, in steps."""
        return self.noise_multiplier * levels(self.clients, self.ring_bits, self.noise_multiplier)

    @cached_property
    def _fixed(self) -> FixedPoint:
        return FixedPoint(self.bound, self.ring_bits, self.step)

    @cached_property
    def _inside(self) -> float:
        """What vectors are clipped to: rounding makes them longer, by up to half a step per number."""
        return self.bound - math.sqrt(self.length) * self.step / 2

    def terms(self, run: bytes, number: int, *, threshold: int = 0, neighbours: int = 0, signed: bool = False) -> Terms:
        """Return the terms of the protocol for this sum.

        Args:
            run: 16 bytes that name the training.
            number: which of its sums this is.
            threshold: how many clients must stay, 0 for the default of `Terms`.
            neighbours: with how many others a client shares its secrets, 0 for everybody.
            signed: whether clients sign.

        """
        return Terms(run, number, self.clients, self.length, threshold, self.ring_bits, neighbours, signed)

    # ------------------------------------------------------------------------------------------------ a client

    def masked(
        self,
        client: SecureClient,
        inbox: bytes,
        gradient: NDArray[np.float32],
        key: Key,
        source: NoiseSource | None = None,
    ) -> bytes:
        """Return what a client sends of its gradient: clipped, in integers, with noise, under its masks.

        Args:
            client: this client in the round's protocol, which has shared its secrets.
            inbox: the message that opened the phase.
            gradient: of d numbers, float32.
            key: of the directions, the same for all clients.
            source: of the noise; the operating system, which nobody can repeat, if it is not given.

        Returns:
            The client's message of the phase.

        """
        return self.mask(client, inbox, self.elements(gradient[np.newaxis], [key], [source or SystemNoise()])[0])

    def mask(self, client: SecureClient, inbox: bytes, elements: Elements) -> bytes:
        """Return what a client sends of its `elements` [length], which have their noise already.

        Args:
            client: as in `masked`, and so is inbox.
            inbox: the message that opened the phase.
            elements: of this client.

        Returns:
            The client's message of the phase.

        """
        if client.terms.length != self.length or client.terms.clients != self.clients:
            raise ConfigError(
                f"the protocol adds up {client.terms.length} numbers of {client.terms.clients} clients, and the round "
                f"has {self.length} of {self.clients}: server and client disagree about codec or model"
            )
        return client.mask(inbox, elements & np.uint64(2**self.ring_bits - 1))

    def elements(self, gradients: Any, keys: Sequence[Key], sources: Sequence[NoiseSource] | None) -> Elements:
        """Return what clients add up, modulo 2^64 and so modulo 2^ring_bits: integers with noise, not yet masked.

        Args:
            gradients: [clients, d], float32; also a tensor on a GPU.
            keys: one a client, all the same.
            sources: of the noise, one a client. A simulation may ask for the noise of all at once, see `_noise`.

        """
        batch = self.codec.encode_batch(gradients, keys)
        return self.elements_of(np.stack([update.arrays[0] for update in batch]).astype(np.float64), sources)

    def elements_of(self, numbers: NDArray[np.float64], sources: Sequence[NoiseSource] | None) -> Elements:
        """Return the same for numbers [clients, length] that clients have without a gradient."""
        elements = self._fixed.encode(clipped_rows(numbers, self._inside), self.clients)
        if self.noise_multiplier > 0:
            if sources is None:
                raise ConfigError("noise needs a source for each client, and none came")
            elements = elements + self._noise(sources).view(np.uint64)
        return elements

    def _noise(self, sources: Sequence[NoiseSource]) -> NDArray[np.int64]:
        """Noise [clients, numbers]. Where several ask at once, the first one's holds that of all if that is the same.

        A sum of wide noises is distributed as one that is wider, so that one draw stands for thousands of them.
        """
        count = len(sources)
        if closeness(self.noise_deviation, count) > NEGLIGIBLE:
            return np.stack([discrete_gaussian(self.noise_deviation, self.length, source) for source in sources])
        noise = np.zeros((count, self.length), np.int64)
        noise[0] = discrete_gaussian(self.noise_deviation * math.sqrt(count), self.length, sources[0])
        return noise

    # ---------------------------------------------------------------------------------------------- the server

    def bundle(self, total: Elements, contributors: int, key: Key, mean_bits: int = 32) -> Bundle:
        """Return what the server steps along: one update, the mean of the clients in a sum.

        Args:
            total: the sum, modulo 2^ring_bits or any multiple of it up to 2^64.
            contributors: how many clients' integers it is of.
            key: of the directions.
            mean_bits: bits of the update's scalars; fedsgd has 32 always.

        """
        mean = self._fixed.decode(total, self.clients) / contributors
        if self.codec.scalar_codec is not None:
            return Bundle((self.codec.scalar_codec.update_of(mean, self.d, key, mean_bits),))
        return Bundle((Update(self.codec, self.d, NO_KEY, (mean.astype(np.float32),)),))
