"""The local engine: all clients of a federation in one process, rounds exactly as Algorithm 2 of the paper."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmpdd import models
from fedmpdd.codecs import Codec
from fedmpdd.data import Dataset, Partition, load, make_partition
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.federation import sampling
from fedmpdd.federation.clients import ClientStep, Evaluator
from fedmpdd.federation.config import RunConfig
from fedmpdd.federation.server import ServerStep
from fedmpdd.wire import Session


@dataclass(frozen=True)
class RoundMetrics:
    """What one round did. Bytes are of this round alone, summed over its clients."""

    round: int
    loss: float
    clients: int
    uplink_bytes: int  # whole compact frames
    payload_bytes: int  # scale and scalars alone, as the paper counts
    downlink_bytes: int
    gradient_s: float
    encode_s: float
    decode_s: float
    accuracy: float | None = None
    test_loss: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics as they stand in the run's file."""
        return asdict(self)


class Federation:
    """A model, its clients and its server. `run_round` advances it; everything random follows from the config."""

    def __init__(self, config: RunConfig, dataset: Dataset, partition: Partition) -> None:
        self.config = config
        self.partition = partition
        self.codec: Codec = config.codec.build()
        shape = dataset.train.images.shape[1:]
        self.model, self.flat = models.build(
            config.model,
            (shape[0], shape[1], shape[2]),
            dataset.classes,
            init=config.init,
            seed=sampling.model_seed(config),
        )
        try:
            self.session = Session(self.codec, self.model.d, sends_seed=config.codec.keys == "sent")
        except ValueError as error:
            raise ConfigError(f"codec: {error}") from None
        self._client_step = ClientStep(config, self.model, dataset)
        self._server_step = ServerStep(config, self.model.d)
        self.evaluate = Evaluator(config, self.model, dataset)
        self.next_round = 0

    def run_round(self) -> RoundMetrics:
        """Run one round (Algorithm 2, lines 3 to 22)."""
        k, config = self.next_round, self.config
        clock = time.perf_counter
        with _one_torch_thread():
            clients = sampling.sample_clients(config, k)  # line 3
            keys = sampling.round_keys(config, self.codec, k, clients)
            answering = sampling.survivors(config, k)  # the others drop out after the model was sent to them
            present, keys = clients[answering], [key for key, here in zip(keys, answering, strict=True) if here]
            examples = [self._examples_of(int(client)) for client in present]
            start = clock()
            loss = float("nan")
            gradient_done = encode_done = decode_done = start
            uplink = 0
            if len(present):
                batches = np.stack(
                    [sampling.sample_batch(config, k, int(c), own) for c, own in zip(present, examples, strict=True)]
                )
                gradients, loss = self._client_step(self.flat, batches)  # line 6
                gradient_done = clock()
                updates = self.codec.encode(gradients, keys)  # lines 7 to 10
                frames = [self.session.pack(update) for update in updates]  # line 11
                encode_done = clock()
                uplink = sum(map(len, frames))
                assigned = keys if self.session.assigns_key else [None] * len(keys)
                received = [self.session.unpack(frame, key) for frame, key in zip(frames, assigned, strict=True)]
                weights = [float(own.size) for own in examples] if config.weighting == "examples" else None
                estimate = self.codec.decode_mean(received, weights)  # lines 13 to 20
                self.flat = self._server_step(self.flat, torch.from_numpy(estimate), k)  # line 22
                decode_done = clock()
            self.next_round = k + 1
            accuracy, test_loss = self.evaluate(self.flat) if self._is_evaluated(k) else (None, None)
        return RoundMetrics(
            round=k,
            loss=loss,
            clients=len(present),
            uplink_bytes=uplink,
            payload_bytes=len(present) * self.codec.bytes_per_update(self.model.d),
            downlink_bytes=len(clients) * 4 * self.model.d,  # line 4: the model to every client of the round
            gradient_s=gradient_done - start,
            encode_s=encode_done - gradient_done,
            decode_s=decode_done - encode_done,
            accuracy=accuracy,
            test_loss=test_loss,
        )

    def _is_evaluated(self, k: int) -> bool:
        return (k + 1) % self.config.evaluate_every == 0 or k + 1 == self.config.rounds

    def _examples_of(self, client: int) -> Any:
        examples = self.partition.examples_of(client)
        if examples.size < self.config.batch:
            raise ConfigError(
                f"batch = {self.config.batch} is more than client {client} holds ({examples.size} examples); "
                "lower batch, or use fewer clients"
            )
        return examples

    def state(self) -> dict[str, Tensor]:
        """Return everything a checkpoint needs besides the number of the next round."""
        return {"model": self.flat, **{f"server.{name}": value for name, value in self._server_step.state.items()}}

    def load_state(self, state: dict[str, Tensor], next_round: int) -> None:
        """Go on from a checkpoint."""
        if set(state) != set(self.state()) or any(value.shape != self.flat.shape for value in state.values()):
            raise RunError(
                "the checkpoint is of another model or server optimiser; resume with the config it was made with"
            )
        self.flat = state["model"]
        for name in self._server_step.state:
            self._server_step.state[name] = state[f"server.{name}"]
        self.next_round = next_round


def make_federation(config: RunConfig, data_dir: Path | None = None) -> Federation:
    """Load the data of a config, deal it out, and build its federation."""
    dataset = load(config.dataset, data_dir)
    p = config.partition
    partition = make_partition(
        dataset.train.labels,
        config.clients,
        kind=p.kind,
        seed=p.seed,
        classes_per_client=p.classes_per_client,
        alpha=p.alpha,
        virtual_size=max(p.virtual_size, config.batch),
    )
    return Federation(config, dataset, partition)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """PyTorch's sums depend on its number of threads; a run's bits must not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
