"""What the two sides of a training agree on: published once, retained by the broker, and hashed into every message."""

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import NO_KEY, Codec, make_codec
from fedmpdd.directions import Key
from fedmpdd.documents import check_number, is_count, is_number, parse_json
from fedmpdd.errors import ConfigError, FedmpddError, OrderError
from fedmpdd.server.replica import Replica
from fedmpdd.server.step import CONSTANT, OPTIMISERS, SCHEDULES, Schedule, Step, StepRule
from fedmpdd.uplink import (
    ErrorFeedback,
    Protection,
    SecureRounds,
    Uplink,
    check_links,
    check_memory,
    client_weights,
)
from fedmpdd.uplink.arrivals import SYNCHRONOUS, Arrivals
from fedmpdd.uplink.policy import Order
from fedmpdd.wire.bare import WAYS, AssignedKeys, BareSession
from fedmpdd.wire.bundle import MOST_UPDATES

SGD = StepRule()
VERSION = 1
MOST_LINKS = 256
_PROTECTION = ("clip", "noise_multiplier", "scale_grid")
TAG_BYTES = 4  # of the hash, in every message: enough to tell trainings apart
LARGEST_TERMS = 2**20
MOST_CLIENTS = 2**32  # whose numbers take four bytes
MOST_ROUNDS = 2**32 - 2
_COUNTS = ("seed", "clients", "per_round", "sampling_seed", "rounds")
_TYPES = {"server": StepRule, "schedule": Schedule, "arrivals": Arrivals, "error_feedback": bool}
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CLIENT_STREAM = 0  # of the random numbers of a run: see fedmpdd.simulation.sampling


@dataclass(frozen=True)
class Terms:
    """A training as both sides must know it, so that an update needs no more than its payload and a round.

    Args:
        codec: its registered name and parameters, as a table.
        shapes: of the model's parameters, in their order.
        seed: of the session, from which keys follow.
        keys: "derived", "shared" or "partitioned": see BareSession.
        clients: how many there are; they are numbered from 0.
        per_round: how many are asked in a round.
        sampling_seed: from which it follows who is asked.
        rounds: of the training.
        lr: the server's step size.
        server: its optimiser.
        schedule: of its step size.
        mean_bits: the server steps along one update, the mean, with scalars of so many bits; None for all updates.
        arrivals: when the server steps, and what late updates count for.
        error_feedback: whether clients remember what their codec left out.
        protection: clip and noise of each update, as a table; empty for none.
        links: the codecs of clients with different links, as tables; client i has that of link i mod their number,
            unless it says another. Empty where all have `codec`.
        link_spread: how links are weighed: "middle", "inf" for equal weights, or a number. See fedmpdd.uplink.mixed.
        secure: the arguments of SecureRounds, as a table, where updates go into secure sums; empty where they go alone.
        model_sha256: of the initial model.

    Example:
        >>> terms = Terms({"name": "peaks", "m": 7}, ((10, 784), (10,)), seed=2024, clients=100, per_round=50)
        >>> terms.d, terms.session.frame_bytes()
        (7850, 9)

    """

    codec: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    seed: int
    clients: int
    per_round: int
    keys: AssignedKeys = "derived"
    sampling_seed: int = 0
    rounds: int = MOST_ROUNDS
    lr: float = 1.0
    server: StepRule = SGD
    schedule: Schedule = CONSTANT
    mean_bits: int | None = None
    arrivals: Arrivals = SYNCHRONOUS
    error_feedback: bool = False
    protection: dict[str, float] = field(default_factory=dict)
    links: tuple[dict[str, Any], ...] = ()
    link_spread: float | str = "middle"
    secure: dict[str, Any] = field(default_factory=dict)
    model_sha256: str = ""

    def __post_init__(self) -> None:
        """Raise an InputError for terms that nobody can keep."""
        for name in _COUNTS:
            if not is_count(value := getattr(self, name)):
                raise ConfigError(f"{name} = {value!r:.40}, expected a whole number from 0 to 2^63 − 1")
        for name, kind in _TYPES.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"{name} = {value!r:.60}, expected a value of type {kind.__name__}")
        if not 1 <= self.per_round <= self.clients:
            raise ConfigError(f"per_round = {self.per_round} of clients = {self.clients}: expected 1 to all of them")
        if self.clients > MOST_CLIENTS or self.per_round > MOST_UPDATES or self.rounds > MOST_ROUNDS:
            raise ConfigError(
                f"clients = {self.clients:,}, per_round = {self.per_round:,}, rounds = {self.rounds:,}: expected at "
                f"most {MOST_CLIENTS:,}, {MOST_UPDATES:,} and {MOST_ROUNDS:,}"
            )
        check_number("lr", self.lr, 0.0, 1e300, "a finite number, not negative")
        if self.server.optimiser not in OPTIMISERS:
            raise ConfigError(
                f"server.optimiser = {self.server.optimiser!r} is one of PyTorch, whose steps clients cannot follow; "
                f"use {', '.join(OPTIMISERS)}"
            )
        if self.schedule.kind not in SCHEDULES:
            raise ConfigError(
                f"schedule.kind = {self.schedule.kind!r} is code, which no client imports because a message names it; "
                f"use {', '.join(SCHEDULES)}"
            )
        if self.arrivals.max_age and self.keys != "derived":
            raise ConfigError(
                f'arrivals.max_age = {self.arrivals.max_age} with keys = "{self.keys}": updates of several rounds have '
                "no directions in common, and none to share out; a late update needs a key of its own, "
                'keys = "sent" or "derived"'
            )
        if unknown := set(self.protection) - set(_PROTECTION):
            raise ConfigError(f"protection has {sorted(unknown)}; expected some of {', '.join(_PROTECTION)}")
        if self.link_spread not in ("middle", "inf"):
            check_number("link_spread", self.link_spread, 0.0, math.inf, '"middle", "inf" or a number, 0 or more')
        if self.links:
            self._check_links()
        for link in range(len(self.sessions)):
            self.uplink(link)
        if self.sums is not None:
            self._check_sums(self.sums)

    @property
    def sums(self) -> SecureRounds | None:
        """The settings of the rounds' secure sums; None where updates go alone."""
        return SecureRounds(**self.secure) if self.secure else None

    def _check_sums(self, sums: SecureRounds) -> None:
        codec = self.session.codec
        sums.check_parts(codec, self.keys, weighting="equal", robust=False, protects=bool(self.protection))
        if self.error_feedback:
            check_memory(codec, has_gradient=True, hidden=True)
        try:
            sums.check(self.per_round)
        except ConfigError as error:
            raise ConfigError(f"secure.{error}") from None
        if self.arrivals.max_age:
            raise ConfigError(
                f"arrivals.max_age = {self.arrivals.max_age} with secure: masks cancel among the clients of one round, "
                "so that nothing can be added to a later sum; set max_age = 0"
            )
        threshold = sums.threshold(self.per_round)
        if self.arrivals.target(self.per_round) < threshold:
            raise ConfigError(
                f"arrivals.enough = {self.arrivals.enough} with secure: a sum takes {threshold} of "
                f"{self.per_round} clients; raise it, or secure.dropouts"
            )

    @property
    def has_one_update(self) -> bool:
        """Whether one update, the mean, stands for those of a round's clients."""
        return self.mean_bits is not None or bool(self.secure)

    @cached_property
    def d(self) -> int:
        """Coordinates of the model."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def _check_links(self) -> None:
        check_links(self.keys, sums=bool(self.secure))
        lengths = [session.frame_bytes() for session in self.sessions]
        if len(set(lengths)) < len(lengths):
            raise ConfigError(
                f"links have frames of {lengths} bytes: by its length the server knows which codec a frame is of; "
                "give each link a codec of another size"
            )
        client_weights([session.codec for session in self.sessions], self.d, spread=self.spread)  # who states none?

    @property
    def spread(self) -> float | None:
        """How far gradients of clients are from their mean, by which links are weighed; None to follow the codecs."""
        return None if self.link_spread == "middle" else float(self.link_spread)

    @cached_property
    def sessions(self) -> tuple[BareSession, ...]:
        """The session of each link's updates; one where all clients have one codec."""
        return tuple(self._session_of(link) for link in self.links or (self.codec,))

    def _session_of(self, table: dict[str, Any]) -> BareSession:
        parameters = dict(table)
        codec: Codec = make_codec(parameters.pop("name"), parameters).for_shapes(self.shapes)
        return BareSession(codec, self.d, self.seed, keys=self.keys)

    @property
    def session(self) -> BareSession:
        """The session of all updates, or of those of the first link."""
        return self.sessions[0]

    def session_of_length(self, round_number: int, length: int) -> BareSession | None:
        """Return the session whose frames of a round have this length; None if there is none."""
        return next((one for one in self.sessions if one.frame_bytes(round_number) == length), None)

    def uplink(self, link: int = 0) -> Uplink:
        """Return the path of an update of a link on the client's side."""
        codec = self.sessions[link].codec
        return Uplink(
            codec,
            self.d,
            self.keys,
            memory=ErrorFeedback(codec) if self.error_feedback else None,
            protection=Protection(codec, **self.protection) if self.protection else None,
            mean_bits=self.mean_bits,
        )

    def order(self, round_number: int) -> Order:
        """Return what these terms ask of an update, for a policy. Whoever has the terms has its key."""
        codec = self.session.codec_at(round_number)
        key = NO_KEY if codec.noise_from_key else None
        return Order(codec, key, self.protection, secure=self.secure)

    def sample(self, round_number: int) -> NDArray[np.int64]:
        """Return the clients that are asked in a round, in order: those of the local engine with this seed."""
        if self.per_round == self.clients:
            return np.arange(self.clients)
        rng = np.random.default_rng([self.sampling_seed, _CLIENT_STREAM, round_number])
        return np.sort(rng.choice(self.clients, self.per_round, replace=False, shuffle=False))

    def key(self, round_number: int, client: int) -> Key:
        """Return the key of a client that is asked in a round."""
        if self.keys != "partitioned":
            return self.session.key(round_number, client)
        return self.session.key(round_number, int(np.searchsorted(self.sample(round_number), client)))

    def replica(self, flat: NDArray[np.float32], next_round: int = 0) -> Replica[NDArray[np.float32]]:
        """Return a model that follows the server's, from these parameters on."""
        step = Step(self.server, self.lr, lambda: np.zeros(self.d, np.float32), self.schedule)
        return Replica(flat, step, next_round)

    @property
    def vectors(self) -> int:
        """How many vectors of d numbers who follows the model has to know: the model, and what the optimiser keeps."""
        return 1 + len(OPTIMISERS[self.server.optimiser])

    def bundle_codec(self, round_number: int) -> Codec | tuple[Codec, ...]:
        """Return what reads a round's bundle: the clients' codec, that of their mean, or those of all links."""
        if self.links:
            return tuple(session.codec_at(round_number) for session in self.sessions)
        codec = self.session.codec_at(round_number)
        if not self.has_one_update or codec.scalar_codec is None:
            return codec
        return codec.along_directions().with_bits(self.mean_bits or 32)

    # ------------------------------------------------------------------------------------------------- as bytes

    def pack(self) -> bytes:
        """Return the terms as they are published."""
        values = {"fedmpdd": VERSION, **asdict(self)}
        return json.dumps(values, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()

    @cached_property
    def tag(self) -> bytes:
        """The first bytes of the hash of the terms."""
        return hashlib.sha256(self.pack()).digest()[:TAG_BYTES]

    @classmethod
    def unpack(cls, data: bytes) -> "Terms":
        """Read terms that came from a broker, or raise OrderError."""
        try:
            values = parse_json(data, largest=LARGEST_TERMS)
        except FedmpddError as error:
            raise OrderError(f"the terms of the training cannot be read: {error}") from None
        if not isinstance(values, dict) or "fedmpdd" not in values:
            raise OrderError("the retained message of terms is none of fedmpdd; name another training, or clear it")
        if (version := values.pop("fedmpdd")) != VERSION:
            raise OrderError(
                f"the server's terms have version {version!r}, this client's {VERSION}: install one release"
            )
        names = {one.name for one in fields(cls)}
        if set(values) != names:
            raise OrderError(f"the terms have the keys {sorted(values)!s:.300}, expected {sorted(names)}")
        try:
            return cls(**_typed(values))
        except (FedmpddError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise OrderError(f"the terms of the training cannot be kept: {error}") from None

    def differences(self, other: "Terms") -> list[str]:
        """Return the names of what two terms differ in."""
        return [one.name for one in fields(self) if getattr(self, one.name) != getattr(other, one.name)]

    def with_model(self, sha256: str) -> "Terms":
        """Return the terms of a training that begins with the model of this hash."""
        return replace(self, model_sha256=sha256)


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of terms from their JSON, each of the type that it must have."""
    for name in _COUNTS:
        if not is_count(values[name]):
            raise ValueError(f"{name} = {values[name]!r:.40}, expected a whole number")
    shapes = values["shapes"]
    if not isinstance(shapes, list) or not all(isinstance(one, list) and all(map(is_count, one)) for one in shapes):
        raise ValueError(f"shapes = {shapes!r:.60}, expected lists of whole numbers")
    for name in ("codec", "protection", "secure", "server", "schedule", "arrivals"):
        if not isinstance(values[name], dict):
            raise ValueError(f"{name} = {values[name]!r:.40}, expected a table")
    if values["keys"] not in WAYS or not isinstance(values["error_feedback"], bool):
        raise ValueError(f"keys = {values['keys']!r:.40}, error_feedback = {values['error_feedback']!r:.40}")
    links, spread = values["links"], values["link_spread"]
    if not isinstance(links, list) or not all(isinstance(one, dict) and _is_named(one) for one in links):
        raise ValueError(f"links = {links!r:.60}, expected a list of codecs, each a name and parameters")
    if len(links) > MOST_LINKS or not (isinstance(spread, str) or is_number(spread)):
        raise ValueError(f"{len(links)} links with link_spread = {spread!r:.40}")
    if not isinstance(values["model_sha256"], str) or not _SHA256.fullmatch(values["model_sha256"]):
        raise ValueError(f"model_sha256 = {values['model_sha256']!r:.40}, expected 64 hexadecimal digits")
    if not _is_named(values["codec"]):
        raise ValueError(f"codec = {values['codec']!r:.40}, expected a name and parameters")
    return {
        **values,
        "shapes": tuple(map(tuple, shapes)),
        "links": tuple(links),
        "server": StepRule(**values["server"]),
        "schedule": Schedule(**values["schedule"]),
        "arrivals": Arrivals(**values["arrivals"]),
    }


def _is_named(codec: dict[str, Any]) -> bool:
    return isinstance(codec.get("name"), str)
