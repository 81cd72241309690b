"""`python -m benchmarks rounds`: whole rounds per second of the local engine, codec by codec."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedmpdd.runs.compare import codec_config
from fedmpdd.simulation.config import RunConfig, parse_config
from fedmpdd.simulation.engine import federation_of, make_federation
from fedmpdd.tasks.data import Dataset, Examples

CODECS = (
    "fedsgd",
    "mpdd:m=400",
    "mpdd:m=400:bits=1",
    "mpdd:m=400:family=hadamard:keys=partitioned",
    "mpdd:m=400:bits=1:family=hadamard:keys=partitioned",
)
GPU_CODECS = ("mpdd:m=600", "mpdd:m=600:bits=1:family=hadamard:keys=partitioned", "fedsgd")


@dataclass(frozen=True)
class Row:
    """One measured engine and codec."""

    engine: str
    codec: str
    clients_per_round: int
    batch: int
    rounds_per_s: float
    codec_share: float | None = None  # of a round's time that encode and decode take, where it was measured

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def bench_config(batch: int = 1) -> RunConfig:
    """LeNet, 100 clients, 50 a round, on the bundled digits; never evaluated, for rounds alone are timed."""
    values = {
        "dataset": "mnist-5k",
        "model": "lenet",
        "clients": 100,
        "participation": 0.5,
        "batch": batch,
        "device": "cpu",
    }
    return parse_config({**values, "rounds": 10**6, "evaluate_every": 10**6, "codec": {"name": "mpdd", "m": 400}})


def run(batch: int = 1, seconds: float = 3.0, data_dir: Path | None = None) -> Iterator[Row]:
    """Measure each codec, all in this process, in turns so that a noisy machine is noisy for all."""
    config = bench_config(batch)
    federations = {text: make_federation(codec_config(config, text), data_dir) for text in CODECS}
    times: dict[str, list[float]] = {text: [] for text in CODECS}
    for federation in federations.values():
        federation.run_round()
    turns = 6
    for _ in range(turns):
        for text, federation in federations.items():
            end = time.perf_counter() + seconds / turns
            while (start := time.perf_counter()) < end:
                federation.run_round()
                times[text].append(time.perf_counter() - start)
    for text in CODECS:
        yield Row("local", text, config.per_round, batch, 1 / median(times[text]))


def run_on_gpu(seconds: float = 3.0, *, tf32: bool = False) -> Iterator[Row]:
    """Whole rounds of the CIFAR-10 CNN: 100 clients, all in every round, batch 64; made-up images will do."""
    import torch

    rng = np.random.default_rng(0)

    def examples(count: int) -> Examples:
        return Examples(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10)

    dataset = Dataset("made-up", examples(50_000), examples(100), 10, (0.5,) * 3, (0.25,) * 3)
    values = {"model": "cnn-mcmahan2017", "clients": 100, "batch": 64, "lr": 0.005, "device": "cuda", "tf32": tf32}
    config = parse_config({**values, "rounds": 10**6, "evaluate_every": 10**6, "codec": {"name": "mpdd", "m": 600}})
    for text in GPU_CODECS:
        federation = federation_of(codec_config(config, text), dataset)
        for _ in range(3):
            federation.run_round()
        times, shares = [], []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            metrics = federation.run_round()
            times.append(time.perf_counter() - start)
            shares.append((metrics.encode_s + metrics.decode_s) / times[-1])
        yield Row(
            f"local, {torch.cuda.get_device_name()}{', tf32' if tf32 else ''}",
            text,
            config.per_round,
            config.batch,
            1 / median(times),
            median(shares),
        )
