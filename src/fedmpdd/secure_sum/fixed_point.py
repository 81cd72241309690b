"""Scalars as integers of a ring, in steps so wide that no sum of a round can wrap."""

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import InputError
from fedmpdd.secure_sum.checks import is_whole
from fedmpdd.secure_sum.ring import Ring

_FINEST = 2**52  # levels above it would be finer than float64 itself


@dataclass(frozen=True)
class FixedPoint:
    """Scalars from −clip to clip in a ring of `bits` bits, in steps of `step` (None: the finest that cannot wrap).

    A sum of n scalars never wraps: n·⌈clip/step⌉ ≤ 2^(bits−1) − 1. All methods take the n that the round started with,
    whoever drops out later: clients and server must use one step.
    """

    clip: float
    bits: int = 32
    step: float | None = None

    def __post_init__(self) -> None:
        Ring(self.bits)
        if not _is_positive(self.clip):
            raise InputError(f"clip = {self.clip!r}: expected a finite number above 0, the largest scalar to send")
        if self.step is not None and not _is_positive(self.step):
            raise InputError(f"step = {self.step!r}: expected a finite number above 0, or None for the finest")

    def levels(self, clients: int) -> int:
        """Return the largest level that a scalar of one of so many clients has."""
        if not is_whole(clients, 1):
            raise InputError(f"clients = {clients!r}: expected how many clients are asked, at least 1")
        largest = (1 << (self.bits - 1)) - 1
        room = largest // clients
        if self.step is None:
            levels = min(room, _FINEST)
            if levels < 1:
                raise InputError(
                    f"a ring of {self.bits} bits has no room for the sum of {clients} clients; "
                    f"raise bits to {clients.bit_length() + 1} or more, or ask fewer clients"
                )
            return levels
        ratio = self.clip / self.step
        levels = math.ceil(ratio) if ratio <= _FINEST else _FINEST + 1
        if levels > min(room, _FINEST):
            finest = self.clip / max(min(room, _FINEST), 1)
            raise InputError(
                f"{clients} clients with scalars of up to {levels:,} steps ({self.clip:g} / {self.step:g}) can wrap a "
                f"ring of {self.bits} bits, whose sums end at {largest:,}: raise step to {finest:g} or more, raise "
                "bits, or lower clip or the number of clients"
            )
        return levels

    def step_for(self, clients: int) -> float:
        """Return the width of a step when so many clients are asked."""
        levels = self.levels(clients)
        return self.clip / levels if self.step is None else self.step

    def encode(
        self, scalars: NDArray[np.float64], clients: int, uniforms: NDArray[np.float64] | None = None
    ) -> NDArray[np.uint64]:
        """Return scalars as elements of the ring. What is beyond ±clip becomes ±clip.

        Rounded to the nearest level, half to even; or, with `uniforms` from [0, 1) of the same shape, up or down at
        random with the right mean.
        """
        values = np.asarray(scalars, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError("a scalar is not finite, which no level stands for; lower the learning rate, or clip")
        levels = self.levels(clients)
        scaled = np.clip(values, -self.clip, self.clip) / self.step_for(clients)
        if uniforms is None:
            rounded = np.rint(scaled)
        else:
            drawn = np.asarray(uniforms, dtype=np.float64)
            if drawn.shape != values.shape or not ((drawn >= 0) & (drawn < 1)).all():
                raise InputError(f"uniforms must be numbers from [0, 1), of shape {list(values.shape)} as the scalars")
            rounded = np.floor(scaled + drawn)
        whole = np.clip(rounded, -levels, levels).astype(np.int64)
        # Negative integers are those of the ring's upper half.
        return np.asarray(whole.view(np.uint64) & np.uint64(2**self.bits - 1))

    def decode(self, total: NDArray[np.uint64], clients: int) -> NDArray[np.float64]:
        """Return a sum of encoded scalars as numbers: exact, up to the last digit of float64."""
        spare = np.uint64(64 - self.bits)
        signed = (np.asarray(total, dtype=np.uint64) << spare).view(np.int64) >> spare.astype(np.int64)
        return np.asarray(signed * self.step_for(clients))


def _is_positive(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf
