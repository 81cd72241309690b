"""`python -m benchmarks codec`: encode and decode beside what one would write without this package, in one process.

Times are medians of wall-clock time, rivals measured in turn with ours so that a noisy machine is noisy for all.
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals import numpy_rivals, torch_rivals
from fedmpdd.codecs import MPDD, Update
from fedmpdd.directions import FAMILIES, Key, backend, partitioned_keys, using
from fedmpdd.errors import FedmpddError

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One line of the benchmark: what is encoded or decoded, and how fast it is meant to be."""

    op: str  # "encode" or "decode"
    codec: MPDD
    d: int
    clients: int = 1
    goal_ms: float | None = None
    rivals: bool = False


CASES = (
    Case("encode", MPDD(400), 13_426, goal_ms=0.25, rivals=True),
    Case("decode", MPDD(400), 13_426, goal_ms=0.22, rivals=True),
    Case("encode", MPDD(400, bits=1), 13_426),
    Case("decode", MPDD(400, bits=1), 13_426),
    Case("encode", MPDD(600), 319_242, goal_ms=8.0),
    Case("decode", MPDD(600), 319_242, goal_ms=8.0),
    Case("encode", MPDD(400, family="hadamard"), 13_426, goal_ms=0.03),
    Case("decode", MPDD(400, family="hadamard"), 13_426),
    Case("encode", MPDD(400, family="hadamard"), 13_426, clients=50),
    Case("decode", MPDD(400, family="hadamard"), 13_426, clients=50, goal_ms=0.1),
    Case("encode", MPDD(600, family="hadamard"), 319_242),
    Case("decode", MPDD(600, family="hadamard"), 319_242),
)


@dataclass(frozen=True)
class Row:
    """A measured time. `goal_ms` is what this project set itself, on one core with AVX-512."""

    op: str
    family: str
    bits: int
    d: int
    m: int
    clients: int
    impl: str
    threads: int
    device: str
    median_ms: float
    isa: str | None = None  # which kernels, of ours
    goal_ms: float | None = None
    wall_ms: float | None = None  # on a GPU: what the call takes on the clock, where median_ms is the device's time

    def as_dict(self) -> dict[str, object]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def median_ms(call: Callable[[], object], seconds: float) -> float:
    """Median of as many calls as fit the time, three at least, after one to warm up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 2_000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def run(cases: tuple[Case, ...] = CASES, *, threads: int = 1, seconds: float = 0.5) -> Iterator[Row]:
    """Measure the cases one after the other, each followed by its rivals."""
    for case in cases:
        gradients = np.random.default_rng(0).standard_normal((case.clients, case.d)).astype(np.float32)
        keys = partitioned_keys(1, case.clients)
        row = Row(
            case.op, case.codec.family, case.codec.bits, case.d, case.codec.m, case.clients, "", threads, "cpu", 0.0
        )
        with using(threads=threads):
            call = _ours(case, gradients, keys)
            row = replace(row, isa=backend().isa)
            yield replace(row, impl="fedmpdd", median_ms=median_ms(call, seconds), goal_ms=case.goal_ms)
        if case.rivals:
            for name, rival in _rivals(case, gradients[0], threads):
                yield replace(row, impl=name, isa=None, median_ms=median_ms(rival, seconds))


def _ours(case: Case, gradients: Float32, keys: list[Key]) -> Callable[[], object]:
    """The public calls: argument checks, scales and update objects are part of the time."""
    if case.op == "encode":
        return lambda: case.codec.encode(gradients, keys)
    updates: list[Update] = case.codec.encode(gradients, keys)
    return lambda: case.codec.decode_mean(updates)


def _rivals(case: Case, gradient: Float32, threads: int) -> Iterator[tuple[str, Callable[[], object]]]:
    scalars = np.random.default_rng(1).standard_normal(case.codec.m).astype(np.float32)
    with _blas_threads(threads):
        yield from numpy_rivals(case.op, gradient, scalars)
    if has_torch():
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield from torch_rivals(case.op, gradient, scalars)
        finally:
            torch.set_num_threads(before)


def _blas_threads(threads: int) -> AbstractContextManager[object]:
    """Hold NumPy's matrix products to so many threads, where threadpoolctl is there to do it."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    limits: AbstractContextManager[object] = threadpool_limits(threads)
    return limits


def has_torch() -> bool:
    """Return whether the PyTorch rivals can be measured here."""
    return importlib.util.find_spec("torch") is not None


class MemoryNotMeasurableError(FedmpddError):
    """Peak memory is read from /proc, as Linux has it."""


def peak_memory(d: int = 10_000_000, m: int = 100) -> Iterator[tuple[str, str, int]]:
    """Measure (family, op, bytes at the peak beyond input and output), each in a process of its own."""
    for family in FAMILIES:
        for op in ("encode", "decode"):
            command = [sys.executable, "-c", _PEAK_PROGRAM, family, op, str(d), str(m)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise MemoryNotMeasurableError(f"peak memory cannot be measured here: {result.stderr.splitlines()[-1]}")
            yield family, op, int(result.stdout)


# The kernels alone, on one thread, code pages and all: the high-water mark is set back once input and output exist.
_PEAK_PROGRAM = """
import sys
import numpy as np
from pathlib import Path
from fedmpdd.directions import _native, hadamard_size

family, op, d, m = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
keys, backend = (np.ones(1, np.uint64), np.zeros(1, np.uint64)), (1, "auto")
scalars, sums = np.ones((1, m), np.float32), np.ones((1, m))
padded = np.empty(hadamard_size(d), np.float32)
gradient = padded[:d]
gradient.fill(1)

def status(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024

before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
if (family, op) == ("rademacher", "encode"):
    _native.rademacher_encode(gradient[np.newaxis], 0, *keys, sums, *backend)
elif (family, op) == ("hadamard", "encode"):
    _native.hadamard_encode(gradient[np.newaxis], *keys, scalars, *backend)
elif (family, op) == ("rademacher", "decode"):
    _native.rademacher_decode(scalars, np.ones(1), *keys, gradient, 0, *backend)
else:
    _native.hadamard_decode(scalars, np.ones(1), *keys, padded, d, *backend)
print(status("VmHWM") - before)
"""
