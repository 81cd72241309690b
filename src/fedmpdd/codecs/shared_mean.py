"""Updates that share one key have a mean that is an update itself: scalars along the same directions add up.

What clients sent is then not needed any more, only its sum: for a server that passes it on to everybody, and for one
that never sees more than the sum.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import sphere_factor
from fedmpdd.codecs.base import Update, mean_factors
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import Key, derive_seed
from fedmpdd.errors import CodecError

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def shared_mean(
    codec: MPDD, updates: Sequence[Update], bits: int, rounding: Key, weights: Sequence[float] | None = None
) -> Update:
    """Return the (weighted) mean of updates of one key as an update with scalars of `bits` bits.

    rounding: the key of the numbers that scalars of 4 to 16 bits are rounded with, as `mean_rounding` has it.
    """
    if len({update.key for update in updates}) != 1:
        raise CodecError('the updates have different keys, so that their scalars do not add up; use keys = "shared"')
    factors = mean_factors(len(updates), weights)
    scales = np.array([1.0 if codec.bits == 32 else float(update.arrays[0][0]) for update in updates])
    levels = np.stack([codec.levels_of(update) for update in updates]).astype(np.float64)
    # One client after another: a matrix product would add up in an order that depends on the machine.
    scalars = np.zeros(codec.m)
    for factor, row in zip(factors * scales, levels, strict=True):
        scalars += factor * row
    return update_of_scalars(codec, scalars, updates[0].d, updates[0].key, bits, rounding)


def mean_rounding(key: Key) -> Key:
    """Return the key that the mean of updates with this key is rounded with.

    Rounded with the clients' own numbers, its errors would add to theirs instead of cancelling.
    """
    return Key(derive_seed(key.seed, 0, 0))


def update_of_scalars(codec: MPDD, scalars: NDArray[np.float64], d: int, key: Key, bits: int, rounding: Key) -> Update:
    """Return the update that carries these scalars [m] with so many bits each."""
    if not (np.abs(scalars) <= _LARGEST_FLOAT32).all():
        raise CodecError("a scalar is beyond float32: the gradients are too large; scale or clip them")
    sent = replace(codec, bits=bits)
    row = scalars.astype(np.float32)[np.newaxis]
    scales = None
    if bits == 1:  # the scale is made from the scalars, as where they are noisy: see Private.from_noisy
        # Correctly rounded steps only, in one order, so that every machine finds the same scale.
        total = np.add.accumulate(scalars * scalars)[-1]
        scales = sphere_factor(codec.m) * np.sqrt(np.array([total / codec.m]))
    (arrays,) = sent.arrays_of(row, scales, [rounding])
    return Update(sent, d, key, arrays)
