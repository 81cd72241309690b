"""FedMPDD for gradients that live on a GPU: scalars are made, rounded and decoded there.

The same arithmetic as mpdd.py, in torch. Scalars and decoded gradients have the CPU's bits; the scale of one-bit
scalars has them up to the order of a float64 sum.
"""

import math
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import Key, cuda
from fedmpdd.errors import CodecError, GradientError


class Round(NamedTuple):
    """The updates of a round, on the device: a scale per client (None for 32 bits) and levels or scalars [clients, m].

    Levels are kept as float32; one-bit scalars are ±1.
    """

    keys: list[Key]
    device_keys: cuda.DeviceKeys
    scales: Tensor | None
    values: Tensor


def encode(codec: MPDD, gradients: Tensor, keys: list[Key]) -> Round:
    """Encode gradients [clients, d]. They are taken as checked, but for being finite."""
    own_keys = device_keys(codec, keys, gradients.shape[1], gradients.device)
    project = cuda.hadamard_encode if codec.family == "hadamard" else cuda.rademacher_encode
    scalars = project(gradients, own_keys, codec.m)
    if codec.bits == 32:
        scales, values = None, scalars
    elif codec.bits == 1:
        scales, values = _one_bit(scalars, cuda.moments(gradients))
    else:
        scales, values = _rounded(codec, scalars, own_keys)
    # A gradient that is not finite has no finite scalar and no finite scale: one look at few numbers does for all.
    largest = scalars if scales is None else scales.double() * max(1, codec.levels)
    if not bool((largest.abs() <= torch.finfo(torch.float32).max).all()):
        _refuse(gradients)
    return Round(keys, own_keys, scales, values)


def decode(codec: MPDD, updates: Round, factors: Tensor, out: Tensor) -> None:
    """Add Σ factor · estimate of all updates to out [d]; factors are float64 [clients] and add up to one."""
    factors = factors / codec.m
    if updates.scales is not None:
        factors = factors * updates.scales.double()
    if codec.family == "hadamard":
        cuda.hadamard_decode(updates.values, factors, updates.keys, updates.device_keys, out)
    else:
        cuda.rademacher_decode(updates.values, factors, updates.device_keys, out, votes=codec.bits == 1)


def decode_arrays(
    codec: MPDD,
    keys: list[Key],
    scales: NDArray[np.float32] | None,
    values: NDArray[np.float32],
    factors: NDArray[np.float64],
    d: int,
    device: str,
) -> Tensor:
    """`decode` of updates that came from elsewhere, their scalars unpacked to float32."""
    place = torch.device(device)
    out = torch.zeros(d, device=place)
    updates = Round(
        keys,
        device_keys(codec, keys, d, out.device),
        None if scales is None else torch.from_numpy(scales).to(place),
        torch.from_numpy(values).to(place),
    )
    decode(codec, updates, torch.from_numpy(factors).to(place), out)
    return out


def device_keys(codec: MPDD, keys: list[Key], d: int, device: torch.device) -> cuda.DeviceKeys:
    """Keys as the kernels of the codec's family read them."""
    if codec.family == "hadamard":
        return cuda.hadamard_keys(device, keys, codec.m, d)
    return cuda.keys_on(device, keys, codec.m)


def _one_bit(scalars: Tensor, seconds_and_fourths: Tensor) -> tuple[Tensor, Tensor]:
    second, fourth = seconds_and_fourths.T
    safe = torch.where(second > 0, second, 1.0)
    scales = (torch.sqrt(math.pi / 2 * second) / (1 + fourth / (12 * safe * safe))).float()
    negative = (scalars < 0) & (scales > 0)[:, None]
    return scales, torch.where(negative, -1.0, 1.0)


def _rounded(codec: MPDD, scalars: Tensor, keys: cuda.DeviceKeys) -> tuple[Tensor, Tensor]:
    largest = scalars.abs().amax(dim=1).double()
    scales = (largest / codec.levels).float()
    above = torch.nextafter(scales, torch.full_like(scales, math.inf))
    scales = torch.where(scales.double() * codec.levels < largest, above, scales)
    steps = torch.where(scales > 0, scales, 1.0).double()[:, None]
    uniform = (cuda.rounding_words(keys, codec.m).double() + 0.5) * 2.0**-32
    levels = torch.floor(scalars / steps + uniform)
    return scales, torch.where(scales[:, None] > 0, levels, 0.0).float()


def _refuse(gradients: Tensor) -> NoReturn:
    """Say why the scalars are not finite."""
    wrong = (~torch.isfinite(gradients)).nonzero()
    if len(wrong):
        client, coordinate = wrong[0].tolist()
        raise GradientError(
            f"gradients[{client}, {coordinate}] is {float(gradients[client, coordinate])}; all must be finite: "
            "lower the learning rate or clip before encoding"
        )
    raise CodecError(
        "a projection, or their scale, overflows float32: the gradient is too large; scale or clip it before encoding"
    )
