"""Rounds in which the server gets the sum of all scalars and no client's alone: docs/secure-sum.md.

The engine adds up integers where machines would add up masked ones: masks cancel, to the last bit, and tests of the
protocol show it. Bytes are counted as the protocol sends them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key
from fedmpdd.secure_sum import bytes_down, bytes_up
from fedmpdd.simulation.exchange import Received, Sent
from fedmpdd.simulation.sections import SecureConfig
from fedmpdd.uplink.protection import NoiseSource
from fedmpdd.uplink.secure import SecureUplink
from fedmpdd.wire.frames import Session


class SecureExchange:
    """The uplink of secure sums between gradients that are tensors and an estimate that is one."""

    def __init__(
        self, config: SecureConfig, codec: Codec, d: int, clients: int, device: torch.device, mean_bits: int | None
    ) -> None:
        self.by_client = False  # the noise of all is one draw
        self._device = device
        self._mean_bits = mean_bits or 32
        self.uplink = SecureUplink(codec, d, clients, config.clip, config.noise_multiplier, config.ring_bits)
        self._terms = self.uplink.terms(bytes(16), 0, threshold=config.threshold(clients), neighbours=config.neighbours)

    def send(
        self,
        session: Session,
        gradients: Tensor,
        keys: list[Key],
        clients: NDArray[np.int64],
        noise: Sequence[NoiseSource] | None = None,
    ) -> Sent:
        """See Exchange: what the clients would mask and send, as far as their sum goes."""
        on_gpu = gradients.is_cuda and self.uplink.codec.adds_up
        elements = self.uplink.elements(gradients if on_gpu else gradients.cpu().numpy(), keys, noise)
        count = len(keys)
        payload = self._terms.ring.nbytes(self._terms.length)
        return Sent(elements, count * sum(bytes_up(self._terms)), count * payload)

    def receive(self, session: Session, sent: Sent, keys: list[Key], weights: Sequence[float] | None) -> Received:
        """See Exchange: the sum as an update, which is the mean of the clients that are in it."""
        bundle = self.uplink.bundle(sent.content.sum(axis=0), len(keys), keys[0], self._mean_bits)
        return Received(bundle.estimate(str(self._device)), bundle)

    def in_vain(self, clients: int) -> Sent:
        """What so many clients sent in a round that too few of them stayed in: all but the last phase."""
        return Sent(None, clients * sum(bytes_up(self._terms)[:-1]), 0)

    def overhead_down(self, clients: int) -> int:
        """Bytes of the protocol to so many clients, beside the model: keys and shares of the others."""
        return clients * sum(bytes_down(self._terms))
