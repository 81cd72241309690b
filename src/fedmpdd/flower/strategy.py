"""The server's side: FedAvg's sampling and conventions, updates by any codec, one step along their mean."""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedmpdd.codecs import Batch
from fedmpdd.directions import Key, check_key, derive_seed, partitioned_keys, round_seed
from fedmpdd.directions.keys import NO_CLIENT
from fedmpdd.errors import ConfigError, InputError, RunError
from fedmpdd.flower.buffers import BUFFERS, STATISTICS, Arrays, BatchNorm, mean_statistics
from fedmpdd.flower.caution import Caution, DecodedMean
from fedmpdd.flower.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedmpdd.flower.downlink import DownlinkKind, Models, check_downlink, make_downlink
from fedmpdd.flower.instructions import ReplicaSettings, Returned, RoundInstructions
from fedmpdd.flower.layout import Float32, ParameterLayout
from fedmpdd.flower.mod import REPLICA_LOST
from fedmpdd.flower.replay import make_replica
from fedmpdd.flower.replies import Contribution, Replies
from fedmpdd.flower.secure_strategy import SecureRound, check_secure, protection_of
from fedmpdd.secure_sum import Roster
from fedmpdd.server.replica import Replica
from fedmpdd.server.step import StepRule
from fedmpdd.uplink import Mean, Reference, RobustMean, Screening, SecureRounds
from fedmpdd.uplink.codec_config import CodecConfig, parse_codec
from fedmpdd.wire.bundle import Bundle

_PROTECTION = ("clip", "noise_multiplier", "scale_grid")


class FedMPDD(FedAvg):
    """A Flower strategy that takes updates of fedmpdd's codecs; clients need `fedmpdd_mod`.

    Parameters are those of FedAvg, and by name:

    codec: as on the command line, `mpdd:m=400:bits=1:family=hadamard:keys=partitioned`. With keys "sent", the default,
        each client draws its seed from its operating system; "partitioned" and "shared" are assigned by the server.
        "auto": one-bit hadamard with so many directions that the error of a round's mean is about the mean itself.
    returns: what train functions give back, "model" (after some local steps) or "gradient".
    lr: the server's step size. If clients return models and none is given: 1, plain averaging, or less where the error
        of the round's mean would do harm, see `fedmpdd.flower.caution`.
    server: its optimiser, a `StepRule`; SGD if not given.
    weighting: "examples", by the metric `weighted_by_key`, or "equal".
    downlink: "model", the whole model to every node in every round, or "replay", what the rounds that a node missed
        added to it, where that is less. All nodes then see all updates, but not with downlink_bits.
    downlink_bits: with mpdd and shared keys, the server steps along the mean of the updates, rounded to scalars of 32,
        16, 8, 4 or 1 bits: what a round adds is one update, whatever the number of nodes.
    seed: makes the seeds that the server assigns repeatable, for simulations; not if secrecy of them matters.
    checkpoint: a file that holds the model after every round, and from which a new start goes on.
    robust: how the mean is taken so that a minority of lying nodes cannot move it far, a `RobustMean`; True is the
        default one, and False the plain mean.
    secure: updates go into secure sums, so that the server sees no single one; `SecureRounds` has clip, noise and how
        many nodes may vanish. It needs weighting="equal", robust=False and a codec whose numbers add up.
    roster: the verify keys of all nodes of secure sums, who then sign; every node has it from somebody else.
    frozen: names of arrays that are not trained, such as ("embed.*",): they stay as they are, and no update carries
        them. Arrays that are no floats never are.
    batch_norm: for models that have some: "averaged", nodes send the statistics of batch norm beside their updates and
        the server averages them, or "local", they stay on each node.
    max_value, max_ratio: an update is dropped if its magnitude is larger than the one, or so many times larger than
        the median update of any round so far, or if it claims so many times more examples.
    """

    def __init__(
        self,
        *args: Any,
        codec: str = "auto",
        returns: Returned = "model",
        lr: float | None = None,
        server: StepRule | None = None,
        weighting: str = "examples",
        downlink: DownlinkKind = "model",
        downlink_bits: int | None = None,
        seed: int | None = None,
        checkpoint: str | Path | None = None,
        max_value: float = 1e6,
        max_ratio: float = 1e3,
        robust: bool | RobustMean = True,
        secure: SecureRounds | None = None,
        roster: Roster | None = None,
        frozen: Sequence[str] = (),
        batch_norm: BatchNorm | None = None,
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
        if not isinstance(robust, bool | RobustMean):
            raise ConfigError(f"robust = {robust!r}: expected True, False for the plain mean, or a RobustMean")
        check_downlink(downlink, downlink_bits, self.codec)
        self.downlink: DownlinkKind = downlink
        self.downlink_bits = downlink_bits
        self.returns: Returned = returns
        self.lr = 1.0 if lr is None else lr
        self._careful = lr is None
        self._caution = Caution()
        self.server = server or StepRule()
        self.weighting = weighting
        self.max_value, self.max_ratio = max_value, max_ratio
        self.robust = (RobustMean() if robust else None) if isinstance(robust, bool) else robust
        if isinstance(frozen, str) or batch_norm not in (None, "averaged", "local"):
            raise ConfigError(
                f"frozen = {frozen!r}, batch_norm = {batch_norm!r}: expected a tuple of names, such as "
                '("embed.*",), and None, "averaged" or "local"'
            )
        self.frozen, self.batch_norm = tuple(frozen), batch_norm
        check_secure(secure, roster, self.codec, weighting, self.robust, tells_statistics=batch_norm == "averaged")
        self.secure, self.roster = secure, roster
        self.sum: SecureRound | None = None  # of the round at work
        self._sums = 0  # so far
        self._timeout = 3600.0
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self._seed = secrets.randbits(63) if seed is None else seed
        self._rounds_before = 0  # of an earlier start, from a checkpoint
        self._replies: Replies | None = None
        self._layout: ParameterLayout | None = None
        self._buffers: Arrays = {}
        self._server: Replica[Float32] | None = None
        self._downlink = Models()
        self._downlink_bytes = 0  # of the round at work, all nodes together
        self._orders: dict[int, RoundInstructions] = {}  # of the round at work, by node

    def summary(self) -> None:
        """Log what the strategy does, FedAvg's lines first."""
        super().summary()
        log(INFO, "\t└──> Updates:")
        log(
            INFO, "\t\t├── Codec: %s", "auto" if self.codec is None else f"{self.codec.build()}, keys {self.codec.keys}"
        )
        log(
            INFO,
            "\t\t├── Clients return a %s, the server steps by %s (%s)",
            self.returns,
            self.lr,
            self.server.optimiser,
        )
        log(INFO, "\t\t├── Mean: %s", "plain" if self.robust is None else self.robust)
        if self.secure is not None:
            log(INFO, "\t\t├── Sums: %s", self.secure)
        bits = "" if self.downlink_bits is None else f", means of {self.downlink_bits} bits"
        log(INFO, "\t\t└── Downlink: %s%s", self.downlink, bits)

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
        self._timeout = timeout
        self._begin(initial_arrays)
        assert self._layout is not None
        assert self._server is not None
        if self._rounds_before:
            log(INFO, "%s holds %s rounds; going on from there", self.checkpoint, self._rounds_before)
            initial_arrays = self._model()
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
        self._layout = ParameterLayout.of(arrays, self.frozen, self.batch_norm)
        self._buffers = self._layout.buffers.of(arrays)
        self._server = make_replica(self.server, self.lr, self._layout.flatten(arrays))
        screening = Screening(self.max_value, self.max_ratio, weighted=self.weighting == "examples")
        self._replies = Replies(self.weighting, self.weighted_by_key, screening)
        self._rounds_before = 0
        self._caution = Caution()
        self._downlink = make_downlink(self.downlink, self._layout, self._follow)
        if self.codec is not None:
            self._order(1).make_uplink()  # what does not fit the model is refused now
        if self.checkpoint is not None and self.checkpoint.is_file():
            saved = read_checkpoint(self.checkpoint, self._layout, tuple(self._server.step.state))
            screening.reference = _reference_of(self.checkpoint, saved)
            self._caution = _caution_of(self.checkpoint, saved) if self._careful else Caution()
            self._rounds_before = saved.rounds
            self._server.load((saved.model, *(value.copy() for value in saved.server.values())), saved.rounds)
            if saved.statistics is not None:
                self._buffers = self._layout.buffers.with_statistics(self._buffers, saved.statistics)

    def _model(self) -> ArrayRecord:
        """The model as it is now."""
        assert self._layout is not None
        assert self._server is not None
        return self._layout.unflatten(self._server.flat, self._buffers)

    # ------------------------------------------------------------------------------------------- a round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as FedAvg does, and give each the model as one array, or what it misses of it, and its order."""
        if self._layout is None:  # a user drives the rounds without `start`
            self._begin(arrays)
        assert self._layout is not None
        assert self._server is not None
        k = server_round + self._rounds_before
        self._server.flat, self._server.next_round = self._layout.flatten(arrays), k - 1
        self._buffers = self._layout.buffers.of(arrays)
        messages = sorted(super().configure_train(k, arrays, config, grid), key=lambda one: one.metadata.dst_node_id)
        if self.secure is not None:
            messages = self._begin_sum(k, self.secure, grid).gather(messages)
        nodes = [message.metadata.dst_node_id for message in messages]
        if self.codec is None:
            self.codec = _automatic(self._layout.d, max(1, len(nodes)))
            log(INFO, "codec: %s for %s coordinates and %s nodes", self.codec.build(), self._layout.d, len(nodes))
        order = self._order(k)
        keys = self._keys(self.codec.keys, k, len(nodes))
        self._orders, self._downlink_bytes = {}, 0
        self._downlink.begin(k, self._server, self._expected_bytes(order, len(nodes)))
        for message, node, key in zip(messages, nodes, keys, strict=True):
            delivery = self._downlink.delivery(node)
            self._orders[node] = replace(order.for_client(key), follow=delivery.follow)
            beside = self._beside(whole=delivery.rounds is None)
            self._downlink_bytes += delivery.nbytes + sum(map(len, beside.values()))
            settings = ConfigRecord({**config, **beside})
            message.content = delivery.content(
                self._orders[node], settings, self.arrayrecord_key, self.configrecord_key
            )
            if self.sum is not None:
                self.sum.add_inbox(message)
        return messages

    def _beside(self, *, whole: bool) -> dict[str, bytes]:
        """What a message has of the model's buffers: all of them, or what changes of them from round to round."""
        assert self._layout is not None
        layout = self._layout.buffers
        if not layout:
            return {}
        if whole:
            return {BUFFERS: layout.pack(self._buffers)}
        return {STATISTICS: layout.statistics(self._buffers).astype("<f4").tobytes()} if layout.averaged else {}

    def _begin_sum(self, k: int, secure: SecureRounds, grid: Grid) -> SecureRound:
        order = self._order(k)
        assert self.codec is not None
        (key,) = self._keys(self.codec.keys, k, 1)
        self._sums += 1
        codec, d, bits = order.make_codec(), order.layout.d, self.downlink_bits or 32
        self.sum = SecureRound(k, self._sums, secure, codec, d, key, bits, grid, self._timeout, self.roster)
        return self.sum

    @property
    def _follow(self) -> ReplicaSettings:
        """What a node must know to follow, but for the hash of a model."""
        return ReplicaSettings("", self.arrayrecord_key, self.server, self.lr, self._mean_bits)

    @property
    def _mean_bits(self) -> int | None:
        """The bits of the one update that stands for a round, None where the updates themselves do."""
        if self.secure is not None and self.codec is not None and self.codec.build().scalar_codec is not None:
            return self.downlink_bits or 32
        if self.codec is None or self.robust is None or self.downlink_bits is not None:
            return self.downlink_bits
        return 32 if self.robust.trims(self.codec.build(), shared=self.codec.keys == "shared") else None

    def _expected_bytes(self, order: RoundInstructions, nodes: int) -> int:
        """How many bytes the updates of the round's bundle will have, if all nodes answer."""
        codec = replace(order, follow=self._follow).bundle_codec(order.round)
        return codec.bytes_per_update(order.layout.d) * (nodes if self._mean_bits is None else 1)

    def _order(self, k: int) -> RoundInstructions:
        codec = self.codec
        assert codec is not None
        assert self._layout is not None
        name, parameters = codec.registered()
        protection = codec.protection()
        given = {} if protection is None else {name: getattr(protection, name) for name in _PROTECTION}
        return RoundInstructions(
            k,
            {"name": name, **parameters},
            self._layout,
            self.returns,
            error_feedback=codec.error_feedback,
            protection={name: value for name, value in given.items() if value is not None},
            secure={} if self.secure is None else protection_of(self.secure),
        )

    def _keys(self, policy: str, k: int, count: int) -> Sequence[Key | None]:
        seed = round_seed(self._seed, k - 1)  # the local engine counts rounds from 0
        if policy == "partitioned":
            return partitioned_keys(seed, count)
        if policy == "shared":
            return [check_key(seed)] * count
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
        """Decode the updates that count, and step along their mean."""
        assert self._layout is not None
        assert self._server is not None
        assert self._replies is not None
        k = server_round + self._rounds_before
        answered, failed = self._check_and_log_replies(replies, is_train=True, validate=False)
        for reply in failed:
            if reply.error.code == REPLICA_LOST:
                self._downlink.note_failure(reply.metadata.src_node_id)
        if self.sum is not None:
            contributions, asked = self.sum.contributions(answered), self.sum.asked
            self._downlink_bytes += self.sum.bytes_down
        else:
            contributions, asked = self._replies.contributions(k, self._orders, answered), len(self._orders)
        for contribution in contributions:
            self._downlink.confirm(contribution.client)
        dropped = len(answered) - len(contributions)
        log(
            INFO,
            "round %s: %s of %s nodes contributed, %s updates dropped, %s failed or silent",
            k,
            len(contributions),
            asked,
            dropped,
            asked - len(answered),
        )
        self._log_unchanged(contributions)
        if not self._take_step(k, contributions):
            self._downlink.add(Bundle(), 1.0, self._server.flat)
            return None, None
        if self.checkpoint is not None:
            reference, caution = self._replies.screening.reference.state(), self._caution
            layout = self._layout.buffers
            state = Checkpoint(
                k,
                self._server.flat,
                self._server.step.state,
                None,
                reference,
                caution.last,
                caution.state(),
                layout.statistics(self._buffers) if layout.averaged else None,
            )
            write_checkpoint(self.checkpoint, state, self._layout)
        return self._model(), self._metrics(contributions, dropped)

    def _take_step(self, k: int, contributions: list[Contribution]) -> bool:
        """Step along the mean; return False if the model stays as it was."""
        assert self._server is not None
        if not contributions:
            return False
        mean, share = self._mean(k, contributions)
        error = self._relative_error(mean, len(contributions))
        factor = share
        if error is not None:
            mean = DecodedMean(mean.batch, mean.weights)
            factor *= self._caution.share(mean.estimate(), error)
        before = tuple(vector.copy() for vector in self._server.vectors)
        self._server.take(mean, factor)
        if not np.isfinite(self._server.flat).all():
            self._server.load(before, k)
            log(WARNING, "round %s: the step would make the model infinite; it stays as it was", k)
            return False
        if error is not None:
            log(INFO, "round %s: relative error %.3g, the server takes %.3g of the step", k, error, factor)
            self._caution.remember(mean.estimate(), error, factor)
        self._take_statistics(contributions)
        self._downlink.add(mean.bundle(), factor, self._server.flat)
        return True

    def _take_statistics(self, contributions: list[Contribution]) -> None:
        """Average what nodes sent of their batch norm layers."""
        rows = [one.statistics for one in contributions if one.statistics is not None]
        if not rows or self._layout is None:
            return
        weights = [one.weight if self.weighting == "examples" else 1.0 for one in contributions]
        mean = mean_statistics(rows, weights, robust=self.robust is not None)
        self._buffers = self._layout.buffers.with_statistics(self._buffers, mean)

    def _log_unchanged(self, contributions: list[Contribution]) -> None:
        """Say which arrays no node has changed: an estimate's noise changes all that is trained."""
        names = set.intersection(*(set(one.unchanged) for one in contributions)) if contributions else set()
        if names and self._layout is not None:
            log(
                WARNING,
                "%s came back from all nodes as they were sent; if they are frozen or buffers, say so with frozen=%r, "
                "else the noise of updates changes them",
                ", ".join(sorted(names)),
                tuple(sorted(names)),
            )

    def _mean(self, k: int, contributions: list[Contribution]) -> tuple[Mean, float]:
        """What the server steps along, and how much of that step."""
        assert self._replies is not None
        updates = [contribution.update for contribution in contributions]
        if self.secure is not None:  # all have the mean of the sum
            return Mean(Batch.of(updates[:1])), 1.0
        weights = [contribution.weight for contribution in contributions] if self.weighting == "examples" else None
        reference = self._replies.screening.reference.median()
        order = self._orders[contributions[0].client]
        assert self.codec is not None
        shared = self.codec.keys == "shared"
        uplink = order.make_uplink(shared=shared, mean_bits=self.downlink_bits, robust=self.robust)
        sketch = derive_seed(self._seed, k, NO_CLIENT - 1)  # of directions that no client is told
        mean = uplink.mean(uplink.uploads_of(updates), weights, reference, sketch)
        return mean, 1.0 if self.robust is None else self.robust.share(updates, weights, reference)

    def _metrics(self, contributions: list[Contribution], dropped: int) -> MetricRecord:
        shared = sorted(set.intersection(*(set(one.metrics) for one in contributions)))
        metrics = MetricRecord()
        try:
            records = [
                RecordDict({"metrics": MetricRecord({name: one.metrics[name] for name in shared})})
                for one in contributions
            ]
            if shared:
                metrics = self.train_metrics_aggr_fn(records, self.weighted_by_key)
        except Exception as error:  # a user's function, on clients' numbers: no reason to lose the round
            log(WARNING, "metrics could not be aggregated: %s", error)
        metrics["fedmpdd-contributors"] = len(contributions)
        metrics["fedmpdd-dropped"] = dropped
        metrics["fedmpdd-update-bytes"] = sum(one.frame_bytes for one in contributions)
        metrics["fedmpdd-downlink-bytes"] = self._downlink_bytes
        return metrics

    def _relative_error(self, mean: Mean, clients: int) -> float | None:
        """The relative error of a round's mean; None where it says nothing of the step to take."""
        assert self.codec is not None
        codec = mean.batch.codec
        if not self._careful or self.codec.error_feedback or codec.variance_is_bound or not codec.unbiased:
            return None
        # Along the same directions clients err in the same way, and their mean as each of them.
        count = 1 if self.codec.keys == "shared" else clients
        return codec.variance(mean.batch.d, count, partitioned=self.codec.keys == "partitioned")


def _reference_of(path: Path, checkpoint: Checkpoint) -> Reference:
    """The reference of magnitudes that a checkpoint holds.

    Older files hold one number, `usual`, a root mean square of what was sent. For some codecs that is √d times smaller
    than a magnitude: held against it, honest updates of a large model would all be dropped. The first round says more.
    """
    if checkpoint.reference is None:
        return Reference()
    try:
        return Reference.from_state(checkpoint.reference)
    except InputError as error:
        raise RunError(f"{path} is damaged: {error}; name another file, or delete it to start anew") from None


def _caution_of(path: Path, checkpoint: Checkpoint) -> Caution:
    """What a checkpoint says of earlier steps; older files say nothing."""
    if checkpoint.estimate is None or checkpoint.caution is None:
        return Caution()
    try:
        return Caution.from_state(checkpoint.estimate, checkpoint.caution)
    except InputError as error:
        raise RunError(f"{path} is damaged: {error}; name another file, or delete it to start anew") from None


def _checked(codec: CodecConfig) -> CodecConfig:
    if codec.build().source == "losses":
        raise ConfigError(f"codec {codec.name!r} sends losses; a train function returns a model or a gradient")
    if codec.keys == "derived":
        raise ConfigError('keys = "derived" is for the local engine; use "sent", "partitioned" or "shared"')
    if codec.build().noise_from_key and codec.keys != "sent":
        raise ConfigError(
            f"the noise of {codec.name} is drawn from the key, and keys = {codec.keys!r} assigns it: whoever knows it "
            'takes the noise off again; use keys = "sent"'
        )
    return codec


def _automatic(d: int, clients: int) -> CodecConfig:
    """One-bit hadamard, a relative error of about one: π/2 · d / (m · clients)."""
    return parse_codec(f"mpdd:m={min(d, math.ceil(math.pi / 2 * d / clients))}:bits=1:family=hadamard")
