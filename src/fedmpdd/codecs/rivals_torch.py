"""What a server decodes from rivals' updates, computed where the gradients are: for simulations on a GPU.

The same mathematics as the codecs' own files, without bytes in between. What is random comes from PyTorch's generator,
seeded by the key: as random as the codec's own noise, and not the same numbers.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedmpdd.codecs.base import Codec
from fedmpdd.codecs.fedsgd import FedSGD
from fedmpdd.codecs.gaussian import Gaussian
from fedmpdd.codecs.laplace import Laplace
from fedmpdd.codecs.lp_proj import LpProj, matrix_rows
from fedmpdd.codecs.qsgd import QSGD
from fedmpdd.codecs.signsgd import SignSGD
from fedmpdd.codecs.topk import TopK
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError, GradientError


def handles(codec: Codec) -> bool:
    """Return whether this codec has a version here."""
    return type(codec) in _DECODED


def decoded(codec: Codec, gradients: Tensor, keys: list[Key]) -> Tensor:
    """Return what each client's update stands for [clients, d], given the gradients."""
    result = _DECODED[type(codec)](codec, gradients, keys)
    if not bool(torch.isfinite(result.sum())) and not bool(torch.isfinite(result).all()):
        if bool(torch.isfinite(gradients).all()):
            raise CodecError("an update overflows float32: the gradient is too large; scale or clip it")
        client, coordinate = (~torch.isfinite(gradients)).nonzero()[0].tolist()
        raise GradientError(
            f"gradients[{client}, {coordinate}] is {float(gradients[client, coordinate])}; all must be finite: "
            "lower the learning rate or clip before encoding"
        )
    return result


def _uniform(gradients: Tensor, keys: list[Key]) -> Tensor:
    """Numbers from 0 to 1, below 1, like the gradients; those of a client follow from its key."""
    result = torch.empty_like(gradients)
    generator = torch.Generator(gradients.device)
    for row, key in zip(result, keys, strict=True):
        generator.manual_seed((key.seed ^ key.slot * 0x9E3779B97F4A7C15) % 2**63)
        torch.rand(row.shape, generator=generator, out=row)
    return result


def _fedsgd(codec: FedSGD, gradients: Tensor, keys: list[Key]) -> Tensor:
    return gradients


def _laplace(codec: Laplace, gradients: Tensor, keys: list[Key]) -> Tensor:
    centred = _uniform(gradients, keys) - 0.5
    # The inverse of the distribution function; the smallest uniform number keeps its logarithm finite.
    magnitude = -torch.log1p(-(2 * centred.abs()).clamp_max(1 - 2.0**-24))
    noise: Tensor = (codec.noise / 2) ** 0.5 * centred.sign() * magnitude
    return gradients + noise


def _gaussian(codec: Gaussian, gradients: Tensor, keys: list[Key]) -> Tensor:
    uniform = _uniform(gradients, keys).clamp(2.0**-25, 1 - 2.0**-24)
    noise: Tensor = codec.noise**0.5 * torch.special.ndtri(uniform)
    return gradients + noise


def _qsgd(codec: QSGD, gradients: Tensor, keys: list[Key]) -> Tensor:
    norms = gradients.square().sum(dim=1, keepdim=True, dtype=torch.float64).sqrt().float()
    safe = torch.where(norms > 0, norms, 1.0)
    levels = torch.floor(gradients * codec.levels / safe + _uniform(gradients, keys))
    return levels.clamp(-codec.levels, codec.levels) * norms / codec.levels


def _topk(codec: TopK, gradients: Tensor, keys: list[Key]) -> Tensor:
    indices = gradients.abs().topk(codec.k, dim=1).indices
    return torch.zeros_like(gradients).scatter_(1, indices, gradients.gather(1, indices))


def _signsgd(codec: SignSGD, gradients: Tensor, keys: list[Key]) -> Tensor:
    signs = torch.where(gradients < 0, -1.0, 1.0)
    if not codec.scaled:
        return signs
    return signs * gradients.abs().mean(dim=1, keepdim=True, dtype=torch.float64).float()


def _lp_proj(codec: LpProj, gradients: Tensor, keys: list[Key]) -> Tensor:
    matrix = _lp_matrix(codec.size, gradients.shape[1], gradients.device)
    return (gradients @ matrix.T) @ matrix


@cache
def _lp_matrix(size: int, d: int, device: torch.device) -> Tensor:
    rows = [torch.from_numpy(np.ascontiguousarray(part)) for _, part in matrix_rows(size, d)]
    return torch.cat(rows).to(device)


_DECODED: dict[type[Codec], Callable[..., Tensor]] = {
    FedSGD: _fedsgd,
    Laplace: _laplace,
    Gaussian: _gaussian,
    QSGD: _qsgd,
    TopK: _topk,
    SignSGD: _signsgd,
    LpProj: _lp_proj,
}
