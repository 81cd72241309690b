"""The server's side of secure sums: one round of the protocol over Flower's messages.

The strategy asks nodes for keys and shares before its train messages go out, and for what lifts the masks after the
replies came. Whoever does not answer a phase, or answers it wrongly, has dropped out of the round.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedmpdd.codecs import NO_KEY, Codec
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError, FedmpddError, ReplyError
from fedmpdd.flower.instructions import ORDER, ROUND, UPDATE
from fedmpdd.flower.replies import Contribution
from fedmpdd.flower.secure_mod import SECURE, opening_record, training_of
from fedmpdd.secure_sum import Phase, Roster, SecureServer
from fedmpdd.secure_sum.messages import sender_of
from fedmpdd.uplink import RobustMean, SecureRounds, check_memory
from fedmpdd.uplink.codec_config import CodecConfig
from fedmpdd.uplink.secure import Elements, SecureUplink


def check_secure(
    secure: SecureRounds | None,
    roster: Roster | None,
    codec: CodecConfig | None,
    weighting: str,
    robust: RobustMean | None,
    *,
    tells_statistics: bool = False,
) -> None:
    """Raise ConfigError for settings of the strategy that a secure sum cannot keep, all of them at once.

    Args:
        secure: the settings of the sums, None where updates go alone.
        roster: of verify keys.
        codec: None where it is to be chosen.
        weighting: of the strategy.
        robust: its mean, None for the plain one.
        tells_statistics: whether nodes send statistics of batch norm.

    """
    if secure is None:
        if roster is not None:
            raise ConfigError("roster is of the clients of secure sums; pass secure=SecureRounds(…) too")
        return
    if tells_statistics:
        raise ConfigError(
            'batch_norm = "averaged" tells the server the statistics of every single node, which a secure sum would '
            'not; use batch_norm = "local"'
        )
    if codec is None:
        raise ConfigError('secure needs a codec by name, "mpdd:m=…:keys=shared" or "fedsgd", whose numbers add up')
    built, protects = codec.build(), codec.protection() is not None
    if codec.error_feedback:
        check_memory(built, hidden=True)
    secure.check_parts(built, codec.keys, weighting=weighting, robust=robust is not None, protects=protects)


def protection_of(secure: SecureRounds) -> dict[str, float]:
    """Return what orders say of secure sums: clip and noise."""
    return {"clip": secure.clip, "noise_multiplier": secure.noise_multiplier}


@dataclass
class SecureRound:
    """One round: `gather` before train messages are sent, `contributions` of what comes back.

    Args:
        number: of the round, for the log.
        sum_number: which of the training's sums this is. Nodes take part in each once.
        settings: of the sums.
        codec: of the round.
        d: coordinates of the model.
        key: of the directions, None for a codec without.
        mean_bits: bits of the scalars of the round's mean.
        grid: that carries messages.
        timeout: seconds to wait in each phase.
        roster: verify keys of all clients, where they sign.

    """

    number: int
    sum_number: int
    settings: SecureRounds
    codec: Codec
    d: int
    key: Key | None
    mean_bits: int
    grid: Grid
    timeout: float
    roster: Roster | None = None
    asked: int = field(default=0, init=False)  # nodes
    aborted: bool = field(default=False, init=False)
    bytes_down: int = field(default=0, init=False)  # of the protocol, all nodes together
    total: Elements | None = field(default=None, init=False)  # the sum of the integers, once it is known,
    included: tuple[int, ...] = field(default=(), init=False)  # and the nodes whose integers it is of
    _uplink: SecureUplink = field(init=False)
    _server: SecureServer = field(init=False)
    _nodes: dict[int, int] = field(default_factory=dict, init=False)  # by number in the round,
    _numbers: dict[int, int] = field(default_factory=dict, init=False)  # and the numbers by node
    _inboxes: dict[int, bytes] = field(default_factory=dict, init=False)  # what opens MASK, by node
    _bytes_up: dict[int, int] = field(default_factory=dict, init=False)  # by node
    _metrics: dict[int, dict[str, Any]] = field(default_factory=dict, init=False)  # of those who masked, by node

    def gather(self, messages: list[Message]) -> list[Message]:
        """Have nodes agree on keys and share their secrets.

        Args:
            messages: the train messages of the nodes that are asked.

        Returns:
            Those of the nodes that can go on, and none of a round that is aborted.

        """
        self.asked = len(messages)
        nodes = [message.metadata.dst_node_id for message in messages]
        try:
            self._begin(messages[0].metadata.run_id if messages else 0)
            self._ask(self._openings(nodes))
            self._ask(self._records(self._server.advance()))
            self._inboxes = {self._nodes[number]: inbox for number, inbox in self._server.advance().items()}
        except FedmpddError as error:
            self._abort(error)
        return [message for message in messages if message.metadata.dst_node_id in self._inboxes]

    def _begin(self, run_id: int) -> None:
        """Settle the terms, or raise where there can be no sum of so many nodes."""
        settings, signed = self.settings, self.roster is not None
        clients = self.asked if self.roster is None else len(self.roster.verify_keys)
        settings.check(clients)
        self._uplink = SecureUplink(
            self.codec, self.d, clients, settings.clip, settings.noise_multiplier, settings.ring_bits
        )
        threshold, neighbours = settings.threshold(clients), settings.neighbours
        terms = self._uplink.terms(
            training_of(run_id), self.sum_number, threshold=threshold, neighbours=neighbours, signed=signed
        )
        self._server = SecureServer(terms, self.roster)

    def _openings(self, nodes: list[int]) -> dict[int, ConfigRecord]:
        """What opens the round for each node; where clients sign, they have numbers already."""
        opening, protection = self._server.open(), protection_of(self.settings)
        if self.roster is not None:
            return {node: opening_record(protection, opening, None) for node in nodes}
        self._nodes = dict(enumerate(nodes))
        self._numbers = {node: number for number, node in self._nodes.items()}
        return {node: opening_record(protection, opening, number) for node, number in self._numbers.items()}

    def add_inbox(self, message: Message) -> None:
        """Put what opens the phase MASK into a train message, beside its order."""
        node = message.metadata.dst_node_id
        for record in message.content.config_records.values():
            if ORDER in record:
                record[SECURE] = self._inboxes[node]
        self.bytes_down += len(self._inboxes[node])

    def contributions(self, replies: Iterable[Message]) -> list[Contribution]:
        """Take masked vectors, lift the masks of their sum, and return whose update was in it.

        Args:
            replies: to the train messages, errors left out.

        Returns:
            A contribution of each, with the mean of all as its update; none of a round that is aborted.

        """
        if self.aborted:
            return []
        try:
            return self._finish(replies)
        except FedmpddError as error:
            self._abort(error)
            return []

    def _finish(self, replies: Iterable[Message]) -> list[Contribution]:
        for reply in replies:
            self._take(reply)
        self._log_leavers(self._inboxes)
        while self._server.phase != Phase.UNMASK:
            self._ask(self._records(self._server.advance()))
        self.total = self._server.finish()
        numbers = self._server.included
        self.included = tuple(self._nodes[number] for number in numbers)
        bundle = self._uplink.bundle(self.total, len(numbers), self.key or NO_KEY, self.mean_bits)
        log(INFO, "round %s: a secure sum of %s of %s nodes", self.number, len(numbers), self.asked)
        return [
            Contribution(node, bundle.updates[0], 1.0, self._metrics[node], self._bytes_up[node])
            for node in sorted(self.included)
        ]

    # ------------------------------------------------------------------------------------------------ a phase

    def _ask(self, records: dict[int, ConfigRecord]) -> None:
        """Send nodes what opens a phase, and take their answers."""
        messages = [
            Message(RecordDict({ORDER: record}), message_type=MessageType.TRAIN, dst_node_id=node)
            for node, record in records.items()
        ]
        openings = [record[SECURE] for record in records.values()]
        self.bytes_down += sum(len(opening) for opening in openings if isinstance(opening, bytes))
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            if reply.has_error():
                self._log_drop(reply.metadata.src_node_id, reply.error.reason)
            else:
                self._take(reply)
        self._log_leavers(records)

    def _records(self, openings: dict[int, bytes]) -> dict[int, ConfigRecord]:
        return {self._nodes[number]: ConfigRecord({SECURE: opening}) for number, opening in openings.items()}

    def _take(self, reply: Message) -> None:
        """Take a node's answer of this phase; one that does not count is logged with the reason."""
        node = reply.metadata.src_node_id
        try:
            values = dict(reply.content.config_records.get(ORDER, ConfigRecord()))
            answer = values.pop(UPDATE, None)
            if not isinstance(answer, bytes):
                raise ReplyError(
                    f"its answer is {type(answer).__name__}, expected bytes: does its app use fedmpdd_mod?"
                )
            number = self._number_of(node, answer)
            self._server.receive(number, answer)
        except FedmpddError as error:
            self._log_drop(node, str(error))
            return
        self._nodes[number], self._numbers[node] = node, number
        self._bytes_up[node] = self._bytes_up.get(node, 0) + len(answer)
        if self._server.phase == Phase.MASK:
            values.pop(ROUND, None)
            self._metrics[node] = values

    def _number_of(self, node: int, answer: bytes) -> int:
        """A node's number: given by the server, or where clients sign the one that it signs as."""
        if node in self._numbers:
            return self._numbers[node]
        if self.roster is None or self._server.phase != Phase.ADVERTISE:
            raise ReplyError("it was not asked in this round")
        return sender_of(answer)

    # ---------------------------------------------------------------------------------------------- the log

    def _log_leavers(self, asked: Iterable[int]) -> None:
        if gone := sorted(set(asked) - {self._nodes[number] for number in self._server.answered}):
            phase = self._server.phase.name
            log(WARNING, "round %s: no answer of nodes %s counted at %s; they left the sum", self.number, gone, phase)

    def _log_drop(self, node: int, reason: object) -> None:
        log(WARNING, "round %s: %s of node %s does not count: %s", self.number, self._server.phase.name, node, reason)

    def _abort(self, error: FedmpddError) -> None:
        self.aborted = True
        self._inboxes = {}
        log(WARNING, "round %s: the secure sum was aborted, and the model stays as it is: %s", self.number, error)
