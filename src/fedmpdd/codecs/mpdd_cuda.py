"""FedMPDD for gradients that live on a GPU: scalars are made, rounded and decoded there.

The same arithmetic as mpdd.py, in torch. Scalars and decoded gradients have the CPU's bits; the scale of one-bit
scalars has them up to the order of a float64 sum.
"""

import math
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs.base import LARGEST_COORDINATE
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import Key, cuda
from fedmpdd.errors import CodecError, GradientError


class Keys(NamedTuple):
    """The keys of some updates, here and on the device."""

    here: list[Key]
    there: cuda.DeviceKeys


class Round(NamedTuple):
    """The updates of a round, on the device: a scale per client (None for 32 bits) and levels or scalars [clients, m].

    Levels are kept as float32; one-bit scalars are ±1.
    """

    keys: Keys
    scales: Tensor | None
    values: Tensor


def keys_on(device: torch.device, codec: MPDD, keys: list[Key], d: int) -> Keys:
    """Copy keys to the device, as the kernels of the codec's family read them."""
    if codec.family == "hadamard":
        return Keys(keys, cuda.hadamard_keys(device, keys, codec.m, d))
    return Keys(keys, cuda.keys_on(device, keys, codec.m))


def project(codec: MPDD, gradients: Tensor, keys: Keys) -> Tensor:
    """Directional derivatives [clients, m] of gradients [clients, d], all of them float32."""
    if codec.family == "hadamard":
        return cuda.hadamard_encode(gradients, keys.there, codec.m)
    return cuda.rademacher_encode(gradients, keys.there, codec.m)


def add_up(codec: MPDD, scalars: Tensor, factors: Tensor, keys: Keys, out: Tensor, first_tile: int = 0) -> None:
    """Add to out Σ factor · scalar · direction: a whole gradient, or, of rademacher directions, a slice of it.

    Factors are float64 [clients], with 1/m and scales in them.
    """
    if codec.family == "hadamard":
        cuda.hadamard_decode(scalars, factors, keys.here, keys.there, out)
    else:
        cuda.rademacher_decode(scalars, factors, keys.there, out, votes=codec.bits == 1, first_tile=first_tile)


# ------------------------------------------------------------------------- rounds that never leave the device


def encode(codec: MPDD, gradients: Tensor, keys: list[Key]) -> Round:
    """Encode gradients [clients, d]. They are taken as checked, but for being finite."""
    own = keys_on(gradients.device, codec, keys, gradients.shape[1])
    scalars = project(codec, gradients, own)
    scales: Tensor | None = None
    values = scalars
    if codec.bits == 1:
        scales, values = _one_bit(scalars, cuda.moments(gradients))
    elif codec.bits < 32:
        scales, values = _rounded(codec, scalars, own)
    # A gradient that is not finite has no finite scalar and no finite scale: one look at few numbers does for all.
    largest = scalars if scales is None else scales.double() * max(1, codec.levels)
    if not bool((largest.abs() <= LARGEST_COORDINATE).all()):
        refuse(gradients)
    return Round(own, scales, values)


def decode(codec: MPDD, updates: Round, factors: Tensor, out: Tensor) -> None:
    """Add to out [d] Σ factor · estimate of all updates; factors are float64 [clients] and add up to one."""
    factors = factors / codec.m
    if updates.scales is not None:
        factors = factors * updates.scales.double()
    add_up(codec, updates.values, factors, updates.keys, out)


def _one_bit(scalars: Tensor, seconds_and_fourths: Tensor) -> tuple[Tensor, Tensor]:
    second, fourth = seconds_and_fourths.T
    safe = torch.where(second > 0, second, 1.0)
    scales = (torch.sqrt(math.pi / 2 * second) / (1 + fourth / (12 * safe * safe))).float()
    negative = (scalars < 0) & (scales > 0)[:, None]
    return scales, torch.where(negative, -1.0, 1.0)


def _rounded(codec: MPDD, scalars: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:
    largest = scalars.abs().amax(dim=1).double()
    scales = (largest / codec.levels).float()
    above = torch.nextafter(scales, torch.full_like(scales, math.inf))
    scales = torch.where(scales.double() * codec.levels < largest, above, scales)
    steps = torch.where(scales > 0, scales, 1.0).double()[:, None]
    uniform = (cuda.rounding_words(keys.there, codec.m).double() + 0.5) * 2.0**-32
    levels = torch.floor(scalars / steps + uniform)
    return scales, torch.where(scales[:, None] > 0, levels, 0.0).float()


def refuse(gradients: Tensor) -> NoReturn:
    """Say why the scalars of these gradients are not finite."""
    wrong = (~torch.isfinite(gradients)).nonzero()
    if len(wrong):
        client, coordinate = wrong[0].tolist()
        raise GradientError(
            f"gradients[{client}, {coordinate}] is {float(gradients[client, coordinate])}; all must be finite: "
            "lower the learning rate or clip before encoding"
        )
    raise CodecError(
        f"a projection, or their scale, is above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave "
        "float32: the gradient is too large; scale or clip it before encoding"
    )


# ------------------------------------------------------------------------- updates that come from, or go to, the host


def project_to_host(codec: MPDD, gradients: Tensor, keys: list[Key]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Scalars [clients, m] and moments [clients, 2] of gradients, as arrays."""
    moments = cuda.moments(gradients)
    scalars = project(codec, gradients, keys_on(gradients.device, codec, keys, gradients.shape[1])).cpu().numpy()
    if not np.isfinite(scalars).all():
        refuse(gradients)
    return scalars, moments.cpu().numpy()


def decode_from_host(
    codec: MPDD, scalars: NDArray[Any], factors: NDArray[np.float64], keys: list[Key], d: int, device: str
) -> Tensor:
    """The estimate [d], given what MPDD._scalars returns."""
    out = torch.zeros(d, device=device)
    values, multipliers = upload(codec, scalars, factors, out.device)
    add_up(codec, values, multipliers, keys_on(out.device, codec, keys, d), out)
    return out


def upload(
    codec: MPDD, scalars: NDArray[Any], factors: NDArray[np.float64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Scalars as float32 [clients, m], and factors, on the device; one-bit scalars come as packed signs."""
    if codec.bits == 1:
        scalars = 1.0 - np.float32(2.0) * np.unpackbits(scalars, axis=1, count=codec.m, bitorder="little")
    return torch.from_numpy(np.ascontiguousarray(scalars)).to(device), torch.from_numpy(factors).to(device)
