"""What the two sides of a training agree on: published once, retained by the broker, and hashed into every message."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import NO_KEY, Codec, make_codec
from fedmpdd.directions import Key
from fedmpdd.documents import is_count, parse_json
from fedmpdd.errors import ConfigError, FedmpddError, OrderError
from fedmpdd.server.replica import Replica
from fedmpdd.server.step import CONSTANT, OPTIMISERS, SCHEDULES, Schedule, Step, StepRule
from fedmpdd.uplink import ErrorFeedback, Protection, SecureRounds, Uplink
from fedmpdd.uplink.arrivals import SYNCHRONOUS, Arrivals
from fedmpdd.uplink.policy import Order
from fedmpdd.wire.bare import WAYS, AssignedKeys, BareSession

SGD = StepRule()
VERSION = 1
TAG_BYTES = 4  # of the hash, in every message: enough to tell trainings apart
LARGEST_TERMS = 2**20
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
    rounds: int = 2**32 - 2
    lr: float = 1.0
    server: StepRule = SGD
    schedule: Schedule = CONSTANT
    mean_bits: int | None = None
    arrivals: Arrivals = SYNCHRONOUS
    error_feedback: bool = False
    protection: dict[str, float] = field(default_factory=dict)
    secure: dict[str, Any] = field(default_factory=dict)
    model_sha256: str = ""

    def __post_init__(self) -> None:
        """Raise an InputError for terms that nobody can keep."""
        if not 1 <= self.per_round <= self.clients:
            raise ConfigError(f"per_round = {self.per_round} of clients = {self.clients}: expected 1 to all of them")
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
        self.uplink()
        if self.sums is not None:
            self._check_sums(self.sums)

    @property
    def sums(self) -> SecureRounds | None:
        """The settings of the rounds' secure sums; None where updates go alone."""
        return SecureRounds(**self.secure) if self.secure else None

    def _check_sums(self, sums: SecureRounds) -> None:
        changes = bool(self.protection) or self.error_feedback
        sums.check_parts(self.session.codec, self.keys, weighting="equal", robust=False, changes=changes)
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

    @cached_property
    def session(self) -> BareSession:
        """The session of all updates."""
        parameters = dict(self.codec)
        codec: Codec = make_codec(parameters.pop("name"), parameters).for_shapes(self.shapes)
        return BareSession(codec, self.d, self.seed, keys=self.keys)

    def uplink(self) -> Uplink:
        """Return the path of an update on the client's side."""
        codec = self.session.codec
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

    def bundle_codec(self, round_number: int) -> Codec:
        """Return the codec of the updates in a round's bundle: the clients' own, or that of their mean."""
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
    for name in ("seed", "clients", "per_round", "sampling_seed", "rounds"):
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
    if isinstance(values["lr"], bool) or not isinstance(values["lr"], int | float):
        raise ValueError(f"lr = {values['lr']!r:.40}, expected a number")
    return {
        **values,
        "shapes": tuple(map(tuple, shapes)),
        "server": StepRule(**values["server"]),
        "schedule": Schedule(**values["schedule"]),
        "arrivals": Arrivals(**values["arrivals"]),
    }
