"""How many bytes the server sends: the whole model to every client of a round, or what each needs to catch up."""

from collections.abc import Iterable
from itertools import pairwise

from fedmpdd.simulation.catch_up import PER_BUNDLE, PER_MESSAGE


class ModelDownlink:
    """Algorithm 2, line 4: the model to every client of the round, 4·d bytes, as the paper counts."""

    def __init__(self, d: int) -> None:
        self._model = 4 * d

    def send(self, clients: Iterable[int], round_number: int) -> int:
        """Return the bytes that reach these clients before a round."""
        return self._model * sum(1 for _ in clients)

    def add(self, bundle_bytes: int) -> None:
        """Take note of what a round added to the model."""

    sizes: tuple[int, ...] = ()


class ReplayDownlink:
    """Bundles of the rounds that a client missed, or the model where that is less; the journal's header at first.

    A client keeps the model that it had last. One that was never there builds the initial model from the header.

    vectors: bytes of a model, and of what the server's optimiser keeps, which who follows needs too.
    """

    def __init__(self, vectors: int, header_bytes: int) -> None:
        self._vectors = vectors
        self._header = header_bytes
        self._total = [0]  # bytes of the bundles of all rounds before, by round
        self._has: dict[int, int] = {}  # the round whose starting model a client has

    def send(self, clients: Iterable[int], round_number: int) -> int:
        """Return the bytes that reach these clients before a round; rounds go in order."""
        sent = 0
        for client in clients:
            known = self._has.get(client)
            missed = self._total[round_number] - self._total[known or 0]
            sent += PER_MESSAGE + min(missed, self._vectors) + (self._header if known is None else 0)
            self._has[client] = round_number
        return sent

    def add(self, bundle_bytes: int) -> None:
        """Take note of what a round added to the model."""
        self._total.append(self._total[-1] + PER_BUNDLE + bundle_bytes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the bundles of all rounds so far."""
        return tuple(after - before - PER_BUNDLE for before, after in pairwise(self._total))


Downlink = ModelDownlink | ReplayDownlink
