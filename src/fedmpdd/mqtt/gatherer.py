"""The server's side of a round: which updates came, which count, and when there are enough. No network in here."""

import logging
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import Codec, Update
from fedmpdd.errors import FedmpddError, RunError
from fedmpdd.mqtt.messages import Contribution, split_update
from fedmpdd.mqtt.terms import Terms
from fedmpdd.uplink import Candidate, Screening

_log = logging.getLogger("fedmpdd")
MAX_VALUE, MAX_RATIO = 1e6, 1e3  # as in Flower: see fedmpdd.uplink.screening
FUTURE = 2**15  # ages from here on are rounds to come
ASK_AGAIN = 5.0  # seconds without news after which those whose update is missing are asked for it again
SILENCES = (2, 4, 8, 16)  # after how many times in a round nobody misses the line that says who is waited for
MOST_LINES = 5  # of a kind in the log, per round
_NUMBER = re.compile(r"\d[\d.,e+-]*", re.ASCII)


def level_of_silence(times: int) -> int:
    """Return at which level of the log it stands that a round waits, where it waits for the so many-th time.

    >>> level_of_silence(2) == logging.WARNING, level_of_silence(3) == logging.INFO
    (True, True)
    """
    is_seen = times in SILENCES or times % SILENCES[-1] == 0
    return logging.WARNING if is_seen else logging.INFO


class Drops(Counter[str]):
    """How many messages did not count, by reason; a few of each are in the log."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: Counter[str] = Counter()  # of a round in the log

    def begin(self) -> None:
        """Begin another round, with lines of its own in the log."""
        self._lines.clear()

    def note(self, round_number: int, client: int, reason: str) -> None:
        """Take note of a message that does not count."""
        kind = _NUMBER.sub("…", reason.split(",")[0])  # who sends nonsense does not choose how many kinds there are
        self[kind] += 1
        self._lines[kind] += 1
        if self._lines[kind] <= MOST_LINES:
            _log.warning("round %s: dropped an update of client %s: %s", round_number, client, reason)


class Counted(NamedTuple):
    """What counts of a round.

    Args:
        contributions: who, and by how many rounds late.
        updates: one for each.
        nbytes: of what they sent, the two bytes of the round among them.
        total: the integers that a secure sum came to; there is one update then, the mean of all who contributed.

    """

    contributions: tuple[Contribution, ...]
    updates: list[Update]
    nbytes: int
    total: NDArray[np.uint64] | None = None


class Gatherer:
    """Takes updates as they come, from any thread, and hands out those of a round when there are enough.

    Args:
        terms: of the training.
        ask_again: called with the clients whose update is missing where none has come for a while; returns words on
            them for the log.

    """

    def __init__(self, terms: Terms, ask_again: Callable[[list[int]], str] | None = None) -> None:
        self.terms = terms
        self._ask_again = ask_again
        self._news = threading.Condition()
        self._round = -1
        self._asked = np.empty(0, np.int64)
        self._pending: dict[Contribution, bytes] = {}
        self._counted_now: set[Contribution] = set()  # in the round at work, which is over for them
        self._counted_before: deque[set[Contribution]] = deque(maxlen=terms.arrivals.max_age)
        self._target = 1
        self._samples: dict[int, frozenset[int]] = {}
        self._codecs: dict[int, dict[int, Codec]] = {}  # of the rounds that may be answered, by the bytes of an update
        self.drops = Drops()  # why updates did not count, since the start
        self.duplicates = 0
        self._problem: str | None = None

    def open(self, round_number: int) -> None:
        """Begin the next round: its clients may answer from now on."""
        with self._news:
            aged = round_number - self._round if self._round >= 0 else 0
            most = self.terms.arrivals.max_age
            self._counted_before.append(self._counted_now)
            self._counted_now = set()
            self.drops.begin()
            self._pending = {
                Contribution(one.client, one.age + aged): data
                for one, data in self._pending.items()
                if one.age + aged <= most
            }
            self._round = round_number
            self._asked = self.terms.sample(round_number)
            self._target = self.terms.arrivals.target(len(self._asked))
            first = max(0, round_number - most)
            self._samples = {k: self._samples.get(k) or self._sample(k) for k in range(first, round_number + 1)}
            self._codecs = {k: self._codecs.get(k) or self._codecs_of(k) for k in range(first, round_number + 1)}

    def _sample(self, number: int) -> frozenset[int]:
        if self.terms.per_round == self.terms.clients:
            return frozenset()  # everybody
        return frozenset(self.terms.sample(number).tolist())

    def _codecs_of(self, number: int) -> dict[int, Codec]:
        return {session.frame_bytes(number): session.codec_at(number) for session in self.terms.sessions}

    def receive(self, client: int, data: bytes) -> None:
        """Take what a client sent; what cannot count is dropped, with a reason in the log."""
        with self._news:
            if self._round < 0:
                return
            try:
                one, payload = self._read(client, data)
            except FedmpddError as error:
                self._drop(client, str(error))
                return
            if one is None:
                return
            self._pending[one] = payload
            if len(self._pending) == 1 or len(self._pending) >= self._target:  # nothing in between ends the wait
                self._news.notify_all()

    def _read(self, client: int, data: bytes) -> tuple[Contribution | None, bytes]:
        age, payload = split_update(data, self._round)
        if age >= FUTURE:
            raise RunError(f"its update is of a round to come, {2**16 - age} after this one")
        if age > min(self.terms.arrivals.max_age, self._round):
            raise RunError("its update is too late")
        one = Contribution(client, age)
        number = self._round - age
        sample = self._samples[number]
        if client >= self.terms.clients or (sample and client not in sample):
            raise RunError("it was not asked in that round")
        codecs = self._codecs[number]
        if age and codecs != self._codecs[self._round]:
            raise RunError("its update is late, and of the codec of an earlier round")
        if len(payload) not in codecs:
            lengths = " or ".join(map(str, codecs))
            raise RunError(f"its frame has {len(payload)} bytes, expected {lengths}: another codec or model")
        if one in self._pending or self._has_counted(one):
            self.duplicates += 1
            return None, payload
        return one, payload

    def _has_counted(self, one: Contribution) -> bool:
        rounds = [self._counted_now, *reversed(self._counted_before)]
        return any(one._replace(age=one.age - past) in rounds[past] for past in range(min(one.age + 1, len(rounds))))

    def remember(self, contributions: Sequence[Contribution]) -> None:
        """Take note of what counted in the round before the one that begins next: after a restart, from a journal."""
        with self._news:
            self._counted_before.append(self._counted_now)
            self._counted_now = set(contributions)

    def _drop(self, client: int, reason: str) -> None:
        self.drops.note(self._round, client, reason)

    def fail(self, problem: str) -> None:
        """End the wait of whoever waits for a round: nothing can come any more."""
        with self._news:
            self._problem = problem
            self._news.notify_all()

    def missing(self) -> list[int]:
        """Return the clients that were asked and did not answer yet."""
        with self._news:
            return [int(client) for client in self._asked if Contribution(int(client)) not in self._pending]

    def wait(self, heartbeat: Callable[[], None] | None = None) -> Counted:
        """Wait until there are enough updates or the time is up, and return those that count.

        heartbeat: called about once a second, to notice that somebody wants it to end.
        """
        arrivals = self.terms.arrivals
        begun = quiet_since = time.monotonic()
        target = self._target
        with self._news:
            seen, silences = len(self._pending), 0
            while len(self._pending) < target:
                if self._problem is not None:
                    raise RunError(self._problem)
                now = time.monotonic()
                left = math.inf if arrivals.wait is None else begun + arrivals.wait - now
                if left <= 0 and self._pending:
                    break
                self._news.wait(min(1.0, left) if left > 0 else 1.0)  # after its time the first who comes ends it
                if len(self._pending) != seen:
                    seen, quiet_since = len(self._pending), time.monotonic()
                elif time.monotonic() - quiet_since >= ASK_AGAIN:
                    quiet_since = time.monotonic()
                    silences += 1
                    self._report_silence(target, silences)
                if heartbeat is not None:
                    heartbeat()
            taken, self._pending = self._pending, {}
            self._counted_now = set(taken)
        return self._counted(taken)

    def _report_silence(self, target: int, times: int) -> None:
        missing = [int(client) for client in self._asked if Contribution(int(client)) not in self._pending]
        words = "" if self._ask_again is None else self._ask_again(missing)
        _log.log(
            level_of_silence(times),
            "round %s: %s of %s updates came; asking %s clients again: %s%s%s",
            self._round,
            len(self._pending),
            target,
            len(missing),
            ", ".join(map(str, missing[:10])),
            " …" if len(missing) > 10 else "",
            words,
        )

    def _counted(self, taken: dict[Contribution, bytes]) -> Counted:
        """Read the updates, in the order of clients, and leave out those that cannot be meant."""
        candidates: list[Candidate] = []
        read: list[Contribution] = []
        for one in sorted(taken):
            try:
                update = self._unpack(one, taken[one])
            except FedmpddError as error:
                self._drop(one.client, str(error))
                continue
            candidates.append(Candidate(len(read), update))
            read.append(one)
        screening = Screening(
            MAX_VALUE, MAX_RATIO, weighted=False
        )  # of this round alone, so that a resume judges alike
        kept, rejections = screening.screen(candidates, len(self._asked))
        for rejection in rejections:
            self._drop(read[rejection.client].client, rejection.reason)
        contributions = tuple(read[one.client] for one in kept)
        return Counted(contributions, [one.update for one in kept], sum(2 + len(taken[one]) for one in contributions))

    def _unpack(self, one: Contribution, payload: bytes) -> Update:
        number, terms = self._round - one.age, self.terms
        place = one.client
        if terms.keys == "partitioned":
            place = int(np.searchsorted(terms.sample(number), one.client))
        session = terms.session_of_length(number, len(payload))
        assert session is not None  # others were dropped when they came
        return session.unpack(payload, number, place)


def weights_of(
    contributions: Sequence[Contribution], terms: Terms, examples: Sequence[float] | None = None
) -> list[float] | None:
    """Return what each update counts for; None where all count alike.

    examples: how many each client has, where that weighs.
    """
    if examples is None and not any(one.age for one in contributions):
        return None
    base = [1.0] * len(contributions) if examples is None else examples
    return [
        weight * terms.arrivals.weight(one.age) if one.age else weight
        for one, weight in zip(contributions, base, strict=True)
    ]
