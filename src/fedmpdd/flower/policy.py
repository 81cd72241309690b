"""What a node knows of its policy: how many updates it has sent, and what an order asks."""

from flwr.app import ConfigRecord, RecordDict

from fedmpdd.flower.instructions import RoundInstructions
from fedmpdd.uplink.policy import ClientPolicy as ClientPolicy
from fedmpdd.uplink.policy import Order

SENT = "fedmpdd.sent"  # in the node's own state: how many updates it has sent
_COUNT = "updates"


def order_of(instructions: RoundInstructions) -> Order:
    """Return what a policy looks at of a round's instructions."""
    averaged = instructions.layout.buffers.averaged
    return Order(
        instructions.make_codec(), instructions.key, instructions.protection, instructions.secure, bool(averaged)
    )


def updates_sent(state: RecordDict) -> int:
    """Return how many updates a node has sent, by its own state."""
    count = state.config_records.get(SENT, ConfigRecord()).get(_COUNT, 0)
    return count if isinstance(count, int) else 0


def count_update(state: RecordDict) -> None:
    """Take note, before it leaves, that an update is sent."""
    state[SENT] = ConfigRecord({_COUNT: updates_sent(state) + 1})
