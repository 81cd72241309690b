"""The server of a training of one's own over MQTT: a model as a vector, a codec, and a folder; without PyTorch."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import Codec, Update
from fedmpdd.codecs.registry import parameter_names
from fedmpdd.documents import check_number, is_count, read_json, write_text
from fedmpdd.errors import ConfigError, GradientError, JournalError, RunError
from fedmpdd.mqtt.broker import Broker
from fedmpdd.mqtt.follower import model_sha256
from fedmpdd.mqtt.gatherer import weights_of
from fedmpdd.mqtt.messages import RoundMessage, pack_contributions, read_contributions
from fedmpdd.mqtt.rounds import Rounds, message_of
from fedmpdd.mqtt.terms import Terms
from fedmpdd.server.journal import JOURNAL, Header, Journal, JournalReader, Record
from fedmpdd.server.step import StepRule
from fedmpdd.uplink import AnyMean, MixedUplink, RobustMean, SecureRounds, Uplink
from fedmpdd.uplink.arrivals import SYNCHRONOUS, Arrivals
from fedmpdd.wire.bare import AssignedKeys
from fedmpdd.wire.bundle import Bundle

Float32 = NDArray[np.float32]
TERMS = "terms.json"
MOST_PAST = 300  # rounds whose messages are kept: more than any tail and any age


class Server:
    """Trains a model with clients at a broker. What it did is in its folder: started anew, it goes on from there.

    Args:
        broker: to connect to: a Broker, or its address.
        name: of the training, in the topics of the broker.
        model: the initial parameters, float32 [d].
        codec: of the updates. Several are those of clients with different links: client i has number i mod how many,
            and the server weighs each by the error that its codec states (docs/links.md).
        folder: for the journal; made where there is none.
        clients: how many there are; they are numbered from 0.
        rounds: of the training.
        lr: the step size.
        per_round: how many clients are asked in a round; by default all.
        seed: that keys and samples of clients follow from; by default one from the operating system.
        keys: "derived", "shared" or "partitioned": see BareSession.
        server: the optimiser; by default SGD.
        arrivals: when it steps, and what late updates count for; by default rounds are synchronous.
        mean_bits: with shared keys, step along one update, the mean, with scalars of so many bits.
        protection: clip and noise of every update, such as {"clip": 1.0, "noise_multiplier": 0.5}; the clients, who
            draw the noise, can insist on it by a ClientPolicy.
        error_feedback: whether clients remember what their codec left out.
        link_spread: how several codecs are weighed: "middle", "inf" for equal weights, or a number.
        robust: how the mean is taken where clients may lie; by default the plain mean.
        secure: updates go into secure sums, of which the server sees nothing else; by default they go alone.
        shapes: of the model's parameters, for codecs that need them; by default one vector.
        replaces: whether another training of that name may be replaced at the broker.

    Raises:
        ConfigError: the arguments do not go together.
        RunError: the folder holds another training.

    Example:
        >>> server = Server("mqtt://localhost", "site-4", np.zeros(7850, np.float32), Peaks(m=7),
        ...                 "runs/site-4", clients=20, rounds=100, lr=0.05)  # doctest: +SKIP
        >>> model = server.run()  # doctest: +SKIP

    """

    def __init__(
        self,
        broker: Broker | str,
        name: str,
        model: Float32,
        codec: Codec | Sequence[Codec],
        folder: str | Path,
        *,
        clients: int,
        rounds: int,
        lr: float,
        per_round: int | None = None,
        seed: int | None = None,
        keys: AssignedKeys = "derived",
        server: StepRule | None = None,
        arrivals: Arrivals = SYNCHRONOUS,
        mean_bits: int | None = None,
        protection: Mapping[str, float] | None = None,
        error_feedback: bool = False,
        link_spread: float | str = "middle",
        robust: RobustMean | None = None,
        secure: SecureRounds | None = None,
        shapes: Sequence[tuple[int, ...]] | None = None,
        replaces: bool = False,
    ) -> None:
        flat = np.asarray(model)
        if flat.ndim != 1 or flat.dtype != np.float32 or not np.isfinite(flat).all():
            raise ConfigError(f"the model is {flat.dtype} {flat.shape}; expected a vector of finite float32 [d]")
        _check_kind("folder", folder, (str, Path), "a path")
        _check_kind("robust", robust, (RobustMean, NoneType), "a RobustMean, or None")
        _check_kind("secure", secure, (SecureRounds, NoneType), "SecureRounds, or None")
        _check_kind("protection", protection, (Mapping, NoneType), 'a table, such as {"clip": 1.0}, or None')
        check_number("lr", lr, 0.0, 1e300, "a finite number, not negative")
        self._folder = Path(folder)
        kept = self._kept_terms()
        chosen = int.from_bytes(os.urandom(7), "little") if seed is None else seed
        if kept is not None and seed is None:
            chosen = kept.seed
        codecs = list(codec) if isinstance(codec, Sequence) and not isinstance(codec, str) else [codec]
        for one in codecs:
            _check_kind("codec", one, (Codec,), "a codec, such as fedmpdd.Peaks(m=7), or several")
        tables = [{"name": one.name, **_parameters(one)} for one in codecs]
        if not tables:
            raise ConfigError("codec = []: expected a codec, or several for clients with different links")
        trims = robust is not None and mean_bits is None and robust.trims(codecs[0], shared=keys == "shared")
        layout = [flat.shape] if shapes is None else shapes
        if not isinstance(layout, Sequence) or not all(
            isinstance(one, Sequence) and all(map(is_count, one)) for one in layout
        ):
            raise ConfigError(
                f"shapes = {layout!r:.60}: expected those of the model's parameters, such as [(10, 784), (10,)]"
            )
        self._terms = Terms(
            codec=tables[0],
            links=tuple(tables) if len(tables) > 1 else (),
            link_spread=link_spread,
            shapes=tuple(map(tuple, layout)),
            seed=chosen,
            clients=clients,
            per_round=clients if per_round is None else per_round,
            keys=keys,
            sampling_seed=chosen,
            rounds=rounds,
            lr=float(lr),
            server=server or StepRule(),
            mean_bits=32 if trims else mean_bits,
            arrivals=arrivals,
            error_feedback=error_feedback,
            protection=dict(protection or {}),
            secure={} if secure is None else asdict(secure),
            model_sha256=model_sha256(flat),
        )
        if self._terms.d != flat.size:
            raise ConfigError(f"shapes hold {self._terms.d} parameters, and the model has {flat.size}")
        if kept is not None and (differ := [one for one in kept.differences(self._terms) if one != "rounds"]):
            raise RunError(
                f"{self._folder} holds another training: {', '.join(differ)} differ; give what it began with, or "
                "choose another folder"
            )
        if robust is not None and secure is not None:
            raise ConfigError("secure with robust: nobody sees single updates, by which one tells liars; leave one out")
        self._initial = flat.copy()
        bits = None if secure is not None else mean_bits  # of a secure sum the mean comes as one update
        uplinks = [
            Uplink(session.codec, self._terms.d, keys, mean_bits=bits, robust=robust)
            for session in self._terms.sessions
        ]
        self._uplink = uplinks[0]
        self._mixed = MixedUplink(uplinks, range(len(uplinks)), self._terms.spread) if self._terms.links else None
        self._rounds = Rounds(Broker.of(broker), name, self._terms, replaces=replaces)

    @property
    def terms(self) -> Terms:
        """What clients have to agree to."""
        return self._terms

    def _kept_terms(self) -> Terms | None:
        path = self._folder / TERMS
        if not path.is_file():
            if (self._folder / JOURNAL).exists():
                raise RunError(f"{self._folder} holds a journal and no {TERMS}; choose another folder")
            return None
        read_json(path, "choose another folder")
        return Terms.unpack(path.read_bytes())

    def _header(self) -> Header:
        terms = {"terms": self._terms.tag.hex()}
        return Header(self._terms.d, (1, 1, 1), 1, self._terms.model_sha256, terms)

    def _open(self) -> tuple[Journal, Any, list[RoundMessage]]:
        """The journal, the model that it leads to, and the messages of its last rounds."""
        replica = self._terms.replica(self._initial)
        path = self._folder / JOURNAL
        past: list[RoundMessage] = []
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            write_text(self._folder / TERMS, self._terms.pack().decode())
            return Journal.create(path, self._header(), self._initial), replica, past
        with JournalReader(path) as reader:
            if reader.header.model_sha256 != self._terms.model_sha256:
                raise JournalError(f"{path} begins with another model; give what it began with")
            for record in reader:
                replica.apply(record.bundle, self._terms.bundle_codec(record.round))
                if model_sha256(replica.flat) != record.model_sha256:
                    raise JournalError(f"{path}: round {record.round} leads to another model than when it was written")
                contributions = read_contributions(record.note.get("arrived"), self._terms, record.round)
                message = message_of(record.round + 1, record.model_sha256, record.bundle, contributions)
                past = [*past[-MOST_PAST:], message]
        return Journal(path, reader.end), replica, past

    def run(self, on_round: Callable[[int, Float32, dict[str, Any]], None] | None = None) -> Float32:
        """Train until the last round, and return the model [d].

        Args:
            on_round: called after every round with its number, the model that it led to, and a table of what it did:
                clients, uplink_bytes.

        Raises:
            RunError: the broker cannot be reached, or refuses.
            GradientError: the model is not finite any more; lower the step size.

        """
        journal, replica, past = self._open()
        try:
            self._rounds.begin(replica, past)
            while replica.next_round < self._terms.rounds:
                number = replica.next_round
                added, note = self._round(journal, replica, past[-1] if past else None)
                past = [added]  # what was before, clients and broker have
                if on_round is not None:
                    on_round(number, replica.flat, note)
            self._rounds.end(replica.next_round, replica, past[-1] if past else None)
        finally:
            self._rounds.close()
            journal.close()
        flat: Float32 = replica.flat
        return flat

    def _round(
        self, journal: Journal, replica: Any, before: RoundMessage | None
    ) -> tuple[RoundMessage, dict[str, Any]]:
        number = replica.next_round
        counted = self._rounds.round(number, replica, before)
        mean: AnyMean | None = None
        if counted.updates:
            weights = weights_of(counted.contributions, self._terms)
            mean = self._mean(counted.updates, weights, number)
        replica.take(mean)
        if not np.isfinite(replica.flat).all():
            raise GradientError(f"the step of round {number} makes the model infinite; lower lr")
        bundle = (Bundle() if mean is None else mean.bundle()).pack()
        sha256 = model_sha256(replica.flat)
        note = {"round": number, "clients": len(counted.contributions), "uplink_bytes": counted.nbytes}
        arrived = pack_contributions(counted.contributions, self._terms, number)
        journal.append(Record(number, bundle, sha256, {**note, "arrived": arrived}))
        return message_of(number + 1, sha256, bundle, counted.contributions), note

    def _mean(self, updates: list[Update], weights: list[float] | None, number: int) -> AnyMean:
        if self._mixed is None:
            return self._uplink.mean(self._uplink.uploads_of(updates), weights)
        return self._mixed.mean(self._mixed.uploads_of(updates, number), weights, round_number=number)


def _check_kind(name: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    if not isinstance(value, kinds):
        raise ConfigError(f"{name} = {value!r:.60}: expected {expected}")


def _parameters(codec: Codec) -> dict[str, Any]:
    return {name: getattr(codec, name) for name in parameter_names(type(codec))}
