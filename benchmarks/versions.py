"""`python -m benchmarks versions OTHER`: the codecs of two checkouts, timed in turns.

Each version runs in a process of its own, which takes one case at a time: so that a noisy machine is noisy for both,
and neither keeps a GPU busy while the other is measured.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from fedmpdd.errors import FedmpddError

CODECS = (
    "mpdd m=400", "mpdd m=400 bits=1", "mpdd m=400 bits=8", "mpdd m=400 family=hadamard",
    "mpdd m=400 bits=1 family=hadamard", "peaks m=14", "fedsgd", "qsgd bits=8", "qsgd bits=4", "topk k=400",
    "randk k=400", "signsgd", "eden bits=1", "lp-proj size=100", "laplace noise=0.01", "gaussian noise=0.01",
)  # fmt: skip
GPU_CODECS = CODECS[:6]  # rivals take the CPU's numbers from this version on, and are no comparison
SIZES = ((13_426, 1), (13_426, 50), (319_242, 10))  # coordinates and clients


class VersionError(FedmpddError):
    """The other checkout cannot be measured."""


@dataclass(frozen=True)
class Row:
    """One case, by both versions; the ratio is that of medians of turns."""

    op: str
    codec: str
    d: int
    clients: int
    ours_ms: float
    other_ms: float

    @property
    def ratio(self) -> float:
        """How many times longer this version takes."""
        return self.ours_ms / self.other_ms

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return {**asdict(self), "ratio": self.ratio}


class Worker:
    """A process with one version of the package, which answers a case with milliseconds."""

    def __init__(self, python: str, source: Path | None, device: str) -> None:
        command = [python, "-c", _PROGRAM, device, "" if source is None else str(source)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise VersionError(f"{python} is no Python that can be started ({error}); name that of the other") from None

    def measure(self, case: dict[str, Any]) -> float:
        """Return the median time of a call."""
        requests: IO[str] | None = self._process.stdin
        answers: IO[str] | None = self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(json.dumps(case) + "\n")
        requests.flush()
        answer = answers.readline()
        if not answer:
            raise VersionError(f"the process of a version ended on {case}; what it said is above")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def run(
    python: str, source: Path | None = None, *, device: str = "cpu", turns: int = 7, seconds: float = 0.15
) -> Iterator[Row]:
    """Measure every case, the versions in turns.

    python: the Python of the other version. source: a folder to import it from, for a Python that has none installed.
    """
    workers = [Worker(sys.executable, None, device), Worker(python, source, device)]
    try:
        for d, clients in SIZES:
            for text in GPU_CODECS if device == "cuda" else CODECS:
                for op in ("encode", "decode"):
                    case = {"codec": text, "op": op, "d": d, "clients": clients, "seconds": seconds}
                    times = [[worker.measure(case) for worker in workers] for _ in range(turns)]
                    ours, other = (median(column) for column in zip(*times, strict=True))
                    yield Row(op, text, d, clients, ours, other)
    finally:
        for worker in workers:
            worker.close()


_PROGRAM = """
import json, sys, time
from statistics import median

device, source = sys.argv[1:]
if source:
    sys.path.insert(0, source)
import numpy as np
from fedmpdd.codecs import make_codec
from fedmpdd.directions import partitioned_keys, using

def parsed(text):
    name, *words = text.split()
    pairs = (word.split("=") for word in words)
    values = {key: value if key == "family" else json.loads(value) for key, value in pairs}
    return make_codec(name, values)

def calls(codec, gradients, keys):
    if device == "cpu":
        updates = codec.encode(gradients, keys)
        return lambda: codec.encode(gradients, keys), lambda: codec.decode_mean(updates), lambda: None
    import torch
    rows, wait = torch.from_numpy(gradients).cuda(), torch.cuda.synchronize
    if hasattr(codec, "encode_batch"):
        batch = codec.encode_batch(rows, keys)
        return lambda: codec.encode_batch(rows, keys), batch.decode, wait
    if codec.name == "peaks":  # which had no way that stays on the GPU
        updates = codec.encode(rows, keys)
        return lambda: codec.encode(rows, keys), lambda: codec.decode_mean_on("cuda", updates), wait
    from fedmpdd.codecs import mpdd_cuda
    sent = mpdd_cuda.encode(codec, rows, keys)
    factors = torch.full((len(keys),), 1 / len(keys), dtype=torch.float64, device="cuda")
    def decode():
        mpdd_cuda.decode(codec, sent, factors, torch.zeros(rows.shape[1], device="cuda"))
    return lambda: mpdd_cuda.encode(codec, rows, keys), decode, wait

made = {}
with using(threads=1):
    for line in sys.stdin:
        case = json.loads(line)
        name = case["codec"], case["d"], case["clients"]
        if name not in made:
            made.clear()
            gradients = np.random.default_rng(0).standard_normal((case["clients"], case["d"])).astype(np.float32)
            made[name] = calls(parsed(case["codec"]), gradients, partitioned_keys(1, case["clients"]))
        encode, decode, wait = made[name]
        call, times = encode if case["op"] == "encode" else decode, []
        call()
        wait()
        end = time.perf_counter() + case["seconds"]
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            wait()
            times.append(time.perf_counter() - start)
        print(median(times) * 1e3, flush=True)
"""
