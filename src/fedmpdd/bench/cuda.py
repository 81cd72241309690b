"""`fedmpdd bench codec --device cuda` and `bench rounds --device cuda`: the same codec on a GPU.

Times are medians of device events: how long the GPU works, launches queued before. What a call takes on the clock,
checks and launches and the copy of the keys included, stands beside it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from fedmpdd.bench.codec import Case, Row
from fedmpdd.bench.rounds import Row as RoundRow
from fedmpdd.codecs import MPDD, mpdd_cuda
from fedmpdd.data import Dataset, Examples
from fedmpdd.directions import cuda, partitioned_keys
from fedmpdd.directions.spec import hadamard_order
from fedmpdd.federation.compare import codec_config
from fedmpdd.federation.config import parse_config
from fedmpdd.federation.engine import federation_of

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
ROUND_CODECS = ("mpdd:m=600", "mpdd:m=600:bits=1:family=hadamard:keys=partitioned", "fedsgd")
_HEAD_START = 2_000_000  # GPU cycles: about a millisecond in which the calls that are timed can be queued


def device_ms(call: Callable[[], object], seconds: float) -> float:
    """Median of the time between two device events around a call, after a few to warm up."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 200):
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
    codec, d = case.codec, case.d
    own_keys = mpdd_cuda.keys_on(gradients.device, codec, keys, d)
    if case.op == "encode":
        return (
            lambda: mpdd_cuda.project(codec, gradients, own_keys),
            lambda: mpdd_cuda.encode(codec, gradients, keys),
        )
    updates = mpdd_cuda.encode(codec, gradients, keys)
    factors = torch.full((len(keys),), 1 / len(keys), dtype=torch.float64, device=gradients.device)
    out = torch.zeros(d, device=gradients.device)
    return (
        lambda: mpdd_cuda.decode(codec, updates, factors, out),
        lambda: mpdd_cuda.decode(codec, updates, factors, torch.zeros(d, device=gradients.device)),
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


def run_rounds(seconds: float = 3.0, *, tf32: bool = False) -> Iterator[RoundRow]:
    """Whole rounds of the CIFAR-10 CNN: 100 clients, all in every round, batch 64; made-up images will do."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> Examples:
        return Examples(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10)

    dataset = Dataset("made-up", examples(50_000), examples(100), 10, (0.5,) * 3, (0.25,) * 3)
    values = {"model": "cnn-mcmahan2017", "clients": 100, "batch": 64, "lr": 0.005, "device": "cuda", "tf32": tf32}
    config = parse_config({**values, "rounds": 10**6, "evaluate_every": 10**6, "codec": {"name": "mpdd", "m": 600}})
    for text in ROUND_CODECS:
        federation = federation_of(codec_config(config, text), dataset)
        for _ in range(3):
            federation.run_round()
        times, shares = [], []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            metrics = federation.run_round()
            times.append(time.perf_counter() - start)
            shares.append((metrics.encode_s + metrics.decode_s) / times[-1])
        yield RoundRow(
            f"local, {torch.cuda.get_device_name()}{', tf32' if tf32 else ''}",
            text,
            config.per_round,
            config.batch,
            1 / median(times),
            median(shares),
        )
