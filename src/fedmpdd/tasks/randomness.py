"""What clients draw while they train, dropout for one: a function of who draws and when, not of who else computes.

Clients are computed one by one, or many in one vectorised call. PyTorch would draw for all clients of a call from one
generator, and other cuts of the clients would give other numbers. Here every client has a generator of its own. The
draws are caught below vectorisation and differentiation, where they are plain calls on tensors whose first dimension
counts the clients of the call.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

_drawing = threading.Lock()  # PyTorch's generator of a device is one for all threads


class ClientRandomness(TorchDispatchMode):
    """Within the block every client draws from a generator of its own.

    Args:
        seeds: one sequence of numbers per client, in the order of the vectorised call.
        vectorised: whether the clients are computed in one call; else there is one client.
        device: where they are computed.

    """

    def __init__(self, seeds: Sequence[Sequence[int]], *, vectorised: bool, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._vectorised = vectorised
        self._generator = _generator_of(device)
        self._states = [self._first_state(seed) for seed in seeds]
        self.draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; one that draws once per client, from the client's generator."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        with _drawing:
            before, states = self._generator.get_state(), list(self._states)
            try:
                return self._drawn(func, args, kwargs)
            finally:
                self._generator.set_state(before)
                # Attention, for one, could draw and does not without dropout.
                self.draws += not all(map(torch.equal, states, self._states))

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._vectorised:
            return self._of_client(0, func, args, kwargs)
        parts = [
            self._of_client(client, func, [_part(value, client) for value in args], kwargs)
            for client in range(len(self._states))
        ]
        if func._schema.name.endswith("_"):  # in place, on the parts of the one tensor
            return args[0]
        if isinstance(parts[0], tuple):
            return tuple(torch.stack(leaves) for leaves in zip(*parts, strict=True))
        return torch.stack(parts)

    def _of_client(self, client: int, func: Any, args: Any, kwargs: Any) -> Any:
        self._generator.set_state(self._states[client])
        result = func(*args, **kwargs)
        self._states[client] = self._generator.get_state()
        return result

    def _first_state(self, seed: Sequence[int]) -> Tensor:
        start = int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])
        return torch.Generator(self._generator.device).manual_seed(start).get_state()


def visible_draws() -> AbstractContextManager[None]:
    """Return a block within which attention draws its dropout where it can be caught; the fast kernels draw inside."""
    return sdpa_kernel(SDPBackend.MATH)


def _generator_of(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return torch.cuda.default_generators[device.index or torch.cuda.current_device()]
    return torch.default_generator


def _part(value: Any, client: int) -> Any:
    """What one client's operation gets of an argument of all: its row, or a size without the number of clients."""
    if isinstance(value, Tensor) and value.ndim > 0:
        return value[client]
    if isinstance(value, list | tuple | torch.Size):  # a size
        return list(value)[1:]
    return value
