"""The server's side: FedAvg's sampling and conventions, updates by any codec, one step along their mean."""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedmpdd.codecs import Update
from fedmpdd.directions import Key, check_key, derive_seed, partitioned_keys
from fedmpdd.errors import ConfigError, FedmpddError, ReplyError
from fedmpdd.federation.config import CodecConfig, ServerConfig, parse_codec
from fedmpdd.federation.server import ServerStep
from fedmpdd.flower.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedmpdd.flower.layout import Float32, Layout, pack_flat
from fedmpdd.flower.order import ORDER, ROUND, UPDATE, Order, Returned

_PROTECTION = ("clip", "noise_multiplier", "scale_grid")
MOST_EXAMPLES = 2**53  # that a client may claim: beyond it sums of claims lose their last digits
NO_CLIENT = 2**64 - 1  # in the place of a client's number: a seed of the whole round, as in the local engine


@dataclass(frozen=True)
class Contribution:
    """What one client gave to a round."""

    node: int
    update: Update
    weight: float
    metrics: dict[str, Any]
    frame_bytes: int

    @property
    def magnitude(self) -> float:
        """Root mean square of its scale and scalars: of one codec, it grows with the gradient."""
        floats = [array for array in self.update.arrays if array.dtype.kind == "f"]
        squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in floats)
        return math.sqrt(squares / max(1, sum(array.size for array in floats)))


class FedMPDD(FedAvg):
    """A Flower strategy that takes updates of fedmpdd's codecs; clients need `fedmpdd_mod`.

    Parameters are those of FedAvg, and by name:

    codec: as on the command line, `mpdd:m=400:bits=1:family=hadamard:keys=partitioned`. With keys "sent", the default,
        each client draws its seed from its operating system; "partitioned" and "shared" are assigned by the server.
        "auto": one-bit hadamard with so many directions that the error of a round's mean is about the mean itself.
    returns: what train functions give back, "model" (after some local steps) or "gradient".
    lr: the server's step size. If clients return models and none is given: 1, plain averaging, divided by one plus the
        relative error of the round's mean, so that a codec that saves more steps more carefully.
    server: its optimiser, as in a config of fedmpdd; SGD if not given.
    weighting: "examples", by the metric `weighted_by_key`, or "equal".
    seed: makes the seeds that the server assigns repeatable, for simulations; not if secrecy of them matters.
    checkpoint: a file that holds the model after every round, and from which a new start goes on.
    max_value, max_ratio: an update is dropped if a number in it is larger than the one, or if it is so many times
        larger than the median update of any round so far, or claims so many times more examples.
    """

    def __init__(
        self,
        *args: Any,
        codec: str = "auto",
        returns: Returned = "model",
        lr: float | None = None,
        server: ServerConfig | None = None,
        weighting: str = "examples",
        seed: int | None = None,
        checkpoint: str | Path | None = None,
        max_value: float = 1e6,
        max_ratio: float = 1e3,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.codec = None if codec == "auto" else _checked(parse_codec(codec))
        if returns not in ("model", "gradient"):
            raise ConfigError(f'returns = {returns!r}: expected "model" or "gradient"')
        if weighting not in ("examples", "equal"):
            raise ConfigError(f'weighting = {weighting!r}: expected "examples" or "equal"')
        if lr is None and returns == "gradient":
            raise ConfigError('returns = "gradient" needs lr, the step size of the server')
        if lr is not None and not (lr > 0 and math.isfinite(lr)):
            raise ConfigError(f"lr = {lr}: expected a finite number above 0")
        self.returns: Returned = returns
        self.lr = 1.0 if lr is None else lr
        self._damped = lr is None
        self.server = server or ServerConfig()
        if self.server.control is not None:
            raise ConfigError("server.control is for the local engine: clients here do not follow every round")
        self.weighting = weighting
        self.max_value, self.max_ratio = max_value, max_ratio
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self._seed = secrets.randbits(63) if seed is None else seed
        self._rounds_before = 0  # of an earlier start, from a checkpoint
        self._usual: float | None = None  # magnitude of an update: the largest median of a round so far
        self._model: Float32 | None = None
        self._layout: Layout | None = None
        self._step: ServerStep | None = None
        self._orders: dict[int, Order] = {}  # of the round at work, by node

    def summary(self) -> None:
        """Log what the strategy does, FedAvg's lines first."""
        super().summary()
        log(INFO, "\t└──> Updates:")
        log(
            INFO, "\t\t├── Codec: %s", "auto" if self.codec is None else f"{self.codec.build()}, keys {self.codec.keys}"
        )
        log(
            INFO,
            "\t\t└── Clients return a %s, the server steps by %s (%s)",
            self.returns,
            self.lr,
            self.server.optimiser,
        )

    # --------------------------------------------------------------------------------------------- a start

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds, or, with a checkpoint, those that are left of them. See Flower's Strategy."""
        self._begin(initial_arrays)
        assert self._layout is not None
        assert self._model is not None
        if self._rounds_before:
            log(INFO, "%s holds %s rounds; going on from there", self.checkpoint, self._rounds_before)
            initial_arrays = self._layout.unflatten(self._model)
        if self._rounds_before >= num_rounds:
            log(INFO, "all %s rounds are done", num_rounds)
            return Result(arrays=initial_arrays)
        evaluate = evaluate_fn and (lambda k, arrays: evaluate_fn(k + self._rounds_before, arrays))
        return super().start(
            grid,
            initial_arrays,
            num_rounds - self._rounds_before,
            timeout,
            train_config,
            evaluate_config,
            evaluate,
        )

    def _begin(self, arrays: ArrayRecord) -> None:
        self._layout = Layout.of(arrays)
        self._model = self._layout.flatten(arrays)
        self._step = ServerStep(self.server, self.lr, self._layout.d)
        self._usual, self._rounds_before = None, 0
        if self.codec is not None:
            self._order(1).make_session()  # what does not fit the model is refused now
        if self.checkpoint is not None and self.checkpoint.is_file():
            found = read_checkpoint(self.checkpoint, self._layout, tuple(self._step.state))
            self._rounds_before, self._usual = found.rounds, found.usual
            self._model = found.model
            self._step.state = {name: torch.from_numpy(value) for name, value in found.server.items()}

    # ------------------------------------------------------------------------------------------- a round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as FedAvg does, and give each the model as one array, and its order."""
        if self._layout is None:  # a user drives the rounds without `start`
            self._begin(arrays)
        assert self._layout is not None
        k = server_round + self._rounds_before
        self._model = self._layout.flatten(arrays)
        flat = pack_flat(self._model)
        messages = sorted(super().configure_train(k, flat, config, grid), key=lambda one: one.metadata.dst_node_id)
        nodes = [message.metadata.dst_node_id for message in messages]
        if self.codec is None:
            self.codec = _automatic(self._layout.d, max(1, len(nodes)))
            log(INFO, "codec: %s for %s coordinates and %s nodes", self.codec.build(), self._layout.d, len(nodes))
        order = self._order(k)
        keys = self._keys(self.codec.keys, k, len(nodes))
        self._orders = {node: order.for_client(key) for node, key in zip(nodes, keys, strict=True)}
        for message, node in zip(messages, nodes, strict=True):
            own = ConfigRecord({**config, ORDER: self._orders[node].as_text()})
            message.content = RecordDict({self.arrayrecord_key: flat, self.configrecord_key: own})
        return messages

    def _order(self, k: int) -> Order:
        codec = self.codec
        assert codec is not None
        assert self._layout is not None
        values = {"name": codec.name, **(codec.model_extra or {})}
        protection = codec.protection()
        given = {} if protection is None else {name: getattr(protection, name) for name in _PROTECTION}
        return Order(
            k,
            values,
            self._layout,
            self.returns,
            error_feedback=codec.error_feedback,
            protection={name: value for name, value in given.items() if value is not None},
        )

    def _keys(self, policy: str, k: int, count: int) -> Sequence[Key | None]:
        round_seed = derive_seed(self._seed, k - 1, NO_CLIENT)  # the local engine counts rounds from 0
        if policy == "partitioned":
            return partitioned_keys(round_seed, count)
        if policy == "shared":
            return [check_key(round_seed)] * count
        return [None] * count

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See FedAvg; the model goes as it is, so that evaluate functions need no mod."""
        return super().configure_evaluate(server_round + self._rounds_before, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See FedAvg; clients whose metrics do not fit together cost the metrics of the round, not the run."""
        try:
            return super().aggregate_evaluate(server_round, replies)
        except Exception as error:  # Flower's checks, or a user's function, on clients' numbers
            log(WARNING, "evaluate metrics could not be aggregated: %s", error)
            return None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the updates that are sound, and step along their mean."""
        assert self._layout is not None
        assert self._model is not None
        k = server_round + self._rounds_before
        answered, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        contributions = self._sound(k, answered)
        dropped = len(answered) - len(contributions)
        log(
            INFO,
            "round %s: %s of %s nodes contributed, %s updates dropped, %s failed or silent",
            k,
            len(contributions),
            len(self._orders),
            dropped,
            len(self._orders) - len(answered),
        )
        if not contributions:
            return None, None
        updates = [contribution.update for contribution in contributions]
        weights = [contribution.weight for contribution in contributions] if self.weighting == "examples" else None
        assert self._step is not None
        before = {name: value.clone() for name, value in self._step.state.items()}
        estimate = torch.from_numpy(updates[0].codec.decode_mean(updates, weights))
        if self._damped:
            estimate *= self._damping(k, updates)
        stepped = self._step(torch.from_numpy(self._model), estimate, k - 1).numpy()
        if not np.isfinite(stepped).all():
            self._step.state = before
            log(WARNING, "round %s: the step would make the model infinite; it stays as it was", k)
            return None, None
        self._model = stepped
        if self.checkpoint is not None:
            state = {name: value.numpy() for name, value in self._step.state.items()}
            write_checkpoint(self.checkpoint, Checkpoint(k, stepped, state, self._usual), self._layout)
        return self._layout.unflatten(stepped), self._metrics(contributions, dropped)

    # -------------------------------------------------------------------------------- what replies are worth

    def _sound(self, k: int, replies: Iterable[Message]) -> list[Contribution]:
        """The contributions that count, in the order of nodes; the others are told, one line each."""
        read: dict[int, Contribution] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in read:
                    raise ReplyError("it answered already")
                read[node] = self._read(k, node, reply.content)
            except FedmpddError as error:
                _log_drop(k, node, str(error))
        kept = []
        weight = _lower_median([own.weight for own in read.values()])
        # Gradients shrink while a model learns, on some clients sooner: what was usual once is never too large.
        usual = _lower_median([own.magnitude for own in read.values()]) if self._usual is None else self._usual
        for node in sorted(read):
            if usual > 0 and read[node].magnitude > self.max_ratio * usual:
                _log_drop(k, node, f"it is {read[node].magnitude / usual:.3g} times larger than usual")
            elif self.weighting == "examples" and read[node].weight > self.max_ratio * weight:
                _log_drop(k, node, f"it claims {read[node].weight / weight:.3g} times more examples than usual")
            else:
                kept.append(read[node])
        if kept:
            self._usual = max(self._usual or 0.0, _lower_median([own.magnitude for own in kept]))
        return kept

    def _read(self, k: int, node: int, content: RecordDict) -> Contribution:
        order = self._orders.get(node)
        if order is None:
            raise ReplyError("it was not asked in this round")
        record = content.config_records.get(ORDER)
        if record is None:
            raise ReplyError(f"its reply has {sorted(content)}, expected {ORDER!r}: does its app use fedmpdd_mod?")
        values = dict(record)
        frame, number = values.pop(UPDATE, None), values.pop(ROUND, None)
        if number != k:
            raise ReplyError(f"its update is for round {number!r}, this is {k}")
        if not isinstance(frame, bytes):
            raise ReplyError(f"its update is {type(frame).__name__}, expected bytes")
        update = order.make_session().unpack(frame, order.key if order.make_codec().needs_key else None)
        floats = [array for array in update.arrays if array.dtype.kind == "f"]
        largest = max((float(np.abs(array).max(initial=0.0)) for array in floats), default=0.0)
        if largest > self.max_value:
            raise ReplyError(f"a number in it is {largest:.3g}, above max_value = {self.max_value:g}")
        return Contribution(node, update, self._weight(values), values, len(frame))

    def _weight(self, metrics: dict[str, Any]) -> float:
        weight = metrics.get(self.weighted_by_key)
        if self.weighting == "equal" and weight is None:
            return 1.0
        if not isinstance(weight, int | float) or not 0 < weight <= MOST_EXAMPLES:
            raise ReplyError(f"its metric {self.weighted_by_key!r} is {weight!r}, expected a number above 0")
        return float(weight)

    def _metrics(self, contributions: list[Contribution], dropped: int) -> MetricRecord:
        shared = sorted(set.intersection(*(set(own.metrics) for own in contributions)))
        found = MetricRecord()
        try:
            records = [
                RecordDict({"metrics": MetricRecord({name: own.metrics[name] for name in shared})})
                for own in contributions
            ]
            if shared:
                found = self.train_metrics_aggr_fn(records, self.weighted_by_key)
        except Exception as error:  # a user's function, on clients' numbers: no reason to lose the round
            log(WARNING, "metrics could not be aggregated: %s", error)
        found["fedmpdd-contributors"] = len(contributions)
        found["fedmpdd-dropped"] = dropped
        found["fedmpdd-update-bytes"] = sum(own.frame_bytes for own in contributions)
        return found

    def _damping(self, k: int, updates: list[Update]) -> float:
        """How much of the estimated step to take: the share that is best if gradients agree."""
        assert self.codec is not None
        codec = updates[0].codec
        if self.codec.error_feedback or codec.variance_is_bound or not codec.unbiased:
            return 1.0
        error = codec.variance(updates[0].d, len(updates), partitioned=self.codec.keys == "partitioned")
        if error is None:
            return 1.0
        share = 1 / (1 + error)
        if k == 1 + self._rounds_before:
            log(INFO, "relative error of the round's mean %.3g: the server takes %.3g of each step", error, share)
        return share


def _checked(codec: CodecConfig) -> CodecConfig:
    if codec.build().from_losses:
        raise ConfigError(f"codec {codec.name!r} sends losses; a train function returns a model or a gradient")
    if codec.keys == "derived":
        raise ConfigError('keys = "derived" is for the local engine; use "sent", "partitioned" or "shared"')
    if codec.memory is not None:
        raise ConfigError(f"memory = {codec.memory!r} is for the local engine; use error_feedback, or leave it out")
    return codec


def _automatic(d: int, clients: int) -> CodecConfig:
    """One-bit hadamard, a relative error of about one: π/2 · d / (m · clients)."""
    return parse_codec(f"mpdd:m={min(d, math.ceil(math.pi / 2 * d / clients))}:bits=1:family=hadamard")


def _lower_median(values: list[float]) -> float:
    """Of two the smaller one: half of them may be wrong."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _log_drop(k: int, node: int, reason: str) -> None:
    log(WARNING, "round %s: dropped the update of node %s: %s", k, node, reason)
