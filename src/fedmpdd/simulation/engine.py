"""The local engine: all clients of a federation in one process, rounds exactly as Algorithm 2 of the paper."""

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpdd.codecs import MPDD, Codec, DeComFL
from fedmpdd.directions import Key, backend
from fedmpdd.errors import CodecError, ConfigError, RunError
from fedmpdd.simulation import sampling
from fedmpdd.simulation.clients import ClientStep, Evaluator
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.devices import reproducible_arithmetic, resolve_device
from fedmpdd.simulation.downlink import Downlink, ModelDownlink, ReplayDownlink
from fedmpdd.simulation.exchange import Exchange, FrameExchange, Sent, joined, make_exchange, make_memories
from fedmpdd.simulation.journal import Header
from fedmpdd.simulation.replay import bundle_codec, model_sha256, stepped
from fedmpdd.simulation.server import ServerStep
from fedmpdd.simulation.workers import Workers
from fedmpdd.tasks import models
from fedmpdd.tasks.data import Dataset, Partition, PartitionKind, load, make_partition
from fedmpdd.wire.bundle import Bundle
from fedmpdd.wire.frames import Session


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

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> "RoundMetrics":
        """Return the metrics of a line of the run's file, which may be of a version that had more or fewer."""
        return cls(**{own.name: row.get(own.name, 0.0) for own in fields(cls)})

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics as they stand in the run's file; JSON knows no NaN."""
        values = asdict(self)
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


class _Plan(NamedTuple):
    """Who takes part in a round, with which keys, on which examples."""

    round: int
    selected: NDArray[np.int64]  # clients that the model was sent to
    present: NDArray[np.int64]  # those that answer
    keys: list[Key]
    batches: NDArray[np.int64]  # [clients, local steps, batch]
    weights: list[float] | None

    def part(self, group: slice) -> "_Plan":
        """The plan of some of those that answer."""
        return self._replace(
            present=self.present[group],
            keys=self.keys[group],
            batches=self.batches[group],
            weights=None if self.weights is None else self.weights[group],
        )


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
        self.model.module.to(config.device)
        self.flat = self.flat.to(config.device)
        self.codec = config.codec.build().for_shapes([tuple(shape) for shape in self.model.shapes])
        self.memories = make_memories(config.codec, self.codec, self.flat.device)
        self._sessions: dict[Codec, Session] = {}
        # Whatever refuses the config, better now than in the first round.
        self._session_of(self.codec)
        if self.memories is not None:
            try:
                self.memories.check(self.model.d)
            except CodecError as error:
                raise ConfigError(f"codec.{'memory' if config.codec.memory else 'error_feedback'}: {error}") from None
        self._protection = config.codec.protection()
        self._exchange: Exchange = make_exchange(
            self.codec,
            self.flat.device,
            self.memories,
            self._protection,
            # On a GPU only gradients stay there: what is recorded, or was never a gradient, goes through frames.
            framed=config.journaled or self.codec.from_losses or config.client == "forward",
            mean_bits=config.downlink_bits,
            robust=None if config.robust is None else config.robust.build(),
            shared=config.shares_keys,
        )
        self._secure = None
        if config.secure is not None:
            from fedmpdd.simulation.secure import SecureExchange  # needs a package that others do not

            self._exchange = self._secure = SecureExchange(
                config.secure, self.codec, self.model.d, config.per_round, self.flat.device, config.downlink_bits
            )
        self._server_step = ServerStep(config.server, config.lr, self.model.d, config.device)
        self.average = None if config.evaluate_mean is None else self.flat.clone()
        self.journal_header = Header(
            self.model.d,
            (shape[0], shape[1], shape[2]),
            dataset.classes,
            model_sha256(self.flat),
            config.model_dump(mode="json"),
        )
        self._downlink: Downlink = ModelDownlink(self.model.d)
        if config.downlink == "replay":
            vectors = 4 * self.model.d * (1 + len(self._server_step.state))
            self._downlink = ReplayDownlink(vectors, len(self.journal_header.pack()))
        # Of a secure sum nothing can be seen unless enough clients stay.
        self._fewest = 1 if config.secure is None else config.secure.threshold(config.per_round)
        self.bundle = b""  # of the last round, where the run keeps a journal
        self._prepared: _Plan | None = None
        self._workers = Workers(self.model, threaded=not self.flat.is_cuda)
        self._client_step = ClientStep(config, self.model, dataset, self._workers)
        self.evaluate = Evaluator(config, dataset, self._workers)
        self.next_round = 0
        self._client_step.check(self.flat)

    def close(self) -> None:
        """End the threads, which the next round would start again."""
        self._workers.close()

    def run_round(self) -> RoundMetrics:
        """Run one round (Algorithm 2, lines 3 to 22)."""
        k, config = self.next_round, self.config
        with reproducible_arithmetic(config):
            plan = self._plan_of(k)
            losses: Tensor | None = None
            sent, bundle = Sent(None, 0, 0), None
            downlink_bytes = self._downlink.send(plan.selected.tolist(), k)  # line 4
            if self._secure is not None:
                downlink_bytes += self._secure.overhead_down(len(plan.selected))
            gradient_s = encode_s = decode_s = 0.0
            if len(plan.keys) >= self._fewest:
                session = self._session_of(self.codec.at_round(k))
                sent, losses, gradient_s, encode_s = self._uplink(session, plan)  # lines 6 to 11
                begun = self._clock()
                estimate, bundle = self._exchange.receive(session, sent, plan.keys, plan.weights)  # lines 13 to 20
                self._move_to(self._server_step(self.flat, estimate, k))  # line 22
                decode_s = self._clock() - begun
            elif plan.keys and self._secure is not None:
                sent = self._secure.in_vain(len(plan.keys))
            self._note(bundle or Bundle())
            self.next_round = k + 1
            accuracy, test_loss = self.evaluate(self.served) if self._is_evaluated(k) else (None, None)
        return RoundMetrics(
            round=k,
            loss=None if losses is None else float(losses.double().cpu().numpy().mean()),
            clients=0 if losses is None else len(plan.keys),
            uplink_bytes=sent.uplink_bytes,
            payload_bytes=sent.payload_bytes,
            downlink_bytes=downlink_bytes,
            gradient_s=gradient_s,
            encode_s=encode_s,
            decode_s=decode_s,
            accuracy=accuracy,
            test_loss=test_loss,
        )

    def _uplink(self, session: Session, plan: "_Plan") -> tuple[Sent, Tensor, float, float]:
        """What all clients send, their losses, and the seconds that gradients and encoding took.

        In groups of clients where updates do not depend on each other: gradients are many times what is sent of them.
        """
        parts: list[Sent] = []
        losses: list[Tensor] = []
        gradient_s = encode_s = 0.0
        for group in self._groups(plan):
            some, start = plan.part(group), self._clock()
            computed, own_losses = self._compute(session.codec, some)  # line 6
            if not losses:
                self._prepare(plan.round + 1)
            computed_at = self._clock()
            parts.append(self._send(session, computed, some))  # lines 7 to 11
            losses.append(own_losses)
            gradient_s += computed_at - start
            encode_s += self._clock() - computed_at
            del computed  # before the next group's
        return joined(parts), torch.cat(losses), gradient_s, encode_s

    def _groups(self, plan: "_Plan") -> Iterable[slice]:
        if not self._exchange.by_client:
            return [slice(0, len(plan.keys))]
        return self._client_step.groups(len(plan.keys))

    def _compute(self, codec: Codec, plan: "_Plan") -> tuple[Tensor | NDArray[np.float64], Tensor]:
        """What the clients encode, and their losses: gradients, or numbers along directions where there are none."""
        if isinstance(codec, DeComFL):
            return self._client_step.loss_differences(self.flat, plan.batches, codec, plan.keys[0])
        if self.config.client == "forward":
            assert isinstance(codec, MPDD)
            return self._client_step.derivatives(self.flat, plan.batches, codec, plan.keys)
        gradients, losses = self._client_step(self.flat, plan.batches)
        if self._server_step.control is not None:
            gradients -= self._server_step.control
        return gradients, losses

    def _send(self, session: Session, computed: Tensor | NDArray[np.float64], plan: "_Plan") -> Sent:
        noisy = self._protection is not None or self.config.secure is not None
        noise = sampling.noise_sources(self.config, plan.round, plan.present) if noisy else None
        if isinstance(computed, Tensor):
            return self._exchange.send(session, computed, plan.keys, plan.present, noise)
        assert isinstance(self._exchange, FrameExchange)
        if isinstance(session.codec, DeComFL):
            return self._exchange.send_losses(session, computed, plan.keys)
        return self._exchange.send_scalars(session, computed, plan.keys, noise)

    def _note(self, bundle: Bundle) -> None:
        if self.config.journaled:
            self.bundle = bundle.pack()
            self._downlink.add(len(self.bundle))

    def advance(self, data: bytes, *, changes_model: bool) -> None:
        """Go one round further by what a journal says of it, without clients.

        changes_model: whether the model is still that of this round, and not, from a checkpoint, of a later one.
        """
        k = self.next_round
        self._downlink.send(sampling.sample_clients(self.config, k).tolist(), k)
        self._downlink.add(len(data))
        if changes_model:
            self._move_to(stepped(self.flat, data, bundle_codec(self.config, self.codec, k), self._server_step, k))
        self.next_round = k + 1

    def begin_at(self, flat: Tensor) -> None:
        """Take another initial model than the one that was made here: that of a journal."""
        if flat.shape != self.flat.shape or self.next_round != 0:
            raise RunError(
                f"an initial model of {flat.numel()} parameters came, expected {self.model.d}, and at round 0"
            )
        self.flat = flat.to(self.flat.device)
        if self.average is not None:
            self.average = self.flat.clone()
        self.journal_header = self.journal_header._replace(model_sha256=model_sha256(self.flat))

    @property
    def served(self) -> Tensor:
        """The model that is evaluated: the newest, or the running mean of all."""
        return self.flat if self.average is None else self.average

    def _move_to(self, flat: Tensor) -> None:
        self.flat = flat
        if self.average is not None and self.config.evaluate_mean is not None:
            # The first models are far off: at round k it is no more than about the last tenth of them that counts.
            kept = min(self.config.evaluate_mean, (self.next_round + 1) / (self.next_round + 10))
            self.average = kept * self.average + (1 - kept) * flat

    def _clock(self) -> float:
        """Seconds, when everything that was asked of the device so far is done."""
        if self.flat.is_cuda:
            torch.cuda.synchronize(self.flat.device)
        return time.perf_counter()

    def _plan_of(self, k: int) -> "_Plan":
        """Every choice of a round: a pure function of the config and k."""
        if self._prepared is not None and self._prepared.round == k:
            return self._prepared
        config = self.config
        clients = sampling.sample_clients(config, k)  # line 3
        answering = sampling.survivors(config, k)  # the others drop out after the model was sent to them
        keys = [key for key, here in zip(sampling.round_keys(config, k, clients), answering, strict=True) if here]
        present = clients[answering]
        batches = np.empty((len(present), config.local_steps, config.batch), np.int64)
        weights = []
        for row, client in enumerate(present.tolist()):
            examples = self._examples_of(client)
            batches[row] = sampling.sample_batch(config, k, client, examples)
            weights.append(float(examples.size))
        return _Plan(
            round=k,
            selected=clients,
            present=present,
            keys=keys,
            batches=batches,
            weights=weights if config.weighting == "examples" else None,
        )

    def _prepare(self, k: int) -> None:
        """Choose for the next round while the GPU is busy with this one."""
        if self.flat.is_cuda and k < self.config.rounds:
            self._prepared = self._plan_of(k)

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
        memories = self.memories.state() if self.memories else {}
        return {
            "model": self.flat.cpu(),
            **{f"server.{name}": value.cpu() for name, value in self._server_step.state.items()},
            **({} if self.average is None else {"server.average": self.average.cpu()}),
            **{f"feedback.{client}": torch.from_numpy(memory) for client, memory in memories.items()},
        }

    def load_state(self, state: dict[str, Tensor], next_round: int) -> None:
        """Go on from a checkpoint."""
        memories = {name: state[name] for name in state if name.startswith("feedback.")}
        expected = {"model", *(f"server.{name}" for name in self._server_step.state), *memories}
        if self.average is not None:
            expected.add("server.average")
        wrong = set(state) != expected or (memories and self.memories is None)
        wrong = wrong or not all(_is_client(name.removeprefix("feedback."), self.config.clients) for name in memories)
        if wrong or any((v.shape, v.dtype) != (self.flat.shape, self.flat.dtype) for v in state.values()):
            raise RunError(
                "the checkpoint is of another model, server or codec; resume with the config that it was made with"
            )
        if self.memories is not None:
            self.memories.load(
                {int(name.removeprefix("feedback.")): memory.numpy() for name, memory in memories.items()}
            )
        self.flat = state["model"].to(self.flat.device)
        if self.average is not None:
            self.average = state["server.average"].to(self.flat.device)
        for name in self._server_step.state:
            self._server_step.state[name] = state[f"server.{name}"].to(self.flat.device)
        self.next_round = next_round


def _is_client(text: str, clients: int) -> bool:
    return len(text) <= 10 and text.isascii() and text.isdigit() and str(int(text)) == text and int(text) < clients


def make_federation(config: RunConfig, data_dir: Path | None = None) -> Federation:
    """Load the data of a config, deal it out, and build its federation."""
    return federation_of(config, load(config.dataset, data_dir))


def federation_of(config: RunConfig, dataset: Dataset) -> Federation:
    """Deal out a dataset and build the federation of a config."""
    backend()  # wrong settings of the kernels are bad input too
    config = resolve_device(config)
    federation = Federation(config, dataset, partition_of(config, dataset.train.labels))
    federation.check_batch()
    return federation


def partition_of(config: RunConfig, labels: NDArray[np.int64]) -> Partition:
    """Deal out examples with these labels as a config says."""
    p = config.partition
    if labels.ndim > 1:  # texts: a label per position, none per example
        if p.kind != PartitionKind.IID:
            raise ConfigError(
                f'partition.kind = "{p.kind}" deals out classes, and {config.dataset} has none; use "iid"'
            )
        labels = np.zeros(len(labels), np.int64)
    return make_partition(
        labels,
        config.clients,
        kind=p.kind,
        seed=p.seed,
        classes_per_client=p.classes_per_client,
        alpha=p.alpha,
        virtual_size=max(p.virtual_size, config.batch),
    )
