"""A node's part in secure sums: it answers the phases of the protocol, and masks what its train function returns.

A round takes four messages to a node, with signatures five. All are train messages, so that an app needs no other
functions: the mod answers them, and the train function runs for one of them alone.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedmpdd.codecs import NO_KEY
from fedmpdd.documents import parse_json
from fedmpdd.errors import InputError, OrderError, SecureSumError
from fedmpdd.flower.instructions import ORDER, UPDATE, RoundInstructions
from fedmpdd.flower.layout import Float32
from fedmpdd.flower.policy import ClientPolicy, updates_sent
from fedmpdd.secure_sum import Identity, Ledger, Phase, SecureClient, primitives, read_terms
from fedmpdd.secure_sum.ledger import Entry, entries_of, text_of
from fedmpdd.secure_sum.terms import RUN_BYTES
from fedmpdd.uplink.secure import SecureUplink

SECURE = "fedmpdd.secure"  # in a message: what the protocol says; in the node's own state: what it knows of a sum
CLIENT, PROTECTION = "client", "protection"  # in the message that opens a round: the node's number, clip and noise
_STATE, _LEDGER = "state", "ledger"  # in the node's own state


def training_of(run_id: int) -> bytes:
    """Return the name that the secure sums of one Flower run have in their terms.

    Both sides derive it, so that a server cannot have a vector summed again under another name in the same run.

    Args:
        run_id: of Flower's run.

    Returns:
        What `Terms.run` is.

    """
    return primitives.digest(b"flower run", run_id.to_bytes(8, "little"))[:RUN_BYTES]


class StateLedger(Ledger):
    """A ledger in the node's own state, which Flower keeps as long as the SuperNode lives.

    Args:
        state: of the node.
        run: the training that is taken part in.

    """

    def __init__(self, state: RecordDict, run: bytes) -> None:
        super().__init__(run)
        self._state = state

    @contextmanager
    def _entries(self) -> Iterator[dict[bytes, Entry]]:
        yield self._read()

    def _read(self) -> dict[bytes, Entry]:
        text = _kept(self._state).get(_LEDGER)
        if text is None:
            return {}
        try:
            return entries_of(str(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"the ledger in this node's state cannot be read ({error}): what it answered is not known, so that it "
                "must not answer; restart the SuperNode and join a new run"
            ) from None

    def _write(self, entries: dict[bytes, Entry]) -> None:
        _keep(self._state, _LEDGER, text_of(entries))


class Member:
    """A node in the secure sums of a run: whatever it knows between two messages lies in its state."""

    def __init__(self, message: Message, context: Context, policy: ClientPolicy) -> None:
        self._run = training_of(message.metadata.run_id)
        self._state = context.state
        self._policy = policy
        self._ledger = StateLedger(context.state, self._run) if policy.ledger is None else policy.ledger(context)
        self._identity = None if policy.identity is None else policy.identity(context)

    def answer(self, record: Mapping[str, object]) -> RecordDict:
        """Answer a phase in which nothing is trained.

        Args:
            record: what came.

        Returns:
            The content of the reply.

        """
        opening = record[SECURE]
        if not isinstance(opening, bytes):
            raise OrderError(f"the message of the secure sum is {type(opening).__name__}, expected bytes")
        client = self._enter(opening, record) if PROTECTION in record else self.resume()
        answer = client.answer(opening)
        self.keep(client)
        return RecordDict({ORDER: ConfigRecord({UPDATE: answer})})

    def _enter(self, opening: bytes, record: Mapping[str, object]) -> SecureClient:
        """Return this node as a client of the round that opens, or raise where it will have no part in it."""
        terms = read_terms(opening)
        if terms.run != self._run:
            raise OrderError(
                f"the terms name the training {terms.run.hex()}, and this Flower run is {self._run.hex()}: nothing is "
                "told; is the strategy fedmpdd's?"
            )
        protection = parse_json(str(record[PROTECTION]))
        if not isinstance(protection, dict) or not all(type(one) in (int, float) for one in protection.values()):
            raise OrderError(f"the round's clip and noise came as {str(protection)[:40]}, expected numbers by name")
        self._policy.check_protection(protection, updates_sent(self._state))
        if terms.signed and self._identity is None:
            raise OrderError(
                "the terms ask for signatures, and this node was given no identity to sign with: pass "
                "ClientPolicy(identity=…)"
            )
        number = record.get(CLIENT) if self._identity is None else _number_of(self._identity)
        if type(number) is not int:
            raise OrderError(f"the node's number in the sum is {number!r}, expected one of {terms.clients}")
        return SecureClient(
            terms,
            number,
            self._ledger,
            fewest_clients=self._policy.fewest_clients,
            colluders=self._policy.colluders,
            identity=self._identity,
        )

    def resume(self) -> SecureClient:
        """Return this node as the client that it was after its last message."""
        state = _kept(self._state).get(_STATE)
        if not isinstance(state, bytes) or not state:
            raise SecureSumError(
                "this node has no part in a secure sum: it was not asked before, or was started again since; it takes "
                "part in the next round"
            )
        return SecureClient.from_state(state, self._ledger, identity=self._identity)

    def keep(self, client: SecureClient) -> None:
        """Keep what a client knows for the next message, and nothing once its round is over."""
        _keep(self._state, _STATE, b"" if client.phase == Phase.DONE else client.state())


@dataclass(frozen=True)
class Masking:
    """What becomes of a gradient in a round of secure sums."""

    member: Member
    client: SecureClient
    inbox: bytes
    uplink: SecureUplink
    order: RoundInstructions

    def masked(self, gradient: Float32) -> bytes:
        """Return what the node sends of its gradient: clipped, with noise, under its masks."""
        answer = self.uplink.masked(self.client, self.inbox, gradient, self.order.key or NO_KEY)
        self.member.keep(self.client)
        return answer


def masking_of(
    order: RoundInstructions, inbox: object, message: Message, context: Context, policy: ClientPolicy
) -> Masking | None:
    """Return how a node masks what it will compute by an order, None where updates go alone.

    Args:
        order: of the server.
        inbox: what came beside it from the protocol.
        message: that both came in.
        context: of the node.
        policy: what the node insists on.

    """
    if not order.secure and inbox is None:
        return None
    if not order.secure or not isinstance(inbox, bytes):
        raise OrderError("the order and the message of the secure sum do not belong together: one of them is missing")
    codec = order.make_codec()
    if order.error_feedback or order.protection or (codec.needs_key and order.key is None):
        raise OrderError(
            "a secure sum has one key for all clients, a clip of its own, and no memories: nothing is told"
        )
    member = Member(message, context, policy)
    client = member.resume()
    if client.phase != Phase.MASK:
        raise SecureSumError(f"a masked vector was asked of a node that is at {client.phase.name}: start a new round")
    terms = client.terms
    try:
        uplink = SecureUplink(codec, order.layout.d, terms.clients, ring_bits=terms.ring_bits, **order.secure)
    except TypeError as error:
        raise OrderError(f"the order's secure sum cannot be followed: {error}") from None
    return Masking(member, client, inbox, uplink, order)


def phase_of(message: Message) -> Mapping[str, object] | None:
    """Return what a message says of a phase in which nothing is trained, None if it is another message."""
    for record in message.content.config_records.values():
        if SECURE in record and ORDER not in record:
            return record
    return None


def opening_record(protection: Mapping[str, float], opening: bytes, number: int | None) -> ConfigRecord:
    """Return what opens a round for a node.

    Args:
        protection: clip and noise of the round.
        opening: what the protocol says.
        number: the node's number in the round, None where it has one by its signing key.

    """
    record = ConfigRecord({SECURE: opening, PROTECTION: json.dumps(protection)})
    if number is not None:
        record[CLIENT] = number
    return record


def _number_of(identity: Identity) -> int:
    """The number that the roster has for this node's signing key."""
    key = primitives.verify_key_of(identity.signing_key)
    if key not in identity.roster.verify_keys:
        raise InputError("the roster of this node does not have its verify key: take the roster of this training")
    return identity.roster.verify_keys.index(key)


def _kept(state: RecordDict) -> ConfigRecord:
    return state.config_records.get(SECURE, ConfigRecord())


def _keep(state: RecordDict, name: str, value: str | bytes) -> None:
    state[SECURE] = ConfigRecord({**_kept(state), name: value})
