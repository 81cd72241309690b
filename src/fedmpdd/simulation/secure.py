"""Rounds in which the server gets the sum of all scalars and no client's own: docs/secure-sum.md.

The engine adds up integers where machines would add up masked ones: masks cancel, to the last bit, and tests of the
protocol show it. Bytes are counted as the protocol sends them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import MPDD, NO_KEY, Codec, FedSGD, Update, mean_rounding, update_of_scalars
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError
from fedmpdd.secure_sum import FixedPoint, Terms, bytes_down, bytes_up
from fedmpdd.simulation.exchange import Received, Sent
from fedmpdd.simulation.sections import SecureConfig
from fedmpdd.uplink.discrete_gaussian import NEGLIGIBLE, closeness, discrete_gaussian
from fedmpdd.uplink.protection import NoiseSource, clipped_rows
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.frames import Session


class SecureExchange:
    """Scalars, clipped, in steps, with noise on the integers; added up modulo 2^bits; their mean is an update."""

    def __init__(
        self, config: SecureConfig, codec: Codec, d: int, clients: int, device: torch.device, mean_bits: int | None
    ) -> None:
        self._config = config
        self._codec = codec
        self.by_client = False  # the noise of all is one draw
        self._device = device
        self._mean_bits = mean_bits or 32
        self._length = codec.m if isinstance(codec, MPDD) else d
        self._terms = Terms(
            bytes(16), 0, clients, self._length, config.threshold(clients), config.ring_bits, config.neighbours
        )
        # The longest vector of a client: a gradient of norm `clip` has m scalars of about this length.
        self.bound = config.clip * (math.sqrt(codec.m) if isinstance(codec, MPDD) else 1.0)
        self.step = self.bound / config.levels(clients)
        self._fixed = FixedPoint(self.bound, config.ring_bits, self.step)
        # Rounding makes a vector longer, by up to half a step per number; it must not end up beyond the bound.
        self._inside = self.bound - math.sqrt(self._length) * self.step / 2
        if self._inside < 0.9 * self.bound:
            raise ConfigError(
                f"secure.ring_bits = {config.ring_bits}: {self._length:,} numbers of {clients} clients leave steps of "
                f"{self.step / self.bound:.2g} of the bound, too coarse; take more bits"
            )

    def send(
        self,
        session: Session,
        gradients: Tensor,
        keys: list[Key],
        clients: NDArray[np.int64],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Sent:
        """See Exchange: what the clients would mask and send, as far as their sum goes."""
        elements = self._fixed.encode(self._clipped(gradients, keys), self._terms.clients)
        if self._config.noise_multiplier > 0:
            assert noise is not None
            elements = elements + self._noise(noise).view(np.uint64)  # modulo 2^64, and so modulo 2^bits
        count = len(keys)
        return Sent(elements, count * sum(bytes_up(self._terms)), count * self._terms.ring.nbytes(self._length))

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

    def _clipped(self, gradients: Tensor, keys: list[Key]) -> NDArray[np.float64]:
        if isinstance(self._codec, MPDD):
            exact = replace(self._codec, bits=32).encode(
                gradients if gradients.is_cuda else gradients.cpu().numpy(), keys
            )
            rows = np.stack([update.arrays[0] for update in exact]).astype(np.float64)
        else:
            rows = gradients.cpu().numpy().astype(np.float64)
        return clipped_rows(rows, self._inside)

    def receive(self, session: Session, sent: Sent, keys: list[Key], weights: Sequence[float] | None) -> Received:
        """See Exchange: the sum modulo 2^bits, as a number again, divided by the clients that are in it."""
        mean = self._fixed.decode(sent.content.sum(axis=0), self._terms.clients) / len(keys)
        if isinstance(self._codec, MPDD):
            rounding = mean_rounding(keys[0])
            update = update_of_scalars(self._codec, mean, session.d, keys[0], self._mean_bits, rounding)
        else:
            update = Update(FedSGD(), session.d, NO_KEY, (mean.astype(np.float32),))
        bundle = Bundle((update,))
        return Received(bundle.estimate(str(self._device)), bundle)

    def in_vain(self, clients: int) -> Sent:
        """What so many clients sent in a round that too few of them stayed in: all but the last phase."""
        return Sent(None, clients * sum(bytes_up(self._terms)[:-1]), 0)

    def overhead_down(self, clients: int) -> int:
        """Bytes of the protocol to so many clients, beside the model: keys and shares of the others."""
        return clients * sum(bytes_down(self._terms))
