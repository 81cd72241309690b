"""The local engine: all clients of a federation in one process, rounds exactly as Algorithm 2 of the paper."""

import math
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmpdd.codecs import Codec, Update
from fedmpdd.directions import Key, backend
from fedmpdd.errors import ConfigError, GradientError, InputError, RunError
from fedmpdd.server.journal import Header, Record
from fedmpdd.simulation import sampling
from fedmpdd.simulation.clients import Asking, ClientStep, Computed, GradientRequest, Work, answered
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.devices import reproducible_arithmetic, resolve_device
from fedmpdd.simulation.downlink import Downlink, ModelDownlink, ReplayDownlink
from fedmpdd.simulation.evaluation import Evaluator
from fedmpdd.simulation.links import bundle_codecs, codecs_of, link_numbers
from fedmpdd.simulation.replay import model_sha256, replica_at
from fedmpdd.simulation.tasks import load_task, task_of
from fedmpdd.simulation.workers import Workers
from fedmpdd.tasks.batch_norm import RunningStatistics
from fedmpdd.tasks.data import Dataset, Partition
from fedmpdd.tasks.objective import Objective
from fedmpdd.tasks.task import Task
from fedmpdd.torch.step import TorchStep
from fedmpdd.uplink import (
    AnyMean,
    ErrorFeedback,
    MixedMemory,
    MixedUplink,
    MixedUploads,
    SystemNoise,
    Uplink,
    Uploads,
)
from fedmpdd.uplink.arrivals import SYNCHRONOUS
from fedmpdd.wire.bundle import Bundle


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
    metrics: dict[str, float] | None = None  # of the test examples, where there are others than accuracy
    arrived: str | None = None  # whose updates counted, where clients are far away: see fedmpdd.mqtt.messages

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics as they stand in the run's file; JSON knows no NaN."""
        values = {name: _json_number(value) for name, value in asdict(self).items()}
        if self.arrived is None:
            del values["arrived"]
        if self.metrics is None:
            del values["metrics"]
        else:
            values["metrics"] = {name: _json_number(value) for name, value in self.metrics.items()}
        return values


STATISTICS = "batch_norm"  # the name of that vector in checkpoints


class Plan(NamedTuple):
    """Who takes part in a round, with which keys, on which examples."""

    round: int
    selected: NDArray[np.int64]  # clients that the model was sent to
    present: NDArray[np.int64]  # those that answer
    keys: list[Key]
    batches: NDArray[np.int64]  # [clients, local steps, batch]
    weights: list[float] | None
    arrived: str | None = None  # whose updates counted, as text, where they come in their own time

    def part(self, group: slice | Sequence[int]) -> "Plan":
        """The plan of some of those that answer, by their places."""
        places = range(len(self.keys))[group] if isinstance(group, slice) else group
        return self._replace(
            present=self.present[group],
            keys=[self.keys[place] for place in places],
            batches=self.batches[group],
            weights=None if self.weights is None else [self.weights[place] for place in places],
        )


class Answers(NamedTuple):
    """What came of a round: who answered, with what, and the seconds that gradients and encoding took."""

    plan: Plan
    uploads: Any
    computed: Computed
    gradient_s: float
    encode_s: float
    vain_bytes: int = 0  # of a round that came to nothing


class Federation:
    """A model, its clients and its server. `run_round` advances it; everything random follows from the config.

    frames: whether every update becomes a frame that is checked and read again, as on a network. It changes no number.
    """

    def __init__(
        self, config: RunConfig, task: Task | Dataset, partition: Partition | None = None, *, frames: bool = False
    ) -> None:
        config.check_trainable()
        self.config = config = resolve_device(config)
        self.task = task = task if isinstance(task, Task) else task_of(config, task, partition)
        if task.clients.partition.clients != config.clients:
            raise ConfigError(
                f"clients = {config.clients}, and the task has "
                f"{task.clients.partition.clients}: deal out the examples to as many"
            )
        self.partition = task.clients.partition
        self._frames = frames
        self._objective, flat = task.build(config.init, sampling.model_seed(config))
        self.model = self._objective.model
        frozen = self._objective.frozen_sha256  # before it is moved: it is large
        self._objective.move_to(config.device)
        self.codecs = codecs_of(config, self.model.shapes)
        self.codec = self.codecs[0]
        self._links = link_numbers(config, self.codecs, self.model.shapes)
        memories = [ErrorFeedback(codec) for codec in self.codecs] if config.codec.error_feedback else []
        self.memory: ErrorFeedback | MixedMemory | None = memories[0] if memories else None
        if memories and config.links:
            self.memory = MixedMemory(memories, self._links)
        self._uplink: Any = _uplink_of(config, self.codecs, self.model.d, memories, self._links)
        self._server = replica_at(flat, config, self.model.shapes)
        self._source = config.source
        self._noisy = config.codec.protection() is not None or config.secure is not None
        self._statistics = _statistics_of(config, self._objective)
        self.journal_header = Header(
            self.model.d, task.shape, task.classes, model_sha256(flat), config.model_dump(mode="json"), frozen
        )
        self._downlink: Downlink = ModelDownlink(self.model.d)
        if config.downlink == "replay":
            vectors = 4 * self.model.d * len(self._server.vectors)
            self._downlink = ReplayDownlink(vectors, len(self.journal_header.pack()))
        # Of a secure sum nothing can be seen unless enough clients stay.
        self._fewest = 1 if config.secure is None else config.secure.threshold(config.per_round)
        self.bundle = b""  # of the last round, where somebody follows
        self._prepared: Plan | None = None
        self._workers = Workers(self._objective, threaded=config.device != "cuda")
        self._client_step = ClientStep(config, self._objective, task.clients.store, self._workers)
        self.evaluate = Evaluator(config, task, self._objective, self._statistics, self._workers)
        self._check_engine()
        config.schedule.factor(0)  # somebody's own may fail
        self._client_step.check(self.flat)
        self.evaluate.check(self.flat)

    def _check_engine(self) -> None:
        """Raise ConfigError for settings of other engines."""
        if self.config.arrivals != SYNCHRONOUS:
            raise ConfigError(
                f"arrivals = {self.config.arrivals}: all clients of the local engine answer at once; leave it out, or "
                "train over a network: fedmpdd mqtt serve"
            )

    @property
    def trained_model(self) -> nn.Module:
        """A module with the parameters as they are now, in eval mode and on the CPU."""
        return self._objective.trained(self.flat).cpu()

    @property
    def flat(self) -> Tensor:
        """The model's parameters, on the device that computes."""
        flat: Any = self._server.flat
        return torch.from_numpy(flat) if isinstance(flat, np.ndarray) else flat

    @property
    def next_round(self) -> int:
        """The number of the next round, from 0."""
        return self._server.next_round

    @next_round.setter
    def next_round(self, number: int) -> None:
        self._server.next_round = number

    def close(self) -> None:
        """End the threads, which the next round would start again."""
        self._workers.close()

    def run_round(self) -> RoundMetrics:
        """Run one round (Algorithm 2, lines 3 to 22)."""
        return answered(self.round())

    def round(self) -> Generator[GradientRequest, Computed, RoundMetrics]:
        """Run one round whose gradients somebody else computes: ask for them, and return what the round did.

        Several federations whose rounds go on in turns can have theirs computed together: `run_rounds`.
        """
        k, config = self.next_round, self.config
        with reproducible_arithmetic(config):
            plan = self._plan_of(k)
        losses: Tensor | None = None
        mean: AnyMean | None = None
        uplink_bytes = payload_bytes = 0
        downlink_bytes = self._downlink.send(plan.selected.tolist(), k)  # line 4
        if self._statistics is not None:
            downlink_bytes += 4 * len(self._statistics) * len(plan.selected)
        if config.secure is not None:
            downlink_bytes += self._uplink.overhead_down(len(plan.selected))
        gradient_s = encode_s = decode_s = 0.0
        uploads: Any = None
        if len(plan.keys) >= self._fewest:
            plan, uploads, computed, gradient_s, encode_s, uplink_bytes = yield from self._upload(plan)  # lines 6 to 11
            losses = computed.losses
            with reproducible_arithmetic(config):
                beside = self._take_statistics(computed.statistics, plan.weights)
            if uploads is not None:
                uplink_bytes, payload_bytes = uploads.frame_bytes + beside, uploads.payload_bytes + beside
        elif plan.keys and config.secure is not None:
            uplink_bytes = self._uplink.aborted_bytes(len(plan.keys))
        with reproducible_arithmetic(config):
            begun = self._clock()
            if uploads is not None:
                at = {"round_number": k} if config.links else {}
                mean = self._uplink.mean(uploads, plan.weights, **at)
            self._server.take(mean)  # lines 13 to 22
            if mean is not None:
                decode_s = self._clock() - begun
            self._note(mean)
            tested = self.evaluate(self.flat) if self._is_evaluated(k) else None
        return RoundMetrics(
            round=k,
            loss=None if losses is None else _mean_of(losses.double().cpu().numpy()),
            clients=0 if losses is None else len(plan.keys),
            uplink_bytes=uplink_bytes,
            payload_bytes=payload_bytes,
            downlink_bytes=downlink_bytes,
            gradient_s=gradient_s,
            encode_s=encode_s,
            decode_s=decode_s,
            accuracy=None if tested is None else tested.metrics.get("accuracy"),
            test_loss=None if tested is None else tested.loss,
            metrics=None if tested is None or set(tested.metrics) == {"accuracy"} else tested.metrics,
            arrived=plan.arrived,
        )

    def _upload(self, plan: "Plan") -> Generator[GradientRequest, Computed, "Answers"]:
        """What all clients send, their losses and statistics, and the seconds that gradients and encoding took.

        In groups of clients where updates do not depend on each other: gradients are many times what is sent of them.
        """
        parts: list[Any] = []
        results: list[Computed] = []
        gradient_s = encode_s = 0.0
        for group in self._groups(plan):
            some, start = plan.part(group), self._clock()
            computed = yield from self._compute(some)  # line 6
            if not results:
                self._prepare(plan.round + 1)
            computed_at = self._clock()
            try:
                with reproducible_arithmetic(self.config):
                    parts.append(self._encode(computed.rows, some))  # lines 7 to 11
            except GradientError as error:
                raise self._cause_of(error, computed) from None
            results.append(computed._replace(rows=None))
            gradient_s += computed_at - start
            encode_s += self._clock() - computed_at
            del computed  # before the next group's
        uploads = parts[0] if len(parts) == 1 else type(parts[0]).joined(parts)
        if self._frames:
            uploads = self._uplink.through_frames(plan.round, uploads)
        return Answers(plan, uploads, Computed.joined(results), gradient_s, encode_s)

    def _take_statistics(self, statistics: Tensor | None, weights: list[float] | None) -> int:
        """Average what clients sent of their batch norm layers, and return its bytes."""
        if statistics is None or self._statistics is None:
            return 0
        self._statistics.take(statistics, weights)
        return 4 * statistics.numel()

    def _groups(self, plan: "Plan") -> Iterable[slice]:
        if self.flat.is_cuda or not self._uplink.in_groups:  # on a GPU a round is one call
            return [slice(0, len(plan.keys))]
        return self._client_step.groups(len(plan.keys))

    def _compute(self, plan: "Plan") -> Asking:
        """What the clients encode, and their losses: gradients, or scalars along directions where there are none."""
        if self._source == "backward":
            return (yield from self._client_step.steps(self.flat, Work(plan.round, plan.present, plan.batches)))
        with reproducible_arithmetic(self.config):
            if not self.config.links:
                return self._scalars(plan, self.codec)
            rows: list[Any] = [None] * len(plan.keys)
            losses: list[Any] = [None] * len(plan.keys)
            for codec, places in zip(self.codecs, self._uplink.places(plan.present.tolist()), strict=True):
                if places:  # as many scalars of each client as its codec has
                    computed = self._scalars(plan.part(places), codec)
                    for place, row, loss in zip(places, computed.rows, computed.losses, strict=True):
                        rows[place], losses[place] = row, loss
            return Computed(rows, torch.stack(losses))

    def _scalars(self, plan: "Plan", codec: Codec) -> Computed:
        """What clients of one codec encode that make scalars and no gradients."""
        work = Work(plan.round, plan.present, plan.batches)
        current: Any = codec.at_round(plan.round)
        if self._source == "losses" or self.config.trains_locally:
            return self._client_step.slopes(self.flat, work, current, plan.keys)
        return self._client_step.derivatives(self.flat, work, current.along_directions(), plan.keys)

    def updates_of(self, round_number: int, flat: NDArray[np.float32], clients: Sequence[int]) -> list[Update]:
        """Return the updates of some clients in a round that starts from a model: for engines whose server is far away.

        Noise is drawn from the operating system, since whoever has the config could repeat what follows from its seed.

        Args:
            round_number: from 0.
            flat: the model [d] that the round starts from.
            clients: their numbers; all must be asked in that round.

        Returns:
            One update for each, in the order of their numbers.

        """
        plan, computed = self._compute_for(round_number, flat, clients)
        uploads: Uploads | MixedUploads = self._encode_for(computed, plan, slice(None))
        return uploads.updates()

    def elements_of(
        self, round_number: int, flat: NDArray[np.float32], clients: Sequence[int]
    ) -> list[NDArray[np.uint64]]:
        """Return what some clients add to a secure sum, not yet masked; noise is drawn as in `updates_of`.

        Args:
            round_number: as in `updates_of`, and so are flat and clients.
            flat: the model [d].
            clients: their numbers.

        Returns:
            Integers for each, in the order of their numbers.

        """
        plan, computed = self._compute_for(round_number, flat, clients)
        # Each by itself: of several at once, the first has the noise of all.
        return [self._encode_for(computed, plan, slice(i, i + 1)).elements[0] for i in range(len(plan.keys))]

    def _compute_for(
        self, round_number: int, flat: NDArray[np.float32], clients: Sequence[int]
    ) -> "tuple[Plan, Computed]":
        """What some clients encode in a round that starts from this model."""
        self._server.flat, self._server.next_round = flat, round_number
        with reproducible_arithmetic(self.config):
            plan = self._plan_of(round_number)
            plan = plan.part([place for place, client in enumerate(plan.present) if int(client) in set(clients)])
        return plan, answered(self._compute(plan))

    def _encode_for(self, computed: Computed, plan: "Plan", group: slice) -> Any:
        """What those of a group send, with noise that nobody can repeat."""
        try:
            with reproducible_arithmetic(self.config):
                return self._encode(computed.rows[group], plan.part(group), is_private=True)
        except GradientError as error:
            raise self._cause_of(error, computed) from None

    def _encode(
        self, computed: Tensor | NDArray[np.float64] | list[Any], plan: "Plan", *, is_private: bool = False
    ) -> Any:
        noise: list[Any] | None = [SystemNoise() for _ in plan.keys] if is_private else None
        if self._noisy and not is_private:
            noise = list(sampling.noise_sources(self.config, plan.round, plan.present))
        if isinstance(computed, list):
            return self._uplink.encode_scalars(plan.round, computed, plan.keys, plan.present.tolist(), noise)
        if not isinstance(computed, Tensor):
            return self._uplink.encode_scalars(plan.round, computed, plan.keys, noise)
        rows = computed if computed.is_cuda else computed.numpy()
        return self._uplink.encode(plan.round, rows, plan.keys, plan.present.tolist(), noise)

    def _cause_of(self, error: GradientError, computed: Computed) -> GradientError:
        """Say what of the examples makes gradients NaN, if that is what does; else it is the step size."""
        cause = self._client_step.cause(computed)
        return error if cause is None else GradientError(f"{cause} ({error})")

    def _note(self, mean: AnyMean | None) -> None:
        if self.config.is_followed:
            self.bundle = (Bundle() if mean is None else mean.bundle()).pack()
            self._downlink.add(len(self.bundle))

    @property
    def is_remembered(self) -> bool:
        """Whether clients or the server keep what no bundle tells, so that rounds have to be computed again."""
        return self.memory is not None or self._statistics is not None

    def advance(self, record: Record, *, changes_model: bool) -> None:
        """Go one round further by what a journal says of it, without clients.

        record: of the round. changes_model: whether the model is still that of this round, and not, from a checkpoint,
        of a later one.
        """
        k = self.next_round
        self.follow_again([len(record.bundle)])
        if changes_model:
            self._server.apply(record.bundle, bundle_codecs(self.config, self.codecs, k))
        else:
            self.next_round = k + 1

    @property
    def bundle_sizes(self) -> tuple[int, ...]:
        """Bytes of the bundles of all rounds so far, where clients are sent them."""
        return self._downlink.sizes

    def follow_again(self, sizes: Sequence[int]) -> None:
        """Take note of what clients were sent from the next round on, given the bytes of the bundles."""
        for k, size in enumerate(sizes, self.next_round):
            self._downlink.send(sampling.sample_clients(self.config, k).tolist(), k)
            self._downlink.add(size)

    def begin_at(self, flat: Tensor) -> None:
        """Take another initial model than the one that was made here: that of a journal."""
        if flat.shape != self.flat.shape or self.next_round != 0:
            raise RunError(
                f"an initial model of {flat.numel()} parameters came, expected {self.model.d}, and at round 0"
            )
        self._server = replica_at(flat, self.config, self.model.shapes)
        self.journal_header = self.journal_header._replace(model_sha256=model_sha256(self.flat))

    def _clock(self) -> float:
        """Seconds, when everything that was asked of the device so far is done."""
        if self.config.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _plan_of(self, k: int) -> "Plan":
        """Every choice of a round: a pure function of the config and k."""
        if self._prepared is not None and self._prepared.round == k:
            return self._prepared
        config = self.config
        clients = sampling.sample_clients(config, k)  # line 3
        answering = sampling.survivors(config, k)  # the others drop out after the model was sent to them
        keys = [key for key, here in zip(sampling.round_keys(config, k, clients), answering, strict=True) if here]
        present = clients[answering]
        examples = [self._examples_of(client) for client in present.tolist()]
        return Plan(
            round=k,
            selected=clients,
            present=present,
            keys=keys,
            batches=sampling.sample_batches(config, k, present, examples),
            weights=[float(held.size) for held in examples] if config.weighting == "examples" else None,
        )

    def _prepare(self, k: int) -> None:
        """Choose for the next round while the GPU is busy with this one."""
        if self.config.device == "cuda" and k < self.config.rounds:
            self._prepared = self._plan_of(k)

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
        remembered = {} if self.memory is None else self.memory.state()
        server: dict[str, Any] = self._server.step.state
        return {
            "model": self.flat.cpu(),
            **{f"server.{name}": torch.as_tensor(value).cpu() for name, value in server.items()},
            **{f"feedback.{client}": torch.from_numpy(vector) for client, vector in remembered.items()},
            **({} if self._statistics is None else {STATISTICS: self._statistics.vector.cpu()}),
        }

    @property
    def state_lengths(self) -> dict[str, set[int]]:
        """How long vectors of the state may be that are not as long as the model."""
        lengths = {} if self._statistics is None else {STATISTICS: {len(self._statistics)}}
        return lengths | (self._server.step.lengths if isinstance(self._server.step, TorchStep) else {})

    def load_state(self, state: dict[str, Tensor], next_round: int) -> None:
        """Go on from a checkpoint."""
        remembered = {name: state[name] for name in state if name.startswith("feedback.")}
        names = ["model", *(f"server.{name}" for name in self._server.step.state)]
        kept = set() if self._statistics is None else {STATISTICS}
        wrong = set(state) != {*names, *remembered, *kept} or (remembered and self.memory is None)
        wrong = wrong or not all(_is_client(name.removeprefix("feedback."), self.config.clients) for name in remembered)
        lengths = self.state_lengths
        for name, vector in state.items():
            wrong = wrong or vector.dtype != torch.float32 or vector.numel() not in lengths.get(name, {self.model.d})
        if wrong:
            raise RunError(
                "the checkpoint is of another model, server or codec; resume with the config that it was made with"
            )
        if self.memory is not None:
            self.memory.load(
                {int(name.removeprefix("feedback.")): vector.numpy() for name, vector in remembered.items()}
            )
        if self._statistics is not None:
            self._statistics.vector = state[STATISTICS].to(self._statistics.vector.device)
        on_gpu = self.config.device == "cuda"
        vectors: Any = [state[name].cuda() if on_gpu else state[name].numpy() for name in names]
        self._server.load(tuple(vectors), next_round)


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _statistics_of(config: RunConfig, objective: Objective) -> RunningStatistics | None:
    """The server's means of batch norm statistics, where clients send theirs."""
    if not objective.sends_statistics:
        return None
    return RunningStatistics(
        objective.model.module, hidden=config.secure is not None or config.codec.protection() is not None
    )


def _uplink_of(
    config: RunConfig,
    codecs: Sequence[Codec],
    d: int,
    memories: Sequence[ErrorFeedback],
    links: Sequence[int],
) -> Any:
    """Return the path that a config's updates take: the one place where its settings become parts.

    codecs: those of the links, or that of all clients. memories: none, or one a codec. links: see MixedUplink.
    """
    try:
        if config.secure is not None:
            from fedmpdd.simulation.secure import SummedUplink  # needs a package that others do not

            codecs[0].check(d)
            return SummedUplink(config.secure, codecs[0], d, config.per_round, config.downlink_bits)
        protections = dict(zip(links, (one.codec.protection() for one in config.of_links), strict=True))
        uplinks = [
            Uplink(
                codec,
                d,
                config.codec.keys,
                memory=memories[number] if memories else None,
                protection=protections[number],
                mean_bits=config.downlink_bits,
                robust=config.robust,
            )
            for number, codec in enumerate(codecs)
        ]
        return MixedUplink(uplinks, links, config.spread) if config.links else uplinks[0]
    except InputError as error:
        raise ConfigError(f"{'links' if config.links else 'codec'}: {error}") from None


def _is_client(text: str, clients: int) -> bool:
    return len(text) <= 10 and text.isascii() and text.isdigit() and str(int(text)) == text and int(text) < clients


def make_federation(config: RunConfig, data_dir: Path | None = None) -> Federation:
    """Load the data of a config, deal it out, and build its federation."""
    return federation_of(config, load_task(config, data_dir))


def _mean_of(losses: NDArray[np.float64]) -> float:
    """The mean of the losses that are numbers; NaN where none is."""
    return math.nan if np.isnan(losses).all() else float(np.nanmean(losses))


def federation_of(config: RunConfig, task: Task | Dataset, *, frames: bool = False) -> Federation:
    """Build the federation of a config on a task, or on a dataset that is dealt out first; see Federation."""
    backend()  # wrong settings of the kernels are bad input too
    federation = Federation(config, task, frames=frames)
    federation.check_batch()
    return federation
