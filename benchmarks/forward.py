"""`python -m benchmarks forward`: an update by forward-mode differentiation, beside backpropagation and encoding.

Both on one thread. Times are medians of the processor's time, which is the clock's where nothing else runs, taken in
turns so that a noisy machine is noisy for both. m directions take m times as long as one, and of many only a few are
timed. Memory is the largest sum of bytes that PyTorch had allocated for the update at any moment, as its profiler
reports every allocation: activations, tangents, directions, gradients, whatever its kernels ask it for. Model and
examples are there before.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.codec import MemoryNotMeasurableError
from fedmpdd.codecs import MPDD, DeComFL, Update
from fedmpdd.directions import Key, using
from fedmpdd.errors import InputError
from fedmpdd.simulation.clients import CHUNK_DIRECTIONS
from fedmpdd.simulation.forward import derivatives, directions
from fedmpdd.tasks import models
from fedmpdd.tasks.language_model import Transformer
from fedmpdd.tasks.models import FlatModel

MS = (1, 8, 64, 400)
BATCH = 16
TURNS = 3
TIMED = 8  # directions at least of which the time of more is found
IMAGE = (1, 28, 28)
CLASSES, SYMBOLS, LENGTH = 10, 256, 64
STEPS = (4, 6, 8, 10, 12, 14, 16, 18)  # log2_step of DeComFL
KEY = Key(2024)


def mlp(depth: int, width: int = 256) -> nn.Module:
    """So many hidden layers of one width."""
    sizes = [int(np.prod(IMAGE)), *[width] * depth]
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lambda: models.lenet(IMAGE, CLASSES),
    "cnn-lin2022": lambda: models.cnn_lin2022(IMAGE, CLASSES),
    "mlp-2": lambda: mlp(2),
    "mlp-8": lambda: mlp(8),
    "mlp-32": lambda: mlp(32),
    "transformer-2": lambda: Transformer(LENGTH, SYMBOLS, width=64, depth=2, heads=4),
    "transformer-8": lambda: Transformer(LENGTH, SYMBOLS, width=64, depth=8, heads=4),
}


class Client:
    """A network, its parameters and one minibatch; made-up examples will do."""

    def __init__(self, network: str, batch: int) -> None:
        if network not in NETWORKS:
            raise InputError(f"network {network!r} is unknown: expected some of {', '.join(NETWORKS)}")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = NETWORKS[network]().eval()
            if isinstance(module, Transformer):
                self.inputs = torch.randint(SYMBOLS, (batch, 1, 1, LENGTH)).float()
                self.labels = torch.randint(SYMBOLS, (batch, LENGTH))
            else:
                self.inputs, self.labels = torch.randn(batch, *IMAGE), torch.randint(CLASSES, (batch,))
        names, values = zip(*((name, value.detach()) for name, value in module.named_parameters()), strict=True)
        self.flat = torch.cat([value.reshape(-1) for value in values])
        self.model = FlatModel(module.requires_grad_(False), names, tuple(value.shape for value in values))

    def loss(self, flat: Tensor) -> Tensor:
        """Return the loss at a flat vector of parameters, as [1]."""
        return torch.nn.functional.cross_entropy(self.model(flat, self.inputs), self.labels).unsqueeze(0)

    def gradient(self) -> Tensor:
        """Backpropagation as frugal as it can be: every layer's gradient goes straight into the flat one."""
        flat, module = torch.zeros_like(self.flat), self.model.module.requires_grad_()
        for name, part in self.model.unflatten(flat).items():
            module.get_parameter(name).grad = part  # where there is one, backward() adds to it in place
        loss = torch.nn.functional.cross_entropy(module(self.inputs), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        module.zero_grad()
        module.requires_grad_(False)
        return flat

    def backward(self, codec: MPDD) -> Update:
        """Return the update by way of the gradient."""
        return codec.encode(self.gradient().numpy()[np.newaxis], [KEY])[0]

    def checkpointed(self, codec: MPDD) -> Update:
        """Return it by way of a gradient too, but keep only what lies between blocks, and compute the rest again."""

        def again(block: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
            block.forward = lambda hidden: checkpoint(forward, hidden, use_reentrant=False)

        blocks = list(self.model.module.get_submodule("blocks").children())
        for block in blocks:
            again(block, block.forward)
        try:
            return self.backward(codec)
        finally:
            for block in blocks:
                del block.forward  # and the class's own is there again

    def forward(self, codec: MPDD, at_once: int) -> Update:
        """Return the update without one, so many directions at once."""
        scalars, _ = derivatives(self.loss, self.flat, codec, KEY, at_once)
        return codec.encode_scalars(scalars.double().numpy(), [KEY], self.model.d)[0]


@dataclass(frozen=True)
class Row:
    """What one update takes. Ratios are to backpropagation with the same m; memory is None where it was not asked."""

    network: str
    d: int
    batch: int
    m: int
    client: str  # "backward", "checkpointed" or "forward"
    at_once: int  # directions; 0 for backpropagation
    median_ms: float
    time_ratio: float
    peak_bytes: int | None = None
    memory_ratio: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def run(
    networks: Sequence[str] = tuple(NETWORKS),
    ms: Sequence[int] = MS,
    *,
    batch: int = BATCH,
    seconds: float = 1.0,
    memory: bool = True,
) -> Iterator[Row]:
    """Measure every network with every m: backpropagation, then one direction at a time, then many at once."""
    for network in networks:
        with one_thread():
            client = Client(network, batch)
        peaks = peak_bytes(network, batch, ms) if memory else {}
        for m in ms:
            ways = _ways(client, m)
            few = [way.few(m, TIMED) for way in ways]
            with one_thread():
                calls = [way.call(client, MPDD(some)) for way, some in zip(ways, few, strict=True)]
                measured = in_turns(calls, seconds)
            times = [own * m / some for own, some in zip(measured, few, strict=True)]
            for way, own in zip(ways, times, strict=True):
                peak, usual = peaks.get((m, way)), peaks.get((m, ways[0]))
                ratio = None if peak is None or usual is None else peak / usual
                yield Row(network, client.model.d, batch, m, *way, own * 1e3, own / times[0], peak, ratio)


class _Way(NamedTuple):
    client: str
    at_once: int = 0

    def few(self, m: int, least: int) -> int:
        """How many directions tell what m take, where they go in runs of the same size one after the other."""
        return min(m, max(least, self.at_once)) if self.at_once else m

    def call(self, client: Client, codec: MPDD) -> Callable[[], object]:
        if self.at_once:
            return lambda: client.forward(codec, self.at_once)
        backward = client.backward if self.client == "backward" else client.checkpointed
        return lambda: backward(codec)


def _ways(client: Client, m: int) -> list[_Way]:
    """Backpropagation, which the others are compared with, comes first."""
    checkpointed = [_Way("checkpointed")] if isinstance(client.model.module, Transformer) else []
    return [_Way("backward"), *checkpointed, *(_Way("forward", n) for n in sorted({1, min(m, CHUNK_DIRECTIONS)}))]


def in_turns(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the median time of each call, in seconds; each has so many of them, and is made TURNS times at least."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(TURNS):
        for call, own in zip(calls, times, strict=True):
            end = time.process_time() + seconds / TURNS
            while True:
                start = time.process_time()
                call()
                own.append(time.process_time() - start)
                if own[-1] + start >= end:
                    break
    return [median(own) for own in times]


# ------------------------------------------------------------------------------------------------------ memory


def peak_bytes(network: str, batch: int, ms: Sequence[int]) -> dict[tuple[int, _Way], int]:
    """Return the peaks by m and way, measured in a process of its own.

    The profiler talks to standard error, and its records are large; neither is for who asked.
    """
    program = "import sys; from benchmarks import forward; forward.print_peaks(*sys.argv[1:])"
    command = [sys.executable, "-c", program, network, str(batch), json.dumps(list(ms))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise MemoryNotMeasurableError(f"peak memory cannot be measured here: {result.stderr.splitlines()[-1]}")
    return {(m, _Way(*way)): peak for m, way, peak in json.loads(result.stdout)}


def print_peaks(network: str, batch: str, ms: str) -> None:
    """Measure and print [[m, way, bytes], …]."""
    rows = []
    with one_thread():
        client = Client(network, int(batch))
        for m in json.loads(ms):
            for way in _ways(client, m):
                call = way.call(client, MPDD(way.few(m, 2 * way.at_once)))
                call()
                rows.append((m, way, peak_of(call)))
    print(json.dumps(rows))


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch had allocated at a time while something ran."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = call()
    del result
    recorded: Any = profile.profiler
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    changes = np.array([event.nbytes() for event in sorted(events, key=lambda event: int(event.start_ns()))])
    return int(np.cumsum(changes).max(initial=0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold PyTorch and the kernels to one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with using(threads=1):
            yield
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------- exactness


@dataclass(frozen=True)
class ErrorRow:
    """How far scalars are from those of a gradient in float64: ‖s − s*‖ / ‖s*‖."""

    network: str
    method: str
    error: float

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def errors(network: str = "lenet", *, m: int = 64, batch: int = BATCH) -> Iterator[ErrorRow]:
    """Compare backpropagation, forward mode and DeComFL's differences of losses, all in float32, along m directions."""
    codec = MPDD(m)
    with one_thread():
        client = Client(network, batch)
        rows = directions(codec, KEY, 0, m, client.model.d)
        exact = rows.double().numpy() @ _exact_gradient(client)

        def row(method: str, scalars: NDArray[Any]) -> ErrorRow:
            return ErrorRow(network, method, float(np.linalg.norm(scalars - exact) / np.linalg.norm(exact)))

        yield row("backward", client.backward(codec).arrays[0])
        yield row("forward", client.forward(codec, CHUNK_DIRECTIONS).arrays[0])
        for log2_step in STEPS:
            step = DeComFL(m, log2_step).step
            yield row(f"differences, step 2^-{log2_step}", _differences(client, rows, step) / (2 * step))


def _exact_gradient(client: Client) -> NDArray[np.float64]:
    flat = client.flat.double().requires_grad_()
    logits = client.model(flat, client.inputs.double())
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, client.labels), flat)
    return np.asarray(gradient.numpy())


def _differences(client: Client, rows: Tensor, step: float) -> NDArray[np.float64]:
    """f(x + μu) − f(x − μu) of every row u, with losses in float64 of logits in float32, as clients of DeComFL do."""

    def loss(flat: Tensor) -> float:
        logits = client.model(flat, client.inputs).double()
        return float(torch.nn.functional.cross_entropy(logits, client.labels))

    with torch.no_grad():
        return np.array([loss(client.flat + step * u) - loss(client.flat - step * u) for u in rows])
