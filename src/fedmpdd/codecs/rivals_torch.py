"""What a server decodes from rivals' updates, computed where the gradients are: for simulations on a GPU.

The same mathematics as the codecs' own files, without bytes in between. What is random comes from PyTorch's generator,
seeded by the key: as random as the codec's own noise, and not the same numbers.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from fedmpdd.codecs.base import Codec
from fedmpdd.codecs.eden import EDEN, quantiser_levels
from fedmpdd.codecs.fedsgd import FedSGD
from fedmpdd.codecs.gaussian import Gaussian
from fedmpdd.codecs.laplace import Laplace
from fedmpdd.codecs.lp_proj import LpProj, matrix_rows
from fedmpdd.codecs.qsgd import QSGD
from fedmpdd.codecs.sa_fedlora import SAFedLora, start_matrix
from fedmpdd.codecs.signsgd import SignSGD
from fedmpdd.codecs.topk import TopK
from fedmpdd.directions import Key, hadamard_size
from fedmpdd.directions.reference import outer_matrix
from fedmpdd.directions.spec import hadamard_order
from fedmpdd.errors import CodecError, GradientError


def handles(codec: Codec) -> bool:
    """Return whether this codec has a version here."""
    return type(codec) in _DECODED and not (isinstance(codec, EDEN) and codec.rows is not None)


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


def _eden(codec: EDEN, gradients: Tensor, keys: list[Key]) -> Tensor:
    d = gradients.shape[1]
    size = hadamard_size(d)
    signs = torch.where(_uniform(gradients, [Key(key.seed) for key in keys]) < 0.5, -1.0, 1.0)
    rotated = _hadamard(torch.nn.functional.pad(gradients * signs, (0, size - d)))
    squares = gradients.square().sum(dim=1, keepdim=True, dtype=torch.float64)
    levels = torch.tensor(quantiser_levels(codec.bits), device=gradients.device)
    thresholds = ((levels[1:].double() + levels[:-1]) / 2).float()
    norms = torch.where(squares > 0, squares, 1.0).sqrt().float()
    values = levels[torch.bucketize(rotated / norms, thresholds, right=True)]
    products = (rotated * values).mean(dim=1, keepdim=True, dtype=torch.float64)
    scales = torch.where(squares > 0, squares / products, 0.0).float()
    return _hadamard(values, transposed=True)[:, :d] * signs * (scales / size)


def _hadamard(values: Tensor, *, transposed: bool = False) -> Tensor:
    """The transform of every row by the ±1 matrix of Hadamard of its length: an outer matrix times Sylvester's."""
    rows, size = values.shape
    order, log2 = hadamard_order(size)
    for half in (1 << i for i in range(log2)):
        pairs = values.view(rows, -1, 2, half)
        values = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2)
    outer = torch.tensor(outer_matrix(order), dtype=torch.float64, device=values.device)
    # In double: ten-bit inputs, which a config may ask for, are for networks.
    return ((outer.T if transposed else outer) @ values.view(rows, order, -1).double()).float().view(rows, size)


def _sa_fedlora(codec: SAFedLora, gradients: Tensor, keys: list[Key]) -> Tensor:
    parts, offset = [], 0
    for number, (rows, columns, rank) in enumerate(codec.layers()):
        size = rows * max(columns, 1)
        layer = gradients[:, offset : offset + size]
        offset += size
        if rank:
            matrix = layer.reshape(-1, rows, columns).double()
            left = _orthonormal(matrix @ _start(number, columns, rank, gradients.device))
            left = _orthonormal(matrix @ (matrix.mT @ left))
            layer = (left.float().double() @ (left.mT @ matrix).float().double()).float().flatten(1)
        parts.append(layer)
    return torch.cat(parts, dim=1)


@cache
def _start(number: int, columns: int, rank: int, device: torch.device) -> Tensor:
    return torch.from_numpy(start_matrix(number, columns, rank)).to(device)


def _orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns that span those of each matrix [clients, rows, rank]; zeros for what depends on others.

    Gram and Schmidt, each projection taken twice. A handful of kernels a column for all clients at once, where
    `torch.linalg.qr` on a GPU takes the matrices one by one: half a second a round with a hundred clients.
    """
    basis = torch.zeros_like(columns)
    for j in range(columns.shape[2]):
        column = columns[:, :, j : j + 1]
        whole = column.norm(dim=1, keepdim=True)
        for _ in range(2):
            column = column - basis @ (basis.mT @ column)
        length = column.norm(dim=1, keepdim=True)
        independent = length > 1e-14 * whole
        basis[:, :, j : j + 1] = torch.where(independent, column / torch.where(independent, length, 1.0), 0.0)
    return basis


def _lp_proj(codec: LpProj, gradients: Tensor, keys: list[Key]) -> Tensor:
    matrix = _lp_matrix(codec.size, gradients.shape[1], gradients.device)
    return (gradients @ matrix.T) @ matrix


@cache
def _lp_matrix(size: int, d: int, device: torch.device) -> Tensor:
    rows = [torch.tensor(part) for _, part in matrix_rows(size, d)]
    return torch.cat(rows).to(device)


_DECODED: dict[type[Codec], Callable[..., Tensor]] = {
    FedSGD: _fedsgd,
    Laplace: _laplace,
    Gaussian: _gaussian,
    QSGD: _qsgd,
    TopK: _topk,
    EDEN: _eden,
    SAFedLora: _sa_fedlora,
    SignSGD: _signsgd,
    LpProj: _lp_proj,
}
