"""Rounds in which the server gets the sum of all scalars and no client's own: docs/secure-sum.md.

The engine adds up integers where machines would add up masked ones: masks cancel, to the last bit, and tests of the
protocol show it. Bytes are counted as the protocol sends them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key
from fedmpdd.secure_sum import bytes_down, bytes_up
from fedmpdd.uplink import Mean, NoiseSource, SecureRounds
from fedmpdd.uplink.secure import Elements, SecureUplink


@dataclass(frozen=True)
class SecureUploads:
    """What the clients of a round masked and sent, as far as its sum goes: integers [clients, numbers]."""

    elements: Elements
    keys: tuple[Key, ...]
    frame_bytes: int
    payload_bytes: int


class SummedUplink:
    """The uplink of secure sums of all clients of a round at once; what engines ask of an `Uplink`."""

    in_groups = False  # the noise of all is one draw

    def __init__(self, config: SecureRounds, codec: Codec, d: int, clients: int, mean_bits: int | None) -> None:
        self._mean_bits = mean_bits or 32
        self.sums = SecureUplink(codec, d, clients, config.clip, config.noise_multiplier, config.ring_bits)
        self._terms = self.sums.terms(bytes(16), 0, threshold=config.threshold(clients), neighbours=config.neighbours)

    def encode(
        self,
        round_number: int,
        gradients: Any,
        keys: Sequence[Key],
        clients: Sequence[int],
        noise: Sequence[NoiseSource] | None = None,
    ) -> SecureUploads:
        """Do what clients do with gradients [clients, d], as far as the sum goes; see Uplink."""
        return self._uploads(self.sums.elements(gradients, keys, noise), keys)

    def encode_scalars(
        self, round_number: int, scalars: Any, keys: Sequence[Key], noise: Sequence[NoiseSource] | None = None
    ) -> SecureUploads:
        """Do the same with scalars that clients have instead of gradients; see Uplink."""
        return self._uploads(self.sums.elements_of(scalars, noise), keys)

    def _uploads(self, elements: Elements, keys: Sequence[Key]) -> SecureUploads:
        payload = self._terms.ring.nbytes(self._terms.length)
        return SecureUploads(elements, tuple(keys), len(keys) * sum(bytes_up(self._terms)), len(keys) * payload)

    def mean(self, uploads: SecureUploads, weights: Sequence[float] | None = None) -> Mean | None:
        """Return the mean that the server steps along: of the sum, as one update."""
        total = uploads.elements.sum(axis=0, dtype=np.uint64)
        return Mean.of(self.sums.bundle(total, len(uploads.keys), uploads.keys[0], self._mean_bits))

    def aborted_bytes(self, clients: int) -> int:
        """Return what so many clients sent in a round that too few of them stayed in: all but the last phase."""
        return clients * sum(bytes_up(self._terms)[:-1])

    def overhead_down(self, clients: int) -> int:
        """Bytes of the protocol to so many clients, beside the model: keys and shares of the others."""
        return clients * sum(bytes_down(self._terms))
