"""A client and a server for training loops of one's own: any module, any loss, any optimiser, any transport."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from fedmpdd.codecs import Batch, Codec
from fedmpdd.codecs.registry import check_is_codec
from fedmpdd.directions import Key, check_key
from fedmpdd.errors import CodecError, ConfigError, MagicError
from fedmpdd.imports import quote
from fedmpdd.torch.parameters import TrainedParameters, check_sends_gradients
from fedmpdd.uplink import ErrorFeedback, Mean, Protection, Uplink


class Client:
    """Turns the gradients of a module into the frames of a codec.

    Args:
        model: the module that is trained, or some of its parameters. Those with `requires_grad=False` are left out.
        codec: how a gradient becomes an update. The server needs an equal one.
        assigned_keys: the server hands out keys, so that frames carry no seed: 8 bytes less.
        error_feedback: what an update left out is added to the next gradient. For codecs such as Top-k.
        protection: clipping and noise on the scalars, see docs/protection.md.

    Example:
        >>> model = torch.nn.Linear(20, 1)
        >>> client = Client(model, MPDD(m=8, bits=1, family="hadamard"))
        >>> model(torch.ones(4, 20)).mean().backward()
        >>> len(client.frame())
        21

    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Parameter],
        codec: Codec,
        *,
        assigned_keys: bool = False,
        error_feedback: bool = False,
        protection: Protection | None = None,
    ) -> None:
        self._trained = TrainedParameters(model)
        self._uplink = _uplink(
            self._trained, codec, assigned_keys, ErrorFeedback(codec) if error_feedback else None, protection
        )

    def frame(self, key: Key | int | None = None, round_number: int = 0) -> bytes:
        """Return what to send: the gradients that the last `backward` left in the parameters.

        Args:
            key: of the update's directions, a seed or a Key. None draws a seed from the operating system, which is
                right where frames carry their seed.
            round_number: from 0. It matters only for codecs that change with it, such as peaks that grow.

        """
        if key is None:
            if self._uplink.keys != "sent":
                raise CodecError("the server assigns keys here, and none came; pass the key that this client was given")
            key = secrets.randbits(64)
        _check_round(round_number)
        gradient = self._trained.gradient()
        rows = gradient[None] if gradient.is_cuda else gradient[None].cpu().numpy()
        uploads = self._uplink.encode(round_number, rows, [check_key(key)], [0])
        return self._uplink.session(round_number).pack(uploads.batch.updates()[0])


class Server:
    """Decodes the frames of a round, writes their mean into `.grad`, and takes a step of an optimiser.

    Args:
        model: the module that is trained, or some of its parameters: the same ones as on the clients.
        codec: equal to that of the clients.
        optimiser: any of `torch.optim`, over the parameters of the model.
        assigned_keys: as for the clients.

    Example:
        >>> server = Server(model, MPDD(m=8, bits=1, family="hadamard"), torch.optim.SGD(model.parameters(), lr=0.1))
        >>> server.step([frame])

    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Parameter],
        codec: Codec,
        optimiser: Optimizer,
        *,
        assigned_keys: bool = False,
    ) -> None:
        self._trained = TrainedParameters(model)
        self._uplink = _uplink(self._trained, codec, assigned_keys)
        self._sends_seed = check_is_codec(codec).needs_key and not assigned_keys
        if not isinstance(optimiser, Optimizer) or isinstance(optimiser, torch.optim.LBFGS):
            raise ConfigError(
                f"optimiser = {quote(optimiser)}: expected one of torch.optim that steps along one gradient, like "
                "torch.optim.Adam(model.parameters(), lr=1e-3)"
            )
        self.optimiser = optimiser
        stepped = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
        left_out = [
            name
            for name, parameter in zip(self._trained.names, self._trained.parameters, strict=True)
            if id(parameter) not in stepped
        ]
        if left_out:
            raise ConfigError(
                f"the optimiser does not step {len(left_out)} of the parameters that clients send gradients of, "
                f"{left_out[0]} for one; make it over the parameters of this model"
            )

    def step(
        self,
        frames: Sequence[bytes],
        *,
        keys: Sequence[Key | int] | None = None,
        weights: Sequence[float] | None = None,
        round_number: int = 0,
    ) -> None:
        """Take one step along the mean of what came.

        Args:
            frames: one of each client that answered. What is damaged raises a WireError, and nothing is changed.
            keys: those that were assigned, in the same order; None where frames carry their seeds.
            weights: of the clients, the number of their examples say; None for equal ones.
            round_number: as the clients pass it.

        """
        _check_round(round_number)
        session = self._uplink.session(round_number)
        self._check_frames(frames)
        if keys is not None and not session.assigns_key:
            raise CodecError(
                "keys came, and frames carry what is needed here; leave keys out, or make both sides with "
                "assigned_keys=True"
            )
        for name, values in (("keys", keys), ("weights", weights)):
            if values is not None and not isinstance(values, Sequence | np.ndarray):
                raise CodecError(f"{name} = {quote(values)}: expected a list with one of each frame")
        if keys is not None and len(keys) != len(frames):
            raise CodecError(f"{len(frames)} frames came with {len(keys)} keys; each needs the one it was made with")
        if session.assigns_key and keys is None:
            raise CodecError("keys are assigned here, and none came; pass keys=, one for each frame")
        given: Sequence[Key | None] = [None] * len(frames)
        if session.assigns_key and keys is not None:
            given = [check_key(key) for key in keys]
        if not frames:
            raise CodecError("no frames came; a round without clients takes no step")
        updates = [session.unpack(frame, key) for frame, key in zip(frames, given, strict=True)]
        device = self._trained.parameters[0].device
        batch = Batch.of(updates, str(device) if device.type == "cuda" else None)
        estimate = Mean(batch, None if weights is None else tuple(weights)).estimate()
        self._trained.set_gradient(torch.as_tensor(estimate))
        self.optimiser.step()

    def _check_frames(self, frames: Any) -> None:
        """Raise unless these are frames, each once."""
        if isinstance(frames, str | bytes | bytearray | memoryview) or not isinstance(frames, Sequence):
            raise CodecError(f"frames = {quote(frames)}: expected a list with one frame of each client")
        seen: dict[bytes, int] = {}
        for number, frame in enumerate(frames):
            if not isinstance(frame, bytes | bytearray | memoryview):
                raise MagicError(f"frame {number} is {quote(frame)}; expected bytes, as Client.frame gives them")
            first = seen.setdefault(bytes(frame), number)
            # Seeds are drawn anew for every frame. Without one, clients with equal gradients send equal bytes.
            if first != number and self._sends_seed:
                raise CodecError(
                    f"frames {first} and {number} are the same, seed and all: one came twice; keep one of them"
                )


def _check_round(round_number: Any) -> None:
    if not isinstance(round_number, int | np.integer) or round_number < 0:
        raise CodecError(f"round_number = {quote(round_number)}: expected the number of a round, from 0")


def _uplink(
    trained: TrainedParameters,
    codec: Codec,
    assigned_keys: bool,
    memory: ErrorFeedback | None = None,
    protection: Protection | None = None,
) -> Uplink:
    check_sends_gradients(codec)
    if protection is not None and not isinstance(protection, Protection):
        raise CodecError(f"protection = {quote(protection)}: expected fedmpdd.uplink.Protection(codec, clip=…)")
    keys = "partitioned" if assigned_keys else "sent"
    return Uplink(codec.for_shapes(trained.shapes), trained.d, keys, memory=memory, protection=protection)
