"""The client's side: whatever the user's train function returns becomes one frame."""

import secrets
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.app.error import Error

from fedmpdd.directions import Key
from fedmpdd.errors import FedmpddError, InputError, OrderError
from fedmpdd.flower import replay
from fedmpdd.flower.buffers import BUFFERS, STATISTICS, keep_statistics, receive_buffers, with_kept_statistics
from fedmpdd.flower.instructions import CATCH_UP, ORDER, ROUND, UNCHANGED, UPDATE, RoundInstructions
from fedmpdd.flower.layout import Float32, pack_flat, read_flat
from fedmpdd.flower.policy import ClientPolicy, count_update, order_of, updates_sent
from fedmpdd.flower.secure_mod import SECURE, Masking, Member, masking_of, phase_of

MEMORY = "fedmpdd.memory"  # of error feedback, in the node's own state
REFUSED = 0x464D  # an error code of ours: the user's function was not at fault
REPLICA_LOST = 0x464E  # another: what later rounds added is of no use here, a model would be
MOST_UNCHANGED = 8  # names of arrays that a node tells of,
TOLD_IN = 2  # and the round: in the first one half of the matrices of adapters have no gradient yet
_OURS = (ORDER, CATCH_UP, SECURE, BUFFERS, STATISTICS)  # keys that the train function does not see

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]


def fedmpdd_mod(message: Message, context: Context, call_next: CallNext) -> Message:
    """Turn what a train function returns, a model or a gradient, into one frame of the server's codec.

    Use it where the train function is: `@app.train(mods=[fedmpdd_mod])`. Messages of other strategies pass untouched.
    Codec, clip and noise are the server's choice; `make_mod` makes a mod that insists on some of them. Where statistics
    of batch norm stay on nodes, the evaluate function needs the mod too, to get them.
    """
    return _train(message, context, call_next, ClientPolicy())


def make_mod(policy: ClientPolicy) -> Mod:
    """Return a `fedmpdd_mod` that refuses orders which do not meet a policy, and train messages without an order.

    Args:
        policy: what the client insists on; one that asks for nothing makes `fedmpdd_mod` itself. The reason of a
            refusal reaches the server's log.

    Example:
        >>> mod = make_mod(ClientPolicy(largest_clip=2.0, least_noise=0.5))

    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        return _train(message, context, call_next, policy)

    return mod


def _train(message: Message, context: Context, call_next: CallNext, policy: ClientPolicy) -> Message:
    kind = message.metadata.message_type.split(".")[0]
    if kind == MessageType.EVALUATE:
        for name, arrays in list(message.content.array_records.items()):
            message.content[name] = with_kept_statistics(arrays, context.state)
    if kind != MessageType.TRAIN:
        return call_next(message, context)
    phase = phase_of(message)
    if phase is not None:
        try:
            return Message(Member(message, context, policy).answer(phase), reply_to=message)
        except FedmpddError as error:
            return _refusal(message, error)
    asked = [(name, record) for name, record in message.content.config_records.items() if ORDER in record]
    if not asked:
        if policy == ClientPolicy():
            return call_next(message, context)
        return _refusal(message, OrderError("the message has no order of fedmpdd, and this client insists on one"))
    name, config = asked[0]
    try:
        order = RoundInstructions.from_text(
            config[ORDER], replay.known_layout(context.state) if CATCH_UP in config else None
        )
    except FedmpddError as error:
        return _refusal(message, error, REPLICA_LOST if CATCH_UP in config else REFUSED)
    try:
        policy.check(order_of(order), updates_sent(context.state))
        masking = masking_of(order, config.get(SECURE), message, context, policy)
    except FedmpddError as error:
        return _refusal(message, error)
    try:
        arrays_name, start = _model_of(message.content, config.get(CATCH_UP), order, context)
        follows = order.follow is not None
        buffers = receive_buffers(order.layout.buffers, config, context.state, keeps=follows)
    except FedmpddError as error:
        return _refusal(message, error, REPLICA_LOST if CATCH_UP in config else REFUSED)
    message.content[name] = ConfigRecord({key: value for key, value in config.items() if key not in _OURS})
    message.content[arrays_name] = with_kept_statistics(order.layout.unflatten(start, buffers), context.state)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    try:
        reply.content = _reply(reply.content, order, start, context, policy, masking)
    except FedmpddError as error:
        return _refusal(message, error)
    return reply


def _model_of(content: RecordDict, added: object, order: RoundInstructions, context: Context) -> tuple[str, Float32]:
    """The model that the round starts from, and the name of its record: it came, or what was added since did."""
    records = list(content.array_records.items())
    if order.follow is not None and added is not None:
        return order.follow.arrays, replay.catch_up(order, order.follow, added, context.state)
    if len(records) != 1:
        raise InputError(f"{len(records)} ArrayRecords came, expected the model alone")
    name, arrays = records[0]
    if order.follow is not None:
        return name, replay.begin(order, order.follow, arrays, context.state)
    return name, read_flat(arrays, order.layout.d)


def _reply(
    content: RecordDict,
    order: RoundInstructions,
    start: Float32,
    context: Context,
    policy: ClientPolicy,
    masking: Masking | None,
) -> RecordDict:
    """One ConfigRecord: every record of a reply would cost a request of its own."""
    returned = list(content.array_records.values())
    if len(returned) != 1:
        raise InputError(
            f"the train function returned {len(returned)} ArrayRecords; expected one, the {order.returns} it computed"
        )
    values = order.layout.flatten(returned[0])
    gradient = values if order.returns == "gradient" else start - values
    if not np.isfinite(gradient).all():
        raise InputError(f"the {order.returns} that was computed is not finite: lower the learning rate")
    frame = _frame(gradient, order, context) if masking is None else masking.masked(gradient)
    beside = _beside(returned[0], gradient, order, context, hides=masking is not None or bool(order.protection))
    metrics = {key: value for record in content.metric_records.values() for key, value in record.items()}
    if policy.metrics is not None:
        metrics = {key: value for key, value in metrics.items() if key in policy.metrics}
    count_update(context.state)
    if taken := {UPDATE, ROUND, STATISTICS, UNCHANGED} & set(metrics):
        raise InputError(f"the metric {sorted(taken)[0]!r} has a name that fedmpdd needs; rename it")
    record = ConfigRecord({UPDATE: frame, ROUND: order.round, **beside, **metrics})
    return RecordDict({ORDER: record})


def _beside(
    returned: ArrayRecord, gradient: Float32, order: RoundInstructions, context: Context, *, hides: bool
) -> dict[str, bytes | list[str]]:
    """What goes beside an update: statistics of batch norm, and once which arrays did not change."""
    beside: dict[str, bytes | list[str]] = {}
    buffers = order.layout.buffers
    arrays = buffers.of(returned)
    keep_statistics(buffers, arrays, context.state)
    if buffers.averaged:
        vector = buffers.statistics(arrays)
        beside[STATISTICS] = vector.astype("<f4").tobytes()
        buffers.read_statistics(beside[STATISTICS])  # what the server would drop is an error here
    parts = zip(order.layout.names, order.layout.split(gradient), strict=True)
    unchanged = [name for name, part in parts if not part.any()]
    if unchanged and order.round == TOLD_IN and not hides and gradient.any():
        beside[UNCHANGED] = unchanged[:MOST_UNCHANGED]
    return beside


def _frame(gradient: Float32, order: RoundInstructions, context: Context) -> bytes:
    """What leaves the node: one frame, by the path that all engines take."""
    uplink = order.make_uplink()
    if uplink.memory is not None and MEMORY in context.state.array_records:
        uplink.memory.load({0: read_flat(context.state.array_records[MEMORY], gradient.size)})
    key = order.key or Key(secrets.randbits(64))
    (update,) = uplink.encode(0, gradient[np.newaxis], [key], [0]).batch.updates()
    if uplink.memory is not None:
        context.state[MEMORY] = pack_flat(uplink.memory.state()[0])
    return uplink.session(0).pack(update)


def _refusal(message: Message, error: FedmpddError, code: int = REFUSED) -> Message:
    return Message(Error(code=code, reason=f"fedmpdd: {error}"), reply_to=message)
