"""Peaks of gradients that live on a GPU: found there, and decoded there to the CPU's bits."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import mpdd_cuda
from fedmpdd.codecs.base import Update
from fedmpdd.codecs.peaks import Found, Peaks, scales_of
from fedmpdd.directions import Key, cuda


def find(codec: Peaks, gradients: Tensor, keys: list[Key]) -> Found:
    """The peaks of gradients [clients, d]; scales are the CPU's up to the order of a float64 sum."""
    projection = codec.projection
    there = mpdd_cuda.keys_on(gradients.device, projection, keys, gradients.shape[1])
    scalars = mpdd_cuda.project(projection, gradients, there).view(len(keys), codec.m, codec.group)
    sizes = scalars.abs()
    highest = sizes.amax(dim=2)
    # argmax may return any of several equal ones here; the CPU's is the first.
    order = torch.arange(codec.group, device=scalars.device)
    places = torch.where(sizes == highest[:, :, None], order, codec.group).amin(dim=2)
    if not bool(torch.isfinite(highest).all()) or bool((places == codec.group).any()):
        mpdd_cuda.refuse(gradients)
    negative = scalars.gather(2, places[:, :, None])[:, :, 0] < 0
    numbers = (places + codec.group * negative).cpu().numpy().astype(np.uint32)
    squares = cuda.moments(gradients)[:, 0].cpu().numpy()
    return Found(numbers, scales_of(squares, highest.double().mean(dim=1).cpu().numpy()))


def decode(codec: Peaks, updates: Sequence[Update], factors: NDArray[np.float64], d: int, device: str) -> Tensor:
    """The estimate [d], given the factors of `Peaks._factors`."""
    out = torch.zeros(d, device=device)
    found = [codec.peaks_of(update) for update in updates]
    places = torch.from_numpy(np.stack([each[0] for each in found])).to(out.device)
    signs = torch.from_numpy(np.stack([each[1] for each in found])).to(out.device)
    scalars = torch.zeros(len(updates), codec.projection.m, device=out.device).scatter_(1, places, signs)
    keys = mpdd_cuda.keys_on(out.device, codec.projection, [update.key for update in updates], d)
    mpdd_cuda.add_up(codec.projection, scalars, torch.from_numpy(factors).to(out.device), keys, out)
    return out
