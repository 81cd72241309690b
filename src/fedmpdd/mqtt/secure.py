"""Secure sums over a broker: what both sides derive, and the server's phases of a round. No network in here.

The protocol's own messages travel (fedmpdd.secure_sum). What opens a sum is retained, the same for all; each later
phase is opened by a message to each client. A client that will not go on says so, and nobody waits for it.
"""

import hashlib
import logging
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedmpdd.errors import FedmpddError, RunError, SecureSumError
from fedmpdd.mqtt.gatherer import ASK_AGAIN, Counted, Drops, level_of_silence
from fedmpdd.mqtt.messages import Contribution
from fedmpdd.mqtt.terms import Terms
from fedmpdd.secure_sum import Phase, SecureServer, primitives
from fedmpdd.secure_sum import Terms as SumTerms
from fedmpdd.secure_sum.messages import tag_of
from fedmpdd.secure_sum.terms import RUN_BYTES
from fedmpdd.uplink.arrivals import SYNCHRONOUS
from fedmpdd.uplink.secure import SecureUplink

_log = logging.getLogger("fedmpdd")
PHASE_S = 60.0  # seconds of a phase where arrivals.wait says nothing
ATTEMPT_BITS = 32  # of a sum's number, below the round
MOST_DECLINED = 2  # sums in a row that clients have no part in, before the server asks what is wrong
_DECLINED = b"\0"  # what begins a message that declines: those of the protocol begin with its magic
_TAG_BYTES = 8
_MOST_REASON = 200  # bytes

Send = Callable[[Sequence[tuple[int | None, bytes]]], None]  # messages to a client each, None for all


def training_of(name: str, terms: Terms) -> bytes:
    """Return the name that the secure sums of a training have in their terms.

    Both sides derive it, so that a server cannot have a vector summed again under another name in the same training.
    What a server may change when it goes on is no part of it.

    Args:
        name: of the training, in its topics.
        terms: of it.

    """
    lasting = replace(terms, rounds=1, arrivals=SYNCHRONOUS).pack()
    return primitives.digest(b"mqtt training", hashlib.sha256(lasting).digest(), name.encode())[:RUN_BYTES]


def sum_number(round_number: int, begun: int) -> int:
    """Return which of the training's sums one is that begins in this second: no other attempt at the round has it.

    >>> sum_number(3, 1_700_000_000) < sum_number(3, 1_700_000_001) < sum_number(4, 0)
    True
    """
    return (round_number << ATTEMPT_BITS) + begun % (1 << ATTEMPT_BITS)


def round_of(number: int) -> int:
    """Return the round that a sum is of.

    >>> round_of(sum_number(3, 1_700_000_000))
    3
    """
    return number >> ATTEMPT_BITS


def sum_uplink(terms: Terms) -> SecureUplink:
    """Return the arithmetic of a training's sums."""
    sums = terms.sums
    assert sums is not None
    codec = terms.session.codec
    return SecureUplink(codec, terms.d, terms.per_round, sums.clip, sums.noise_multiplier, sums.ring_bits)


def sum_terms(uplink: SecureUplink, run: bytes, number: int, terms: Terms) -> SumTerms:
    """Return the terms of the protocol that a sum has in a training: the only ones that its clients agree to."""
    sums = terms.sums
    assert sums is not None
    return uplink.terms(run, number, threshold=sums.threshold(terms.per_round), neighbours=sums.neighbours)


def decline(tag: bytes, reason: str) -> bytes:
    """Return what a client says that has no part in a sum, or none any more: which one, and why."""
    return _DECLINED + tag + reason.encode()[:_MOST_REASON]


class SumGatherer:
    """Takes what clients send to the sums of a training, and hands out the mean of each round.

    Args:
        name: of the training.
        terms: of it.
        send: called with messages to clients.

    """

    def __init__(self, name: str, terms: Terms, send: Send) -> None:
        self.terms = terms
        self._run = training_of(name, terms)
        self._send = send
        self._uplink = sum_uplink(terms)
        self._inbox: queue.SimpleQueue[tuple[int, bytes] | RunError] = queue.SimpleQueue()
        self._round = -1
        self._in_vain = 0  # sums in a row that too few clients would have a part in
        self.drops = Drops()
        self.duplicates = self.late = 0

    def open(self, round_number: int) -> None:
        """Begin the next round."""
        self._round = round_number

    def receive(self, client: int, data: bytes) -> None:
        """Take what a client sent, from any thread."""
        self._inbox.put((client, data))

    def fail(self, problem: str) -> None:
        """End the wait of whoever waits for a round: nothing can come any more."""
        self._inbox.put(RunError(problem))

    def remember(self, contributions: Sequence[Contribution]) -> None:
        """Nothing of an earlier round can come into a sum."""

    def wait(self) -> Counted:
        """Go through the phases of the round's sum, and return the mean of those whose updates are in it.

        Raises:
            RunError: nothing can come any more, or clients decline one sum after the other.

        """
        number = sum_number(self._round, int(time.time()))
        protocol = sum_terms(self._uplink, self._run, number, self.terms)
        hall = _Hall(SecureServer(protocol), self.terms.sample(self._round).tolist())
        self._send([(None, hall.server.open())])
        try:
            self._hold(hall)
            while hall.server.phase != Phase.UNMASK:
                hall.enter(hall.server.advance())
                self._send(list(hall.openings.items()))
                self._hold(hall)
            total = hall.server.finish()
        except SecureSumError as error:
            self._abort(hall, error)
            return Counted((), [], hall.nbytes)
        self._in_vain = 0
        clients = [hall.clients[place] for place in hall.server.included]
        key = self.terms.key(self._round, clients[0])
        bundle = self._uplink.bundle(total, len(clients), key, self.terms.mean_bits or 32)
        return Counted(tuple(map(Contribution, clients)), list(bundle.updates), hall.nbytes, total)

    def _abort(self, hall: "_Hall", error: SecureSumError) -> None:
        _log.warning("round %s: the secure sum was aborted, and the model stays as it is: %s", self._round, error)
        self._in_vain = self._in_vain + 1 if hall.server.phase == Phase.ADVERTISE else 0
        if self._in_vain >= MOST_DECLINED:
            raise RunError(
                f"{len(hall.declined)} of {len(hall.clients)} clients decline the sum of round {self._round}, as they "
                f"did the one before; the last reason: {hall.reason!r:.220}"
            )

    # ------------------------------------------------------------------------------------------------- a phase

    def _hold(self, hall: "_Hall") -> None:
        """Take answers until a phase is over: all are here, or time is up, or too few can come."""
        wait = self.terms.arrivals.wait or PHASE_S
        threshold = hall.server.terms.threshold
        target = self._target(hall)
        # Until a sum can come about, waiting for clients to connect costs nothing.
        begun = None if hall.server.phase == Phase.ADVERTISE else time.monotonic()
        asked, silences = time.monotonic(), 0
        while True:
            here, missing = len(hall.answered), hall.missing
            if here >= target or not missing or here + len(missing) < threshold:
                return
            now = time.monotonic()
            if begun is None and here >= threshold:
                begun = now
            if begun is not None and now - begun >= wait:
                for _ in range(self._inbox.qsize()):  # what came in time counts, however long it takes to read
                    self._take_next(hall, 0.0)
                if hall.missing and len(hall.answered) < target:
                    self._log_leavers(hall)
                return
            if now - asked >= ASK_AGAIN:
                asked, silences = now, silences + 1
                self._ask_again(hall, silences)
            left = ASK_AGAIN if begun is None else begun + wait - now
            self._take_next(hall, min(1.0, left))

    def _take_next(self, hall: "_Hall", patience: float) -> None:
        """Take the next message, if one comes in these seconds."""
        try:
            came = self._inbox.get(timeout=max(0.001, patience))
        except queue.Empty:
            return
        if isinstance(came, RunError):
            raise came
        self._take(hall, *came)

    def _target(self, hall: "_Hall") -> int:
        """After how many answers the phase is over."""
        if hall.server.phase == Phase.UNMASK and not hall.server.terms.neighbours:
            return hall.server.terms.threshold  # more shares than lift the masks are not needed
        return self.terms.arrivals.target(len(hall.expected))

    def _take(self, hall: "_Hall", client: int, data: bytes) -> None:
        """Take one message; one that does not count is dropped, with a reason in the log."""
        tag = hall.server.terms.digest[:_TAG_BYTES]
        try:
            if client not in hall.places:
                raise RunError("it was not asked in that round")
            if data[:1] == _DECLINED:
                if data[1 : 1 + _TAG_BYTES] == tag:
                    hall.take_leave(client, data[1 + _TAG_BYTES :])
                    _log.info("round %s: client %s declines: %r", self._round, client, hall.reason)
                return
            if tag_of(data) != tag:
                self.late += 1  # of a sum that is over: shares beyond the threshold are, in every round
                return
            if client in hall.answered:
                self.duplicates += 1
                return
            hall.server.receive(hall.places[client], data)
        except FedmpddError as error:
            self.drops.note(self._round, client, str(error))
            return
        hall.answered.add(client)
        hall.nbytes += len(data)

    def _ask_again(self, hall: "_Hall", times: int) -> None:
        missing = sorted(hall.missing)
        text = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        phase = hall.server.phase
        _log.log(
            level_of_silence(times),
            "round %s, %s: asking %s clients again: %s",
            self._round,
            phase.name,
            len(missing),
            text,
        )
        if phase == Phase.ADVERTISE:
            self._send([(None, hall.server.open())])
        else:
            self._send([(client, hall.openings[client]) for client in missing])

    def _log_leavers(self, hall: "_Hall") -> None:
        gone = ", ".join(map(str, sorted(hall.missing)[:10]))
        _log.warning("round %s: no %s came from clients %s in time", self._round, hall.server.phase.name, gone)


class _Hall:
    """A sum that is under way: who has which number in it, and who answered in the phase."""

    def __init__(self, server: SecureServer, clients: Sequence[int]) -> None:
        self.server = server
        self.clients = list(clients)
        self.places = {client: place for place, client in enumerate(clients)}
        self.expected = set(clients)
        self.answered: set[int] = set()
        self.declined: set[int] = set()
        self.openings: dict[int, bytes] = {}
        self.reason = ""  # that the last one gave who declined
        self.nbytes = 0

    @property
    def missing(self) -> set[int]:
        """Who may answer still."""
        return self.expected - self.answered - self.declined

    def enter(self, openings: dict[int, bytes]) -> None:
        """Go on to the next phase, which these messages open."""
        self.openings = {self.clients[place]: message for place, message in openings.items()}
        self.expected, self.answered = set(self.openings), set()

    def take_leave(self, client: int, reason: bytes) -> None:
        """Wait for a client no more."""
        self.declined.add(client)
        self.reason = reason[:_MOST_REASON].decode(errors="replace")
