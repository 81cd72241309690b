"""The directions on a GPU: the same stream and the same decoded bits, for tensors that live there.

In this room only this file, its kernels and their layouts know PyTorch and Triton. Nothing is checked here that
`families` checks; nothing is copied to the host.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpdd.directions.keys import Key, first_directions
from fedmpdd.directions.reference import outer_matrix
from fedmpdd.directions.spec import (
    FEISTEL_ROUNDS,
    FEISTEL_ROUNDS_SMALL,
    FEISTEL_SMALL,
    QUAD,
    TILE,
    TILE_BLOCKS,
    hadamard_order,
)
from fedmpdd.errors import BackendError, GradientError

try:
    from fedmpdd.directions import cuda_kernels as kernels
    from fedmpdd.directions.cuda_layouts import far_layouts, near_layouts
except ImportError as error:  # no Triton, or one without Gluon
    raise BackendError(
        f"gradients on a GPU need Triton 3.6 or later, which comes with PyTorch's CUDA builds from 2.11 on: {error}; "
        "install one of them, or move the gradients to the CPU"
    ) from None

RUN_TILES = 16  # encoders add up totals of runs of so many tiles
CHUNK_COORDINATES = 2**25  # of all clients together, whose tables (16 floats for four) exist at a time
SPLIT_RUNS = 1024  # with fewer programs than this, four blocks become a program each
MANY_BLOCKS = 2**15  # with fewer Philox blocks than this, decoding spreads them over more threads
TRANSFORM_BYTES = 2**31  # buffers of the clients that are transformed together stay below, one client at least
MAX_GRID = 65_535  # in the second and third dimension


class DeviceKeys(NamedTuple):
    """The keys of some updates, as the kernels read them: int64 [clients] each, on the device."""

    seeds: Tensor
    firsts: Tensor
    slots: Tensor

    def part(self, which: slice) -> "DeviceKeys":
        """The keys of some of the clients."""
        return DeviceKeys(self.seeds[which], self.firsts[which], self.slots[which])


def keys_on(device: torch.device, keys: Sequence[Key], m: int, *, modulo: int = 2**63) -> DeviceKeys:
    """Copy keys to the device; `modulo` is the number of directions after which they repeat."""
    seeds, _ = first_directions(keys, m)
    rows = np.empty((3, len(keys)), dtype=np.int64)
    rows[0] = seeds.view(np.int64)
    rows[1] = [key.slot * m % modulo for key in keys]  # up to 64 bits before the remainder
    rows[2] = [key.slot for key in keys]
    return DeviceKeys(*torch.from_numpy(rows).to(device).unbind())


def rounding_words(keys: DeviceKeys, m: int) -> Tensor:
    """Random words [clients, m] of 32 bits, as int64."""
    clients, blocks = len(keys.seeds), -(-m // 4)
    words = torch.empty((clients, blocks * 4), dtype=torch.int64, device=keys.seeds.device)
    for part in _parts(clients):
        part_keys = keys.part(part)
        kernels.rounding_words_kernel[(-(-blocks // 128), len(part_keys.seeds))](
            words[part], part_keys.seeds, part_keys.slots, blocks, BLOCK=128, num_warps=4
        )
    return words[:, :m]


def moments(gradients: Tensor) -> Tensor:
    """[‖g‖², Σ g⁴] per gradient, float64 [clients, 2]; not finite exactly where a gradient is not."""
    clients, d = gradients.shape
    span = 65_536
    parts = -(-d // span)
    partials = torch.empty((clients, parts, 2), dtype=torch.float64, device=gradients.device)
    for part in _parts(clients):
        rows = gradients[part]
        kernels.moments_kernel[(parts, len(rows))](
            rows, partials[part], rows.stride(0), d, parts, SPAN=span, WARPS=4, num_warps=4
        )
    return partials.sum(dim=1)


# ----------------------------------------------------------------------------------------------------- rademacher


class RademacherSums:
    """Directional derivatives of gradients that come in pieces: float64 sums [clients, m] so far.

    Every piece but the last must be a whole number of runs of 16 tiles; the bits are then those of one piece.
    """

    def __init__(self, keys: DeviceKeys, m: int) -> None:
        clients, device = len(keys.seeds), keys.seeds.device
        self._keys = keys
        self._m = m
        self._tile = 0
        self._sums = torch.zeros((clients, m), dtype=torch.float64, device=device)
        self.scalars = torch.zeros((clients, m), dtype=torch.float32, device=device)

    def add(self, gradients: Tensor) -> None:
        """Go on with coordinates [clients, n] that follow those so far."""
        clients, n = gradients.shape
        for clients_part, start, stop in _chunks(clients, n):
            self._add(gradients[clients_part, start:stop], clients_part, self._tile + start // TILE)
        self._tile += -(-n // TILE)

    def _add(self, gradients: Tensor, which: slice, first_tile: int) -> None:
        clients, n = gradients.shape
        m, device = self._m, gradients.device
        tiles = -(-n // TILE)
        tables = torch.empty((clients, tiles, 8192), dtype=torch.float32, device=device)
        kernels.coordinate_tables_kernel[(tiles, clients)](
            gradients, tables, gradients.stride(0), n, tiles, num_warps=4
        )
        runs = -(-tiles // RUN_TILES)
        split = -(-m // 32) * runs * clients < SPLIT_RUNS
        per_thread = 1 if split or m <= 32 else 2  # directions
        wide = -(-m // (32 * per_thread))
        groups_per_part = 1 if split else 4 * RUN_TILES
        parts = 4 * tiles if split else runs
        dtype = torch.float32 if split else torch.float64
        partials = torch.empty((clients, parts, m), dtype=dtype, device=device)
        keys = self._keys.part(which)
        kernels.rademacher_encode_kernel[(wide, parts, clients)](
            tables, keys.seeds, keys.firsts, partials, first_tile * TILE_BLOCKS, tiles, parts, m,
            GROUPS=groups_per_part, PER_THREAD=per_thread, WARPS=1, num_warps=1,
        )  # fmt: skip
        kernels.add_in_order_kernel[(-(-m // 128), clients)](
            partials, self._sums[which], self.scalars[which], parts, m,
            GROUPS=4 * RUN_TILES if split else 1, BLOCK=128, num_warps=4,
        )  # fmt: skip


def rademacher_encode(gradients: Tensor, keys: DeviceKeys, m: int) -> Tensor:
    """Scalars [clients, m] of gradients [clients, d]: the bits of the CPU kernels."""
    sums = RademacherSums(keys, m)
    sums.add(gradients)
    return sums.scalars


def rademacher_decode(
    scalars: Tensor, factors: Tensor, keys: DeviceKeys, out: Tensor, *, votes: bool = False, first_tile: int = 0
) -> None:
    """out += Σ over clients of factor (float64 [clients]) times scalars times directions, from a tile on.

    votes: scalars are ±1 and are counted as integers, one multiplication by the factor per client.
    """
    clients, m = scalars.shape
    n = out.numel()
    quads = -(-m // (4 * QUAD)) * 4
    # Tables are an eighth of what the kernel's 32-bit line numbers reach, and are made for some clients at a time.
    for part in _parts(clients, max(1, 2**24 // quads)):
        part_keys = keys.part(part)
        count = len(part_keys.seeds)
        tables = torch.empty((count, quads, 16), dtype=torch.int32 if votes else torch.float32, device=out.device)
        kernels.coefficient_tables_kernel[(-(-quads // 32), count)](
            scalars[part], factors[part], tables, m, quads, VOTES=votes, QUADS=32, num_warps=1
        )
        blocks = -(-n // TILE) * TILE_BLOCKS
        shape = _decode_shape(blocks)
        kernels.rademacher_decode_kernel[(-(-blocks // shape.blocks),)](
            tables, factors[part], part_keys.seeds, part_keys.firsts, out, first_tile * TILE_BLOCKS, n, quads, count,
            VOTES=votes, BLOCKS=shape.blocks, QUADS=shape.quads, NIBBLES=shape.nibbles, WARPS=shape.warps,
            num_warps=shape.warps, enable_fp_fusion=False,
        )  # fmt: skip


class _DecodeShape(NamedTuple):
    """How a decoding program is laid out: its Philox blocks, directions per step, coordinates per thread."""

    blocks: int
    quads: int
    nibbles: int
    warps: int


def _decode_shape(blocks: int) -> _DecodeShape:
    """The best of a dozen on an H200, for small and for large models."""
    return _DecodeShape(4, 32, 8, 2) if blocks >= MANY_BLOCKS else _DecodeShape(2, 32, 4, 2)


# ------------------------------------------------------------------------------------------------------- hadamard


class _Matrix(NamedTuple):
    """A Hadamard matrix: order outer · 2^log2."""

    outer: int
    log2: int

    @property
    def size(self) -> int:
        return self.outer << self.log2

    @property
    def right_log2(self) -> int:
        """Bits of the right half of the row permutation."""
        return ((self.size & -self.size).bit_length() - 1) // 2

    @property
    def rounds(self) -> int:
        return FEISTEL_ROUNDS_SMALL if self.size < FEISTEL_SMALL else FEISTEL_ROUNDS


def hadamard_keys(device: torch.device, keys: Sequence[Key], m: int, d: int) -> DeviceKeys:
    """Copy keys to the device for directions that repeat after the order of the matrix."""
    return keys_on(device, keys, m, modulo=_Matrix(*hadamard_order(d)).size)


def hadamard_encode(gradients: Tensor, keys: DeviceKeys, m: int) -> Tensor:
    """Scalars [clients, m] of gradients [clients, d]: the bits of the CPU kernels."""
    clients, d = gradients.shape
    matrix = _Matrix(*hadamard_order(d))
    scalars = torch.empty((clients, m), dtype=torch.float32, device=gradients.device)
    for part in _parts(clients, max(1, TRANSFORM_BYTES // (4 * matrix.size))):
        part_keys = keys.part(part)
        buffer = torch.empty((len(part_keys.seeds), matrix.size), dtype=torch.float32, device=gradients.device)
        _encode_rows(gradients[part], buffer, part_keys, matrix, m, scalars[part])
    return scalars


def hadamard_encode_in_place(buffer: Tensor, d: int, keys: DeviceKeys, m: int) -> Tensor:
    """Scalars [1, m] of the gradient in the first d of hadamard_size(d) floats, which are overwritten."""
    scalars = torch.empty((1, m), dtype=torch.float32, device=buffer.device)
    _encode_rows(buffer[None, :d], buffer[None], keys, _Matrix(*hadamard_order(d)), m, scalars)
    return scalars


def _encode_rows(gradients: Tensor, buffer: Tensor, keys: DeviceKeys, matrix: _Matrix, m: int, scalars: Tensor) -> None:
    clients, d = gradients.shape
    kernels.diagonal_kernel[(-(-matrix.size // TILE), clients)](
        gradients, buffer, keys.seeds, gradients.stride(0), d, matrix.size, num_warps=4
    )
    _transform(buffer, matrix)
    kernels.gather_rows_kernel[(-(-m // 128), clients)](
        buffer, scalars, keys.seeds, keys.firsts, _outer_signs(matrix.outer, buffer.device),
        m, matrix.size, matrix.right_log2, matrix.log2,
        OUTER=matrix.outer, ROUNDS=matrix.rounds, BLOCK=128, num_warps=4,
    )  # fmt: skip


def hadamard_decode(
    scalars: Tensor, factors: Tensor, keys: Sequence[Key], device_keys: DeviceKeys, out: Tensor
) -> None:
    """out += Σ over clients of factor times scalars times directions; clients of one seed share a transform."""
    clients, m = scalars.shape
    matrix = _Matrix(*hadamard_order(out.numel()))
    groups: dict[int, int] = {}
    numbers = [groups.setdefault(key.seed, len(groups)) for key in keys]
    members: list[list[int]] = [[] for _ in groups]
    for update, group in enumerate(numbers):
        members[group].append(update)
    for part in _parts(len(groups), max(1, TRANSFORM_BYTES // (4 * matrix.size))):
        chosen = sorted(update for group in members[part] for update in group)
        whole = len(chosen) == clients
        which = slice(None) if whole else torch.tensor(chosen, device=out.device)
        _add_groups(
            scalars[which],
            factors[which],
            DeviceKeys(*(column[which] for column in device_keys)),
            [keys[update] for update in chosen],
            [numbers[update] - part.start for update in chosen],
            matrix,
            m,
            out,
        )


def _add_groups(
    scalars: Tensor,
    factors: Tensor,
    device_keys: DeviceKeys,
    keys: list[Key],
    numbers: list[int],
    matrix: _Matrix,
    m: int,
    out: Tensor,
) -> None:
    device, count = out.device, max(numbers) + 1
    d, size = out.numel(), matrix.size
    buffer = torch.zeros((count, size), dtype=torch.float32, device=device)
    # One copy for two lists: the group of every update, and the first update of every group.
    firsts = {number: update for update, number in reversed(list(enumerate(numbers)))}
    lists = torch.tensor(numbers + [firsts[number] for number in range(count)]).to(device)
    group_of, first_of_group = lists[: len(numbers)], lists[len(numbers) :]
    places = [(number, key.slot * m % size) for number, key in zip(numbers, keys, strict=True)]
    for start, stop in stretches(places, m, size):
        kernels.scatter_rows_kernel[(-(-m // 128), stop - start)](
            buffer, scalars, factors, device_keys.seeds, device_keys.firsts, group_of,
            m, size, matrix.right_log2, start, ROUNDS=matrix.rounds, BLOCK=128, num_warps=4,
        )  # fmt: skip
    if matrix.outer > 1:
        kernels.outer_transpose_kernel[(-(-(1 << matrix.log2) // 128), count)](
            buffer, size, matrix.log2, MINUS=_minus_rows(matrix.outer), BLOCK=128, num_warps=4
        )
    _transform(buffer, matrix)
    kernels.add_diagonal_kernel[(-(-d // TILE),)](
        buffer, out, device_keys.seeds[first_of_group], d, size, count, WARPS=8, num_warps=8
    )


def stretches(updates: Sequence[tuple[int, int]], m: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut updates (group, first direction) into stretches in which no two of one group share a row.

    Within a stretch rows are added to in any order, and stretches follow each other: so additions to one row stay in
    order. Different directions below `size` have different rows, hence intervals of m directions decide.
    """
    start = 0
    taken: dict[int, list[int]] = {}  # first directions of the stretch so far, sorted
    for update, (group, first) in enumerate(updates):
        others = taken.setdefault(group, [])
        position = bisect_left(others, first)
        neighbours = (others[position - 1], others[position % len(others)]) if others else ()
        meets = any((first - other) % size < m or (other - first) % size < m for other in neighbours)
        if meets or update - start == MAX_GRID:
            yield start, update
            start, position = update, 0
            taken = {group: []}
        taken[group].insert(position, first)
    yield start, len(updates)


def transform_passes(log2: int) -> tuple[int, list[int]]:
    """Bits of the transform done on neighbouring values, and then by each of the passes over the whole buffer."""
    if log2 <= 12:
        return log2, []
    passes = -(-(log2 - 12) // 7)
    bits = max(5, -(-(log2 - 12) // passes))
    return log2 - passes * bits, [bits] * passes


def _transform(buffer: Tensor, matrix: _Matrix) -> None:
    """Butterflies of strides 1, 2, 4 … inside every run of 2^log2 values, in place."""
    total = buffer.numel()
    near, far = transform_passes(matrix.log2)
    start, middle, end = near_layouts()
    kernels.near_butterflies_kernel[(-(-total // 4096),)](
        buffer, total, BITS=near, START=start, MIDDLE=middle, END=end, num_warps=4
    )
    stride = near
    for bits in far:
        start, end = far_layouts(bits)
        kernels.far_butterflies_kernel[(total // 4096,)](buffer, stride, BITS=bits, START=start, END=end, num_warps=4)
        stride += bits


@cache
def _minus_rows(outer: int) -> tuple[int, ...]:
    """Rows of the outer matrix as numbers, a bit set meaning −1."""
    return tuple(sum(1 << a for a, sign in enumerate(row) if sign < 0) for row in outer_matrix(outer))


@cache
def _outer_signs(outer: int, device: torch.device) -> Tensor:
    return torch.tensor(_minus_rows(outer), dtype=torch.int32, device=device)


# ---------------------------------------------------------------------------------------------------------- pieces


def _parts(count: int, most: int = MAX_GRID) -> Iterator[slice]:
    for start in range(0, count, min(most, MAX_GRID)):
        yield slice(start, min(start + min(most, MAX_GRID), count))


def _chunks(clients: int, n: int) -> Iterator[tuple[slice, int, int]]:
    """Cut gradients into clients and coordinates, so that tables of a chunk stay small; clients before coordinates."""
    run = RUN_TILES * TILE
    coordinates = min(-(-n // run) * run, CHUNK_COORDINATES)
    for part in _parts(clients, max(1, CHUNK_COORDINATES // coordinates)):
        for start in range(0, n, coordinates):
            yield part, start, min(start + coordinates, n)


def check_gradients(gradients: Tensor) -> None:
    """Raise GradientError unless `gradients` is a contiguous float32 tensor [clients, d] on a GPU."""
    if gradients.ndim != 2 or 0 in gradients.shape:
        raise GradientError(
            f"gradients have shape [clients, d], neither of them 0, got {list(gradients.shape)}; "
            "one gradient goes in as gradient[None]"
        )
    check_tensor(gradients, "gradients")


def check_tensor(tensor: Tensor, name: str) -> None:
    """Raise GradientError unless `tensor` is a contiguous float32 tensor on a GPU, of any shape."""
    if not isinstance(tensor, Tensor) or not tensor.is_cuda:
        what = f"a tensor on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise GradientError(f"{name}: expected a tensor on a GPU like those before, got {what}; move it with .cuda()")
    if tensor.dtype != torch.float32:
        raise GradientError(f"{name}: expected float32, got {tensor.dtype}; convert with .float()")
    if tensor.requires_grad:
        raise GradientError(f"{name}: requires a gradient itself; pass {name}.detach()")
    if not tensor.is_contiguous():
        raise GradientError(f"{name}: not contiguous in memory; pass {name}.contiguous()")
