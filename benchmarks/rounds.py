"""`python -m benchmarks rounds`: whole rounds per second of the local engine, codec by codec."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedmpdd.simulation.config import RunConfig, codec_config, parse_config
from fedmpdd.simulation.engine import federation_of, make_federation
from fedmpdd.tasks.data import Dataset, Examples

CODECS = (
    "fedsgd",
    "mpdd:m=400",
    "mpdd:m=400:bits=1",
    "mpdd:m=400:family=hadamard:keys=partitioned",
    "mpdd:m=400:bits=1:family=hadamard:keys=partitioned",
)
PLAIN = "plain PyTorch, vmap"
GPU_CODECS = ("mpdd:m=600", "mpdd:m=600:bits=1:family=hadamard:keys=partitioned", "fedsgd")


@dataclass(frozen=True)
class Row:
    """One measured engine and codec."""

    engine: str
    codec: str
    clients_per_round: int
    batch: int
    rounds_per_s: float
    of_plain: float | None = None  # speed as a part of that of plain PyTorch, in turns in one process
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
    """Measure each codec, and plain PyTorch, in this process, in turns so that a noisy machine is noisy for all."""
    config = bench_config(batch)
    rounds: dict[tuple[str, str], Callable[[], object]] = {(PLAIN, "fedsgd"): plain_round(batch)}
    for gradients in ("auto", "layers"):
        for text in CODECS:
            settings = codec_config(config, text).model_copy(update={"gradients": gradients})
            rounds[f"local, {settings.gradient_method}", text] = make_federation(settings, data_dir).run_round
    times: dict[tuple[str, str], list[float]] = {name: [] for name in rounds}
    for run_round in rounds.values():
        run_round()
    turns = 6
    for _ in range(turns):
        for name, run_round in rounds.items():
            end = time.perf_counter() + seconds / turns
            while (start := time.perf_counter()) < end:
                run_round()
                times[name].append(time.perf_counter() - start)
    plain = median(times[PLAIN, "fedsgd"])
    for (engine, codec), taken in times.items():
        yield Row(engine, codec, config.per_round, batch, 1 / median(taken), of_plain=plain / median(taken))


def plain_round(batch: int) -> Callable[[], float]:
    """Return a round of FedSGD as one would write it in plain PyTorch: gradients of all clients in one `vmap`."""
    import torch

    from fedmpdd.tasks.data import mnist_5k
    from fedmpdd.tasks.models import lenet

    data, generator = mnist_5k.load(), torch.Generator().manual_seed(0)
    images = torch.from_numpy((data.train.images.astype(np.float32) / 255 - 0.1307) / 0.3081)
    labels = torch.from_numpy(data.train.labels)
    dealt = np.array_split(np.random.default_rng(0).permutation(len(labels)), 100)
    clients = [torch.from_numpy(examples) for examples in dealt]
    net = lenet((1, 28, 28), 10)
    parameters = {name: value.detach() for name, value in net.named_parameters()}

    def loss(values: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(torch.func.functional_call(net, values, (inputs,)), targets)

    gradients_of = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0))

    def run_round() -> float:
        chosen = torch.randperm(100, generator=generator)[:50].tolist()
        rows = torch.stack([clients[c][torch.randperm(len(clients[c]), generator=generator)[:batch]] for c in chosen])
        gradients, losses = gradients_of(parameters, images[rows], labels[rows])
        for name, value in parameters.items():
            parameters[name] = value - 0.1 * gradients[name].mean(dim=0)
        return float(losses.mean())

    return run_round


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
