"""What an attacker sees: bytes on the wire, and what the server knows anyway. Never a gradient."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import Codec, Update
from fedmpdd.directions import Key
from fedmpdd.tasks.losses import logits_of
from fedmpdd.tasks.models import FlatModel
from fedmpdd.tasks.objective import Objective
from fedmpdd.uplink import Protection
from fedmpdd.wire.frames import Session


@dataclass(frozen=True)
class Victim:
    """What a client computes, all of it public: the network, how pixels become inputs, the loss.

    Images are in [0, 1], [examples, channels, height, width]. The loss is cross-entropy unless there is an objective,
    whose loss takes classes; or, where there are targets, the row of these that a label is the number of.
    """

    model: FlatModel
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]  # inputs are (pixel − mean) / std, by channel
    std: tuple[float, ...]
    objective: Objective | None = None
    targets: Tensor | None = None

    def inputs(self, images: Tensor) -> Tensor:
        """Return the network's inputs for images."""
        shift, scale = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return (images - shift) / scale

    def gradients(self, flat: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Gradients [problems, d] of images [problems, batch, …] with label probabilities [problems, batch, classes].

        Differentiable in images and, where the loss is cross-entropy, in labels; another takes the most likely class.
        """
        gradients: Tensor = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0))(
            flat, self.inputs(images), labels
        )
        return gradients

    def _loss(self, parameters: Tensor, inputs: Tensor, probabilities: Tensor) -> Tensor:
        objective = self.objective
        if objective is None:
            outputs = logits_of(self.model(parameters, inputs))
            return -(probabilities * torch.log_softmax(outputs, dim=1)).sum(dim=1).mean()
        labels = probabilities.argmax(dim=1)
        batch = (inputs, labels if self.targets is None else self.targets[labels])
        return objective.tested(parameters, lambda network: objective.loss(network, batch))


@dataclass(frozen=True)
class ObservedUpdate:
    """One update as the server receives it: the model that the client had, and a frame."""

    flat: Tensor
    frame: bytes
    codec: Codec  # by agreement
    key: Key  # assigned by the server, or read from the frame
    protection: Protection | None = None  # clipping and noise, how much of them being agreed on too

    @cached_property
    def update(self) -> Update:
        """The frame, checked and read."""
        session = Session(self.codec, len(self.flat), sends_seed=False)
        return session.unpack(self.frame, self.key if session.assigns_key else None)

    @cached_property
    def decoded(self) -> Tensor:
        """The server's estimate of the gradient from this update alone."""
        return torch.from_numpy(self.codec.decode_mean([self.update])).to(self.flat.device)


@dataclass(frozen=True)
class Observation:
    """Everything an attacker has on one batch: one observed, or several rounds with the same examples.

    `labels` is given where the attacker is granted them, [batch]; None where it must find them.
    """

    victim: Victim
    updates: tuple[ObservedUpdate, ...]
    batch: int
    labels: Tensor | None = field(default=None)

    @property
    def device(self) -> torch.device:
        """Where the model is, and where guesses are held against it."""
        return self.updates[0].flat.device


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Label probabilities of known labels."""
    return torch.nn.functional.one_hot(labels, classes).float()


def observe(
    victim: Victim,
    flats: Sequence[Tensor],
    codec: Codec,
    keys: Sequence[Key],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    grant_labels: bool,
    protection: Protection | None = None,
    noise: Sequence[np.random.Generator] | None = None,
) -> Observation:
    """Be the client: compute the gradient of a batch at each model, encode it, and hand over nothing but frames.

    protection clips and adds noise, from these generators, one per model, or from the operating system.
    """
    device = flats[0].device
    targets, batch = torch.from_numpy(labels).to(device), torch.from_numpy(images).to(device)
    session = Session(codec, len(flats[0]), sends_seed=False)
    updates = []
    for i, (flat, key) in enumerate(zip(flats, keys, strict=True)):
        gradient = victim.gradients(flat, batch[None], one_hot(targets, victim.classes)[None])
        rows = gradient.detach().cpu().numpy()
        if protection is None:
            update = codec.encode(rows, [key])[0]
        else:
            (update,) = protection.encode(rows, [key], None if noise is None else [noise[i]]).updates()
        updates.append(ObservedUpdate(flat, session.pack(update), codec, key, protection))
    return Observation(victim, tuple(updates), len(labels), targets if grant_labels else None)
