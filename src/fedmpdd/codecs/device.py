"""Codecs on a GPU: the operations of `Backend` in PyTorch, with the kernels of `directions.cuda`.

Tensors on the CPU are served too, by the C++ kernels: so that what is written here can be tested without a GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmpdd.codecs.backends import HOST, ORDER_ERROR, Backend, describe_not_finite
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError

_DTYPES = {
    "<f8": torch.float64, "<f4": torch.float32, "<i8": torch.int64, "<u4": torch.int64, "<i4": torch.int32,
    "<i2": torch.int16, "<i1": torch.int8, "|u1": torch.uint8,
}  # fmt: skip


class DeviceBackend(Backend):
    """PyTorch; one object serves one call, and keeps what is to be looked at when the call is done."""

    xp = torch

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._doubts: list[Tensor] = []  # [clients] each
        self._requirements: list[tuple[Tensor, str]] = []

    def settle(self, gradients: Tensor) -> list[int]:
        """Raise what was required and does not hold; return the clients whose bits are in doubt. One look at the GPU.

        gradients: to say which coordinate is to blame.
        """
        looks = [holds.all() for holds, _ in self._requirements]
        doubt = None
        for some in self._doubts:
            doubt = some if doubt is None else doubt | some
        if doubt is not None:
            looks.append(doubt.any())
        seen = torch.stack(looks).tolist() if looks else []
        for holds, (_, message) in zip(seen, self._requirements, strict=False):
            if not holds:
                if not bool(torch.isfinite(gradients).all()):
                    raise describe_not_finite(gradients.cpu())
                raise CodecError(message)
        return [] if doubt is None or not seen[-1] else torch.nonzero(doubt)[:, 0].tolist()

    def require(self, holds: Tensor, message: str) -> None:
        self._requirements.append((holds, message))

    def check_finite(self, gradients: Tensor) -> None:
        self.require(torch.isfinite(gradients.sum(dim=1)) | torch.isfinite(gradients).all(dim=1), "")

    def settled(self, compute: Callable[[float], Tensor]) -> Tensor:
        low, high = compute(1 - ORDER_ERROR), compute(1 + ORDER_ERROR)
        self._doubts.append((low != high).reshape(len(low), -1).any(dim=1))
        return high

    def rounded(self, values: Tensor) -> Tensor:
        """See Backend: both bounds at once, since launches take longer than the arithmetic."""
        both = (values * _bounds(self.device, ORDER_ERROR)).float()
        self._doubts.append(both[0] != both[1])
        return both[1]

    def like(self, values: Any) -> Tensor:
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()  # PyTorch has no tensors that may not be written to
        return torch.as_tensor(values).to(self.device)

    def host(self, values: Tensor) -> Any:
        return values.cpu().numpy()

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(shape, dtype=_DTYPES[dtype], device=self.device)

    def arange(self, count: int, like: Tensor) -> Tensor:
        return torch.arange(count, dtype=like.dtype, device=like.device)

    def rows_at_once(self, size: int) -> int:
        return max(1, (1 << 28) // size)

    def cast(self, values: Tensor, dtype: str) -> Tensor:
        return values.to(_DTYPES[dtype])

    def copy(self, values: Tensor) -> Tensor:
        return values.clone()

    def equal_factors(self, count: int) -> Tensor:
        return _equal_factors(self.device, count)

    def next_above(self, values: Tensor) -> Tensor:
        return torch.nextafter(values, torch.full_like(values, torch.inf))

    def first_largest(self, values: Tensor) -> Tensor:
        """See Backend: `argmax` may return any of several equal ones on a GPU."""
        count = values.shape[-1]
        order = torch.arange(count, device=values.device)
        places = torch.where(values == values.amax(dim=-1, keepdim=True), order, count).amin(dim=-1)
        return places.clamp_max(count - 1)  # where all are NaN, which `require` refuses

    def take(self, values: Tensor, places: Tensor) -> Tensor:
        return values.gather(-1, places)

    def put(self, out: Tensor, places: Tensor, values: Tensor) -> None:
        out.scatter_(-1, places, values)

    def largest_places(self, values: Tensor, k: int) -> Tensor:
        values = values.nan_to_num(nan=torch.inf, posinf=torch.inf)  # which the caller refuses when all is done
        smallest = values.topk(k, dim=1).values[:, -1:]
        above, ties = values > smallest, values == smallest
        chosen = above | (ties & (ties.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
        return torch.nonzero(chosen)[:, 1].reshape(len(values), k)

    def search(self, thresholds: Tensor, values: Tensor) -> Tensor:
        return torch.bucketize(values, thresholds, right=True)

    def mean(self, values: Tensor, of: Callable[[Tensor], Tensor] = lambda row: row) -> Tensor:
        return of(values).mean(dim=1, dtype=torch.float64)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """See Backend: matrix units would round inputs to ten bits where a config allows that for its network."""
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            return left @ right
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def pack_bits(self, ones: Tensor) -> Tensor:
        padded = ones.to(torch.uint8)
        if ones.shape[1] % 8:
            padded = torch.nn.functional.pad(padded, (0, -ones.shape[1] % 8))
        return (padded.view(len(ones), -1, 8) << _bit_numbers(ones.device)).sum(dim=2, dtype=torch.uint8)

    def unpack_bits(self, packed: Tensor, count: int) -> Tensor:
        bits = packed[:, :, None] >> _bit_numbers(packed.device) & 1
        return bits.reshape(len(packed), -1)[:, :count]

    def stacked(self, rows: Any) -> Tensor:
        return rows if isinstance(rows, Tensor) else torch.stack(list(rows))

    def chunks(self, d: int) -> Iterator[slice]:
        """See Backend: all at once."""
        return iter((slice(0, d),))

    def moments(self, gradients: Tensor) -> Tensor:
        """See Backend; not finite exactly where a gradient is not, and up to the order of sums."""
        if not self._on_gpu:
            return torch.from_numpy(HOST.moments(gradients.numpy()))
        from fedmpdd.directions import cuda

        sums = cuda.moments(gradients)
        self.require(torch.isfinite(sums[:, 0]), "a gradient is not finite")
        return sums

    def rounding_words(self, keys: Sequence[Key], count: int) -> Tensor:
        if not self._on_gpu:
            return torch.from_numpy(HOST.rounding_words(keys, count).astype(np.int64))
        from fedmpdd.directions import cuda

        return cuda.rounding_words(_rademacher_keys(self.device, tuple(keys), count), count)

    def project(self, family: str, gradients: Tensor, keys: Sequence[Key], m: int) -> Tensor:
        if not self._on_gpu:
            return torch.from_numpy(HOST.project(family, gradients.numpy(), keys, m))
        from fedmpdd.directions import cuda

        if family == "hadamard":
            return cuda.hadamard_encode(gradients, _hadamard_keys(self.device, tuple(keys), m, gradients.shape[1]), m)
        return cuda.rademacher_encode(gradients, _rademacher_keys(self.device, tuple(keys), m), m)

    def combine(self, family: str, scalars: Tensor, factors: Tensor, keys: Sequence[Key], d: int) -> Tensor:
        return self._combine(family, scalars, factors, keys, d, votes=False)

    def combine_signs(
        self, family: str, negative: Tensor, factors: Tensor, keys: Sequence[Key], m: int, d: int
    ) -> Tensor:
        signs = _signs_of_bytes(self.device)[negative.int()].view(len(negative), -1)[:, :m]
        return self._combine(family, signs, factors, keys, d, votes=family == "rademacher")

    def _combine(
        self, family: str, scalars: Tensor, factors: Tensor, keys: Sequence[Key], d: int, *, votes: bool
    ) -> Tensor:
        scalars, multipliers = scalars.float().contiguous(), self.like(factors)
        if not self._on_gpu:
            if votes:
                packed = np.packbits(scalars.numpy() < 0, axis=1, bitorder="little")
                m = scalars.shape[1]
                return torch.from_numpy(HOST.combine_signs(family, packed, multipliers.numpy(), keys, m, d))
            return torch.from_numpy(HOST.combine(family, scalars.numpy(), multipliers.numpy(), keys, d))
        from fedmpdd.directions import cuda

        out = torch.zeros(d, device=self.device)
        m = scalars.shape[1]
        if family == "hadamard":
            there = _hadamard_keys(self.device, tuple(keys), m, d)
            cuda.hadamard_decode(scalars, multipliers, keys, there, out)
        else:
            there = _rademacher_keys(self.device, tuple(keys), m)
            cuda.rademacher_decode(scalars, multipliers, there, out, votes=votes)
        return out

    def weighted_sum(self, d: int, factors: Tensor, values: Callable[[int, slice], Tensor]) -> Tensor:
        """See Backend: one product and one sum a client, which PyTorch does not fuse."""
        total = torch.zeros(d, dtype=torch.float64, device=self.device)
        for i, factor in enumerate(factors.tolist()):
            total += values(i, slice(0, d)).double().mul_(factor)
        return total.float()


# Copies to a GPU that would be made anew in every round.
@lru_cache(maxsize=8)
def _equal_factors(device: torch.device, count: int) -> Tensor:
    return torch.from_numpy(HOST.equal_factors(count)).to(device)


@lru_cache(maxsize=8)
def _bounds(device: torch.device, error: float) -> Tensor:
    return torch.tensor([[1 - error], [1 + error]], dtype=torch.float64, device=device)


@lru_cache(maxsize=8)
def _bit_numbers(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


@lru_cache(maxsize=8)
def _signs_of_bytes(device: torch.device) -> Tensor:
    """The eight signs [256, 8] that a byte stands for."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(1 - 2 * bits.astype(np.float32)).to(device)


# Keys are needed more than once a round: to project, to round and to decode.
@lru_cache(maxsize=8)
def _rademacher_keys(device: torch.device, keys: tuple[Key, ...], m: int) -> Any:
    from fedmpdd.directions import cuda

    return cuda.keys_on(device, keys, m)


@lru_cache(maxsize=8)
def _hadamard_keys(device: torch.device, keys: tuple[Key, ...], m: int, d: int) -> Any:
    from fedmpdd.directions import cuda

    return cuda.hadamard_keys(device, keys, m, d)
