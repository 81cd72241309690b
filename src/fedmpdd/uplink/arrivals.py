"""When a server steps, and what updates count that come late: how rounds go where clients answer in their own time."""

from dataclasses import dataclass

from fedmpdd.documents import check_number
from fedmpdd.errors import ConfigError


@dataclass(frozen=True)
class Arrivals:
    """When the server of a network steps, and what an update of an earlier round counts for.

    By default rounds are synchronous: the server waits for all clients of a round, however long that takes. The local
    engine, whose clients all answer at once, has no other rounds.

    Args:
        enough: updates after which the server steps; None for those of all clients of the round.
        wait: seconds after which it steps with those that came, if any did; None for no limit.
        max_age: by how many rounds an update may be late and still count.
        decay: what a round of age multiplies the weight of an update with.

    Example:
        >>> Arrivals(enough=20, wait=60.0, max_age=3, decay=0.5).weight(2)
        0.25

    """

    enough: int | None = None
    wait: float | None = None
    max_age: int = 0
    decay: float = 0.7

    def __post_init__(self) -> None:
        """Raise ConfigError for rounds that nobody can hold."""
        if self.enough is not None and (type(self.enough) is not int or self.enough < 1):
            raise ConfigError(f"enough = {self.enough!r}: expected a number of updates from 1, or none for all")
        if self.wait is not None:
            check_number("wait", self.wait, 1e-3, 1e9, "seconds above 0, or none for no limit")
        if type(self.max_age) is not int or not 0 <= self.max_age < 2**8:
            raise ConfigError(f"max_age = {self.max_age!r}: expected a number of rounds from 0 to 255")
        check_number("decay", self.decay, 1e-3, 1.0 + 1e-9, "a factor above 0, up to 1")

    @property
    def waits_for_all(self) -> bool:
        """Whether every client of a round is in it, and nobody of another."""
        return self.enough is None and self.wait is None and self.max_age == 0

    def weight(self, age: int) -> float:
        """Return what an update counts for that is so many rounds old; one of the round itself counts for 1."""
        weight = 1.0
        for _ in range(age):  # products, and no power, whose last bit depends on the machine
            weight *= self.decay
        return weight

    def target(self, asked: int) -> int:
        """Return after how many updates the server steps, of so many clients that were asked."""
        return asked if self.enough is None else min(self.enough, asked)


SYNCHRONOUS = Arrivals()
