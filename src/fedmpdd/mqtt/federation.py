"""A config's training with clients at a broker: the server's side as a federation, and what its clients compute."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError
from fedmpdd.mqtt.broker import Broker
from fedmpdd.mqtt.client import Prepare
from fedmpdd.mqtt.gatherer import Counted, weights_of
from fedmpdd.mqtt.messages import RoundMessage, pack_contributions, read_contributions
from fedmpdd.mqtt.rounds import Rounds, message_of
from fedmpdd.mqtt.terms import Terms
from fedmpdd.runs.driver import Callback, Training
from fedmpdd.server.journal import Record
from fedmpdd.simulation import sampling
from fedmpdd.simulation.clients import Computed, GradientRequest
from fedmpdd.simulation.config import RunConfig
from fedmpdd.simulation.engine import Answers, Federation, Plan, federation_of
from fedmpdd.simulation.links import bundle_codecs
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.simulation.tasks import load_task
from fedmpdd.tasks.data import Dataset
from fedmpdd.tasks.task import Task
from fedmpdd.uplink import MixedUploads, Uploads
from fedmpdd.wire.frames import payload_of

MOST_PAST = 300  # rounds whose messages are kept until a training goes on: more than any tail and any age


class MqttFederation(Federation):
    """A federation whose rounds go over a broker. It steps, evaluates, keeps a journal and resumes like any other.

    Args:
        config: of the run.
        task: its model and test examples; those of clients are not used.
        broker: to connect to.
        name: of the training.
        replaces: whether another training of that name may be replaced at the broker.

    """

    def __init__(
        self, config: RunConfig, task: Task | Dataset, broker: Broker, name: str, *, replaces: bool = False
    ) -> None:
        super().__init__(over_mqtt(config), task)
        self._terms = terms_of(self)
        self._rounds = Rounds(broker, name, self._terms, replaces=replaces)
        self._past: list[RoundMessage] = []  # the last of them begins the next round
        self._has_begun = False
        self._downlink: Any = _Broadcast(self._message_bytes, config.clients)

    def _message_bytes(self) -> int:
        """Bytes of the message that begins the next round."""
        replica: Any = self._server
        return self._rounds.prepare(self.next_round, replica, self._past[-1] if self._past else None)

    def _check_engine(self) -> None:
        config = self.config
        if config.source == "losses":
            raise ConfigError(f"codec {config.codec.name!r} sends losses, which this engine's clients do not compute")
        if self._statistics is not None:
            raise ConfigError(
                'batch_norm = "averaged": an update over MQTT is its payload alone; use batch_norm = "local"'
            )

    def _upload(self, plan: Plan) -> Generator[GradientRequest, Computed, Answers]:
        """Begin the round at the broker, and wait for what clients send."""
        yield from ()  # nothing is computed here
        begun = self._clock()
        replica: Any = self._server
        added = self._past[-1] if self._past else None
        if not self._has_begun:
            self._rounds.begin(replica, self._past)
            self._has_begun = True
        counted = self._rounds.round(plan.round, replica, added)
        contributions = counted.contributions
        self._contributions = contributions
        examples = None
        if self.config.weighting == "examples":
            examples = [float(self.partition.examples_of(one.client).size) for one in contributions]
        answered = plan._replace(
            present=np.array([one.client for one in contributions], np.int64),
            keys=[self._terms.key(plan.round - one.age, one.client) for one in contributions],
            weights=weights_of(contributions, self._terms, examples),
            arrived=pack_contributions(contributions, self._terms, plan.round),
        )
        uploads = self._uploads_of(counted, plan.round, answered.keys)
        nothing = Computed(None, torch.full((len(contributions),), torch.nan))
        vain_bytes = counted.nbytes if uploads is None else 0
        return Answers(answered, uploads, nothing, self._clock() - begun, 0.0, vain_bytes)

    def _uploads_of(self, counted: Counted, number: int, keys: list[Key]) -> Any:
        """The updates of a round as the uplink takes them, with the bytes that were sent; None where none came."""
        if not counted.updates:
            return None
        secure = self.config.secure
        if counted.total is not None and secure is not None:
            from fedmpdd.secure_sum import Ring  # needs a package that others do not
            from fedmpdd.simulation.secure import SecureUploads

            payload_bytes = len(keys) * Ring(secure.ring_bits).nbytes(len(counted.total))
            return SecureUploads(counted.total[np.newaxis], tuple(keys), counted.nbytes, payload_bytes)
        if self.config.links:
            mixed: MixedUploads = self._uplink.uploads_of(counted.updates, number)
            parts = [
                part and replace(part, frame_bytes=part.payload_bytes + 2 * len(part.batch)) for part in mixed.parts
            ]
            return replace(mixed, parts=tuple(parts))
        uploads: Uploads = self._uplink.uploads_of(counted.updates)
        return replace(uploads, frame_bytes=counted.nbytes)

    def _note(self, mean: Any) -> None:
        super()._note(mean)
        self._append(self.bundle, model_sha256(self.flat))

    def _append(self, bundle: bytes, sha256: str) -> None:
        kept = [] if self._has_begun else self._past[-MOST_PAST:]  # what was before, clients and broker have then
        self._past = [*kept, message_of(self.next_round, sha256, bundle, self._contributions)]

    @property
    def is_remembered(self) -> bool:
        """What clients remember they have themselves; a round is not computed again for it."""
        return False

    def advance(self, record: Record, *, changes_model: bool) -> None:
        """See Federation; what clients were told of the round is remembered too."""
        if changes_model:
            self._server.apply(record.bundle, bundle_codecs(self.config, self.codecs, record.round))
        else:  # from a checkpoint, it is that of a later round already
            self.next_round = record.round + 1
        self._contributions = read_contributions(record.note.get("arrived"), self._terms, record.round)
        self._append(record.bundle, record.model_sha256)

    def end(self) -> None:
        """Tell clients that the training is over."""
        replica: Any = self._server
        if not self._has_begun:  # it was over before
            self._rounds.begin(replica, self._past)
        self._rounds.end(self.next_round, replica, self._past[-1] if self._past else None)

    def close(self) -> None:
        super().close()
        self._rounds.close()


class _Broadcast:
    """Counts the bytes of rounds' messages, each of which reaches every client, asked or not."""

    def __init__(self, message_bytes: Callable[[], int], clients: int) -> None:
        self._message_bytes, self._clients = message_bytes, clients

    def send(self, clients: Iterable[int], round_number: int) -> int:
        """Return the bytes of what begins a round, all clients together."""
        return self._message_bytes() * self._clients

    def add(self, bundle_bytes: int) -> None:
        """Take note of what a round added, which is in the next one's message."""


class Farewell(Callback):
    """Tells clients at the end that the training is over, unless it was only paused."""

    def end(self, training: Training) -> None:
        if training.is_complete and isinstance(training.federation, MqttFederation):
            training.federation.end()


def over_mqtt(config: RunConfig) -> RunConfig:
    """Return a config as it is over MQTT: with a journal, and with what rounds added shown to all clients.

    The journal acknowledges updates. That all clients see the bundles of all rounds is what a stated ε must know.
    """
    if config.journal is False:
        raise ConfigError(
            "journal = false: over MQTT an update counts as acknowledged once it is in the journal; leave it out"
        )
    return config.model_copy(update={"journal": True, "downlink": "replay"})


def terms_of(federation: Federation) -> Terms:
    """Return what both sides of a config's training agree on."""
    config = federation.config
    protection = config.codec.protection()
    tables = [{"name": name, **parameters} for name, parameters in (one.codec.registered() for one in config.of_links)]
    given = {} if protection is None else {key: value for key, value in asdict(protection).items() if key != "codec"}
    return Terms(
        codec=tables[0],
        shapes=tuple(tuple(shape) for shape in federation.model.shapes),
        seed=sampling.session_seed(config),
        clients=config.clients,
        per_round=config.per_round,
        keys="derived" if config.codec.keys == "sent" else config.codec.keys,
        sampling_seed=config.seed,
        rounds=config.rounds,
        lr=config.lr,
        server=config.server,
        schedule=config.schedule,
        mean_bits=config.mean_bits,
        arrivals=config.arrivals,
        error_feedback=config.codec.error_feedback,
        protection={key: value for key, value in given.items() if value is not None},
        links=tuple(tables) if config.links else (),
        link_spread=config.link_spread,
        secure={} if config.secure is None else asdict(config.secure),
        model_sha256=federation.journal_header.model_sha256,
    )


class FederationEncoder:
    """Computes the updates of clients as the local engine does: with its data, minibatches and gradients."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def updates(self, round_number: int, flat: NDArray[np.float32], clients: Sequence[int]) -> list[bytes]:
        """See fedmpdd.mqtt.client.Encoder."""
        return [payload_of(update) for update in self._federation.updates_of(round_number, flat, clients)]

    def elements(
        self, round_number: int, flat: NDArray[np.float32], clients: Sequence[int]
    ) -> list[NDArray[np.uint64]]:
        """See fedmpdd.mqtt.secure_client.SumEncoder."""
        return self._federation.elements_of(round_number, flat, clients)


def prepare_with(config: RunConfig, data_dir: Path | None = None) -> Prepare:
    """Return what a client of a config's training is made ready by: it refuses terms that are not the config's.

    Args:
        config: that the server has too.
        data_dir: where the datasets are.

    """
    federation = federation_of(config, load_task(config, data_dir))
    return _preparing(federation, lambda: federation.flat.numpy().copy())


def _preparing(federation: Federation, initial: Callable[[], NDArray[np.float32]]) -> Prepare:
    ours = terms_of(federation)

    def prepare(terms: Terms) -> tuple[FederationEncoder, NDArray[np.float32] | None]:
        differ = [name for name in terms.differences(ours) if name not in ("model_sha256", "rounds", "arrivals")]
        if differ:
            raise ConfigError(
                f"the server's config is another one than this client's: {', '.join(differ)} differ; give both the same"
            )
        # Where this machine makes another initial model, the client fetches the server's.
        return FederationEncoder(federation), initial() if terms.model_sha256 == ours.model_sha256 else None

    return prepare
