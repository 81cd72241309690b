"""The local engine: all clients of a federation in one process, rounds exactly as Algorithm 2 of the paper."""

import math
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
from fedmpdd.codecs import Codec, DeComFL, ErrorFeedback, Update
from fedmpdd.data import Dataset, Partition, load, make_partition
from fedmpdd.directions import Key, backend
from fedmpdd.errors import CodecError, ConfigError, RunError
from fedmpdd.federation import sampling
from fedmpdd.federation.clients import ClientStep, Evaluator
from fedmpdd.federation.config import RunConfig
from fedmpdd.federation.server import ServerStep
from fedmpdd.federation.workers import Workers
from fedmpdd.wire import Session


@dataclass(frozen=True)
class RoundMetrics:
    """What one round did. Bytes are of this round alone, summed over its clients."""

    round: int
    loss: float | None  # None where no client answered
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
        """Return the metrics as they stand in the run's file; JSON knows no NaN."""
        values = asdict(self)
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


class Federation:
    """A model, its clients and its server. `run_round` advances it; everything random follows from the config."""

    def __init__(self, config: RunConfig, dataset: Dataset, partition: Partition) -> None:
        self.config = config
        self.partition = partition
        shape = dataset.train.images.shape[1:]
        self.model, self.flat = models.build(
            config.model,
            (shape[0], shape[1], shape[2]),
            dataset.classes,
            init=config.init,
            seed=sampling.model_seed(config),
        )
        self.codec = config.codec.build().for_shapes([tuple(shape) for shape in self.model.shapes])
        self.feedback = ErrorFeedback(self.codec) if config.codec.error_feedback else None
        self._sessions: dict[Codec, Session] = {}
        # Whatever refuses the config, better now than in the first round.
        self._session_of(self.codec)
        if self.feedback is not None:
            try:
                self.feedback.check(self.model.d)
            except CodecError as error:
                raise ConfigError(f"codec.error_feedback: {error}") from None
        workers = Workers(self.model)
        self._client_step = ClientStep(config, self.model, dataset, workers)
        self._server_step = ServerStep(config, self.model.d)
        self.evaluate = Evaluator(config, dataset, workers)
        self.next_round = 0
        self._client_step.check(self.flat)

    def run_round(self) -> RoundMetrics:
        """Run one round (Algorithm 2, lines 3 to 22)."""
        k, config = self.next_round, self.config
        clock = time.perf_counter
        with _one_torch_thread():
            clients = sampling.sample_clients(config, k)  # line 3
            keys = sampling.round_keys(config, k, clients)
            answering = sampling.survivors(config, k)  # the others drop out after the model was sent to them
            present, keys = clients[answering], [key for key, here in zip(keys, answering, strict=True) if here]
            examples = [self._examples_of(int(client)) for client in present]
            start = clock()
            loss: float | None = None
            gradient_done = encode_done = decode_done = start
            uplink = payload = 0
            if len(present):
                batches = np.stack(
                    [sampling.sample_batch(config, k, int(c), own) for c, own in zip(present, examples, strict=True)]
                )
                codec = self.codec.at_round(k)
                session = self._session_of(codec)
                if isinstance(codec, DeComFL):  # no gradients: losses along the round's directions
                    differences, loss = self._client_step.loss_differences(self.flat, batches, codec, keys[0])
                    gradient_done = clock()
                    updates = codec.encode_losses(differences, keys, self.model.d)
                else:
                    gradients, loss = self._client_step(self.flat, batches)  # line 6
                    gradient_done = clock()
                    updates = self._encode(codec, gradients, keys, present)  # lines 7 to 10
                frames = [session.pack(update) for update in updates]  # line 11
                encode_done = clock()
                uplink, payload = sum(map(len, frames)), len(frames) * codec.bytes_per_update(self.model.d)
                assigned = keys if session.assigns_key else [None] * len(keys)
                received = [session.unpack(frame, key) for frame, key in zip(frames, assigned, strict=True)]
                weights = [float(own.size) for own in examples] if config.weighting == "examples" else None
                estimate = codec.decode_mean(received, weights)  # lines 13 to 20
                self.flat = self._server_step(self.flat, torch.from_numpy(estimate), k)  # line 22
                decode_done = clock()
            self.next_round = k + 1
            accuracy, test_loss = self.evaluate(self.flat) if self._is_evaluated(k) else (None, None)
        return RoundMetrics(
            round=k,
            loss=loss,
            clients=len(present),
            uplink_bytes=uplink,
            payload_bytes=payload,
            downlink_bytes=len(clients) * 4 * self.model.d,  # line 4: the model to every client of the round
            gradient_s=gradient_done - start,
            encode_s=encode_done - gradient_done,
            decode_s=decode_done - encode_done,
            accuracy=accuracy,
            test_loss=test_loss,
        )

    def _encode(self, codec: Codec, gradients: Any, keys: list[Key], clients: Any) -> list[Update]:
        if self.feedback is None:
            return codec.encode(gradients, keys)
        self.feedback.codec = codec
        return self.feedback.encode(gradients, keys, [int(client) for client in clients])

    def _session_of(self, codec: Codec) -> Session:
        if codec not in self._sessions:
            try:
                self._sessions[codec] = Session(codec, self.model.d, sends_seed=self.config.codec.keys == "sent")
            except ValueError as error:
                raise ConfigError(f"codec: {error}") from None
        return self._sessions[codec]

    def _is_evaluated(self, k: int) -> bool:
        return (k + 1) % self.config.evaluate_every == 0 or k + 1 == self.config.rounds

    def check_batch(self) -> None:
        """Raise now what a later round would raise if a client held too few examples.

        All clients are looked at where that takes no time, else those of the first round.
        """
        few = self.config.clients <= 10_000
        for client in range(self.config.clients) if few else sampling.sample_clients(self.config, 0):
            self._examples_of(int(client))

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
        memories = self.feedback.state() if self.feedback else {}
        return {
            "model": self.flat,
            **{f"server.{name}": value for name, value in self._server_step.state.items()},
            **{f"feedback.{client}": torch.from_numpy(memory) for client, memory in memories.items()},
        }

    def load_state(self, state: dict[str, Tensor], next_round: int) -> None:
        """Go on from a checkpoint."""
        memories = {name: state[name] for name in state if name.startswith("feedback.")}
        expected = {"model", *(f"server.{name}" for name in self._server_step.state), *memories}
        wrong = set(state) != expected or (memories and self.feedback is None)
        if wrong or any((v.shape, v.dtype) != (self.flat.shape, self.flat.dtype) for v in state.values()):
            raise RunError(
                "the checkpoint is of another model, server or codec; resume with the config that it was made with"
            )
        if self.feedback is not None:
            self.feedback.load(
                {int(name.removeprefix("feedback.")): memory.numpy() for name, memory in memories.items()}
            )
        self.flat = state["model"]
        for name in self._server_step.state:
            self._server_step.state[name] = state[f"server.{name}"]
        self.next_round = next_round


def make_federation(config: RunConfig, data_dir: Path | None = None) -> Federation:
    """Load the data of a config, deal it out, and build its federation."""
    return federation_of(config, load(config.dataset, data_dir))


def federation_of(config: RunConfig, dataset: Dataset) -> Federation:
    """Deal out a dataset and build the federation of a config."""
    backend()  # wrong settings of the kernels are bad input too
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
    federation = Federation(config, dataset, partition)
    federation.check_batch()
    return federation


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """PyTorch's sums depend on its number of threads; a run's bits must not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
