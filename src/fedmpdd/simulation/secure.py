"""Rounds in which the server gets the sum of all scalars and no client's own: docs/secure-sum.md.

The engine adds up integers where machines would add up masked ones: masks cancel, to the last bit, and tests of the
protocol show it. Bytes are counted as the protocol sends them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import NO_KEY, Batch, Codec, Update
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError
from fedmpdd.secure_sum import FixedPoint, Terms, bytes_down, bytes_up
from fedmpdd.simulation.sections import SecureConfig
from fedmpdd.uplink import Mean, NoiseSource
from fedmpdd.uplink.discrete_gaussian import NEGLIGIBLE, closeness, discrete_gaussian
from fedmpdd.uplink.protection import clipped_rows


@dataclass(frozen=True)
class SecureUploads:
    """What the clients of a round masked and sent, as far as its sum goes: integers [clients, numbers]."""

    elements: NDArray[np.uint64]
    keys: tuple[Key, ...]
    frame_bytes: int
    payload_bytes: int


class SecureUplink:
    """Scalars, clipped, in steps, with noise on the integers; added up modulo 2^bits; their mean is an update."""

    in_groups = False  # the noise of all is one draw

    def __init__(self, config: SecureConfig, codec: Codec, d: int, clients: int, mean_bits: int | None) -> None:
        self._config, self._codec, self._d = config, codec, d
        self._mean_bits = mean_bits or 32
        (numbers,) = codec.sections(d)
        self._length = numbers.length
        self._terms = Terms(
            bytes(16), 0, clients, self._length, config.threshold(clients), config.ring_bits, config.neighbours
        )
        # The longest vector of a client: a gradient of norm `clip` has m scalars of about this length.
        self.bound = config.clip * (1.0 if codec.scalar_codec is None else math.sqrt(self._length))
        self.step = self.bound / config.levels(clients)
        self._fixed = FixedPoint(self.bound, config.ring_bits, self.step)
        # Rounding makes a vector longer, by up to half a step per number; it must not end up beyond the bound.
        self._inside = self.bound - math.sqrt(self._length) * self.step / 2
        if self._inside < 0.9 * self.bound:
            raise ConfigError(
                f"secure.ring_bits = {config.ring_bits}: {self._length:,} numbers of {clients} clients leave steps of "
                f"{self.step / self.bound:.2g} of the bound, too coarse; take more bits"
            )

    def encode(
        self,
        round_number: int,
        gradients: Any,
        keys: Sequence[Key],
        clients: Sequence[int],
        noise: Sequence[NoiseSource] | None = None,
    ) -> SecureUploads:
        """Do what clients do with gradients [clients, d], as far as the sum goes; see Uplink."""
        return self._uploads(self._codec.encode_batch(gradients, keys), keys, noise)

    def encode_scalars(
        self, round_number: int, scalars: Any, keys: Sequence[Key], noise: Sequence[NoiseSource] | None = None
    ) -> SecureUploads:
        """Do the same with scalars that clients have instead of gradients; see Uplink."""
        return self._uploads(self._codec.along_directions().encode_scalars(scalars, keys, self._d), keys, noise)

    def _uploads(self, batch: Batch, keys: Sequence[Key], noise: Sequence[NoiseSource] | None) -> SecureUploads:
        rows = np.stack([update.arrays[0] for update in batch.updates()]).astype(np.float64)
        elements = self._fixed.encode(clipped_rows(rows, self._inside), self._terms.clients)
        if self._config.noise_multiplier > 0:
            assert noise is not None
            elements = elements + self._noise(noise).view(np.uint64)  # modulo 2^64, and so modulo 2^bits
        count = len(keys)
        payload = count * self._terms.ring.nbytes(self._length)
        return SecureUploads(elements, tuple(keys), count * sum(bytes_up(self._terms)), payload)

    def _noise(self, sources: Sequence[NoiseSource]) -> NDArray[np.int64]:
        """Noise [clients, numbers]. Where only its sum matters, the first client's holds that of all.

        A sum of wide noises is distributed as one that is wider, so that one draw stands for thousands of them.
        """
        deviation, count = self._config.noise_in_steps(self._terms.clients), len(sources)
        if closeness(deviation, count) > NEGLIGIBLE:
            return np.stack([discrete_gaussian(deviation, self._length, source) for source in sources])
        noise = np.zeros((count, self._length), np.int64)
        noise[0] = discrete_gaussian(deviation * math.sqrt(count), self._length, sources[0])
        return noise

    def mean(self, uploads: SecureUploads, weights: Sequence[float] | None = None) -> Mean:
        """Return the mean that the server steps along: of the sum modulo 2^bits, as numbers again."""
        count = len(uploads.keys)
        mean = self._fixed.decode(uploads.elements.sum(axis=0), self._terms.clients) / count
        key = uploads.keys[0]
        if self._codec.scalar_codec is not None:
            update = self._codec.scalar_codec.update_of(mean, self._d, key, self._mean_bits)
        else:
            update = Update(self._codec, self._d, NO_KEY, (mean.astype(np.float32),))
        return Mean(Batch.of([update]))

    def aborted_bytes(self, clients: int) -> int:
        """Return what so many clients sent in a round that too few of them stayed in: all but the last phase."""
        return clients * sum(bytes_up(self._terms)[:-1])

    def overhead_down(self, clients: int) -> int:
        """Bytes of the protocol to so many clients, beside the model: keys and shares of the others."""
        return clients * sum(bytes_down(self._terms))
