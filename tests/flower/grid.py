"""A Grid in one process: a ClientApp per node, run when a message comes. What nodes do wrong, tests put in between."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Between = Callable[[int, Message, Message], list[Message]]  # node, instruction, reply: what really arrives


class InProcessGrid(Grid):
    """Nodes 0, 1, … of one app, each with its own context; every reply goes through `between`."""

    def __init__(self, app: ClientApp, nodes: int, between: Between | None = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # who writes messages
        self._app = app
        self._between = between or (lambda node, message, reply: [reply])
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={"node": node}, state=RecordDict(), run_config={})
            for node in range(nodes)
        }

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies: list[Message] = []
        for message in messages:
            node = message.metadata.dst_node_id
            reply = self._app(message, self.contexts[node])
            replies += self._between(node, message, reply)
        return replies
