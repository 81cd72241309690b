"""Where the messages of a training stand at a broker; a client's number is in its topics, for the broker's ACL."""

import re
from dataclasses import dataclass

from fedmpdd.errors import ConfigError

PREFIX = "fedmpdd"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_CLIENT = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


@dataclass(frozen=True)
class Topics:
    """The topics of a training.

    Args:
        name: of the training.

    Example:
        >>> topics = Topics("site-4")
        >>> topics.round, topics.update(17)
        ('fedmpdd/site-4/round', 'fedmpdd/site-4/up/17')

    """

    name: str

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that no topic can have."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"training {self.name!r:.80}: expected 1 to 64 letters, digits, dots, dashes and underscores"
            )

    def _topic(self, *levels: object) -> str:
        return "/".join([PREFIX, self.name, *map(str, levels)])

    @property
    def terms(self) -> str:
        """Retained: what both sides agree on."""
        return self._topic("terms")

    @property
    def round(self) -> str:
        """Retained: the round that begins, with what the one before added."""
        return self._topic("round")

    def tail(self, number: int | str) -> str:
        """Retained: the last rounds' messages, a ring of them; "+" for all."""
        return self._topic("tail", number)

    def model(self, number: int | str) -> str:
        """Retained: the parts of a model; "+" for all."""
        return self._topic("model", number)

    @property
    def missing(self) -> str:
        """Not retained: a mark for each client whose update is missing."""
        return self._topic("missing")

    def update(self, client: int | str) -> str:
        """What a client sends; "+" for all of them."""
        return self._topic("up", client)

    @property
    def sum(self) -> str:
        """Retained: what opens the secure sum of the round."""
        return self._topic("sum")

    def to(self, client: int) -> str:
        """Not retained: what opens a phase of a secure sum for a client."""
        return self._topic("to", client)

    def presence(self, client: int | str) -> str:
        """Retained: whether a client is connected, "1", or was, "0"; "+" for all of them."""
        return self._topic("here", client)

    def client_of(self, topic: str) -> int | None:
        """Return the client whose topic this is; None for what is no client's."""
        last = topic.rpartition("/")[2]
        return int(last) if _CLIENT.fullmatch(last) else None
