"""`python -m benchmarks codec --device cuda`: the same codec on a GPU.

Times are medians of device events: how long the GPU works, launches queued before. What a call takes on the clock,
checks and launches and the copy of the keys included, stands beside it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from benchmarks.codec import Case, Row
from fedmpdd.codecs import MPDD
from fedmpdd.codecs.device import DeviceBackend
from fedmpdd.directions import cuda, partitioned_keys
from fedmpdd.directions.spec import hadamard_order

CASES = (
    Case("encode", MPDD(1000), 11_689_512, goal_ms=1.2, rivals=True),
    Case("decode", MPDD(1000), 11_689_512, goal_ms=1.5),
    Case("encode", MPDD(600), 319_242, clients=100, goal_ms=4.0),
    Case("decode", MPDD(600), 319_242, clients=100, goal_ms=4.0),
    Case("encode", MPDD(600, bits=1), 319_242, clients=100),
    Case("decode", MPDD(600, bits=1), 319_242, clients=100),
    Case("encode", MPDD(600, family="hadamard"), 319_242, clients=100),
    Case("decode", MPDD(600, family="hadamard"), 319_242, clients=100),
    Case("encode", MPDD(400), 13_426, goal_ms=0.03, rivals=True),
    Case("decode", MPDD(400), 13_426),
    Case("decode", MPDD(400), 13_426, clients=50),
    Case("encode", MPDD(400, family="hadamard"), 13_426),
    Case("decode", MPDD(400, family="hadamard"), 13_426, clients=50),
    Case("encode", MPDD(2**20, family="hadamard"), 1_100_000_000),
    Case("decode", MPDD(2**20, family="hadamard"), 1_100_000_000),
    Case("encode", MPDD(16), 1_100_000_000),
    Case("decode", MPDD(16), 1_100_000_000),
)
_HEAD_START = 2_000_000  # GPU cycles: about a millisecond in which the calls that are timed can be queued


def device_ms(call: Callable[[], object], seconds: float) -> float:
    """Median of the time between two device events around a call, after a few to warm up."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        # PyTorch has no public way to keep a GPU busy for a while, and without one launches would be timed.
        torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        call()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return median(times)


def wall_ms(call: Callable[[], object], seconds: float) -> float:
    """Median of the time of a call until its result is there."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def run(cases: tuple[Case, ...] = CASES, *, seconds: float = 0.5) -> Iterator[Row]:
    """Measure the cases that fit the GPU's memory one after the other, each followed by its rivals."""
    name = torch.cuda.get_device_name()
    memory = torch.cuda.get_device_properties(0).total_memory
    for case in cases:
        codec = case.codec
        if 20 * case.d * case.clients > memory:  # gradient, buffers and a result
            continue
        gradients = torch.randn((case.clients, case.d), device="cuda")
        keys = partitioned_keys(1, case.clients)
        row = Row(case.op, codec.family, codec.bits, case.d, codec.m, case.clients, "", 0, name, 0.0)
        kernels, public = _calls(case, gradients, keys)
        goal = case.goal_ms
        if codec.family == "hadamard" and case.op == "encode" and case.d > 10**9:
            goal = 3 * passes(case.d) * _copy_ms(gradients, seconds)
        yield replace(
            row,
            impl="fedmpdd",
            median_ms=device_ms(kernels, seconds),
            wall_ms=wall_ms(public, seconds),
            goal_ms=goal,
        )
        if case.rivals:
            for rival, call in _rivals(gradients[0], codec.m):
                yield replace(row, impl=rival, median_ms=device_ms(call, seconds), wall_ms=wall_ms(call, seconds))
        if case.d > 10**9 and case.op == "encode" and codec.family == "hadamard":
            yield replace(row, impl="one copy of the gradient", median_ms=_copy_ms(gradients, seconds))
        del gradients, kernels, public
        torch.cuda.empty_cache()


def passes(d: int) -> int:
    """How often a hadamard encode reads and writes its buffer: once for the diagonal, then the transform."""
    return 2 + len(cuda.transform_passes(hadamard_order(d)[1])[1])


def _copy_ms(gradients: torch.Tensor, seconds: float) -> float:
    copy = torch.empty_like(gradients)
    return device_ms(lambda: copy.copy_(gradients), seconds)


def _calls(case: Case, gradients: torch.Tensor, keys: list[Any]) -> tuple[Callable[[], object], Callable[[], object]]:
    """The kernels alone, keys on the device; and the whole step as the engine takes it."""
    codec, device = case.codec, gradients.device
    backend = DeviceBackend(device)
    if case.op == "encode":
        return (
            lambda: backend.project(codec.family, gradients, keys, codec.m),
            lambda: codec.encode_batch(gradients, keys),
        )
    batch = codec.encode_batch(gradients, keys)
    factors = torch.full((len(keys),), 1 / len(keys), dtype=torch.float64, device=device)
    return (
        lambda: codec._decode_sum(backend, batch.columns, keys, factors, case.d),
        lambda: batch.decode(),
    )


def _rivals(gradient: torch.Tensor, m: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Signs from PyTorch's generator, some directions at a time, and a matrix product."""
    d, chunk = gradient.numel(), max(1, min(m, 2**28 // gradient.numel()))

    def chunked() -> list[torch.Tensor]:
        return [
            (torch.randint(0, 2, (min(chunk, m - first), d), device="cuda", dtype=torch.int8).float() * 2 - 1)
            @ gradient
            for first in range(0, m, chunk)
        ]

    def in_place() -> list[torch.Tensor]:
        signs = torch.empty((chunk, d), device="cuda")
        return [signs[: m - first].bernoulli_().mul_(2).sub_(1) @ gradient for first in range(0, m, chunk)]

    yield "torch-chunked", chunked
    yield "torch-inplace", in_place
