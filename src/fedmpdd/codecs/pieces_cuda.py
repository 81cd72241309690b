"""`pieces` for tensors on a GPU: the same cutting, the GPU's kernels, the same bits."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import mpdd_cuda
from fedmpdd.codecs._cutting import CHUNK, gather, scatter
from fedmpdd.codecs.mpdd import MPDD
from fedmpdd.directions import Key, cuda, hadamard_size


def flat_tensor(piece: Tensor, name: str) -> Tensor:
    """Return a piece as a flat tensor, or raise GradientError."""
    cuda.check_tensor(piece, name)
    return piece.reshape(-1)


def project(
    codec: MPDD, pieces: Iterable[Tensor], key: Key, d: int, device: torch.device
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Scalars [1, m] and moments [1, 2] of a gradient that comes as flat pieces."""
    keys = mpdd_cuda.keys_on(device, codec, [key], d).there
    if codec.family == "hadamard":
        buffer = torch.empty(hadamard_size(d), device=device)
        first = 0
        for piece in pieces:
            buffer[first : first + len(piece)] = piece
            first += len(piece)
        moments = cuda.moments(buffer[None, :d])
        scalars = cuda.hadamard_encode_in_place(buffer, d, keys, codec.m)
        return scalars.cpu().numpy(), moments.cpu().numpy()
    sums = cuda.RademacherSums(keys, codec.m)
    moments = torch.zeros((1, 2), dtype=torch.float64, device=device)
    for chunk in gather(pieces, torch.empty(min(d, CHUNK), device=device)):
        sums.add(chunk[None])
        moments += cuda.moments(chunk[None])
        del chunk
    return sums.scalars.cpu().numpy(), moments.cpu().numpy()


def estimate(
    codec: MPDD,
    scalars: NDArray[Any],
    factors: NDArray[np.float64],
    keys: list[Key],
    sizes: list[int],
    d: int,
    device: str,
) -> Iterator[Tensor]:
    """The estimate as flat tensors of these sizes, given what MPDD._scalars returns."""
    if codec.family == "hadamard":
        yield from torch.split(mpdd_cuda.decode_from_host(codec, scalars, factors, keys, d, device), sizes)
        return
    place = torch.empty(0, device=device).device
    values, multipliers = mpdd_cuda.upload(codec, scalars, factors, place)
    own = mpdd_cuda.keys_on(place, codec, keys, d)

    def fill(out: Tensor, first_tile: int) -> None:
        out.zero_()
        mpdd_cuda.add_up(codec, values, multipliers, own, out, first_tile)

    yield from scatter(sizes, d, lambda size: torch.empty(size, device=place), fill)
