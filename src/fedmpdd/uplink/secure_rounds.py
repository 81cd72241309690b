"""What is agreed on about secure sums before any round: shares of a round's clients become numbers of clients.

This needs no cryptography, so that a config can be checked and an ε stated without it.
"""

import math
from dataclasses import dataclass

from fedmpdd.codecs import Codec
from fedmpdd.documents import check_number
from fedmpdd.errors import ConfigError
from fedmpdd.uplink.discrete_gaussian import LARGEST_DEVIATION

NOISE_ROOM = 12  # deviations of a sum's noise that the ring has room for: more come once in 10^32 numbers
_FINEST = 2.0**52  # levels above it would be finer than float64 itself
_WIDEST_NOISE = 0.999 * LARGEST_DEVIATION  # below it by more than any rounding


@dataclass(frozen=True)
class SecureRounds:
    """Rounds in which the server sees the sum of all scalars and no client's alone (docs/secure-sum.md).

    Args:
        clip: scalars are shrunk to ‖s‖ ≤ √m·clip, whole gradients to ‖g‖ ≤ clip.
        noise_multiplier: the deviation of every client's noise, in units of that bound. Noise is drawn on integers.
        ring_bits: sums are taken modulo 2^ring_bits, from 16 to 64.
        dropouts: the share of a round's clients that may vanish; with more of them the round counts for nothing.
        colluding: the share of a round's clients that may tell the server all they know; their noise hides nobody.
        neighbours: with how many others a client shares its secrets, 0 for everybody.

    Example:
        >>> SecureRounds(clip=1.0, dropouts=0.2).threshold(10)
        8

    """

    clip: float
    noise_multiplier: float = 0.0
    ring_bits: int = 32
    dropouts: float = 0.3
    colluding: float = 0.0
    neighbours: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for values that no round can have."""
        for name, low, high, allowed in (
            ("clip", math.ulp(0.0), math.inf, "a finite number above 0"),
            ("noise_multiplier", 0.0, math.inf, "a finite number from 0 on"),
            ("dropouts", 0.0, 0.5, "a share from 0 to 1/2, 1/2 excluded"),
            ("colluding", 0.0, 0.5, "a share from 0 to 1/2, 1/2 excluded"),
        ):
            check_number(name, getattr(self, name), low, high, allowed)
        if self.ring_bits not in range(16, 65):
            raise ConfigError(f"ring_bits = {self.ring_bits!r}: expected a number from 16 to 64")
        value = self.neighbours
        if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value % 2:
            raise ConfigError(f"neighbours = {value!r}: expected an even number, or 0 for everybody")

    def colluders(self, clients: int) -> int:
        """Return how many of a round's clients may be in league with the server."""
        return math.floor(self.colluding * clients + 1e-9)

    def threshold(self, clients: int) -> int:
        """Return how many of a round's clients must stay: more than half."""
        return max(clients // 2 + 1, clients - math.floor(self.dropouts * clients + 1e-9))

    def honest_minimum(self, clients: int) -> int:
        """Return how many clients' noise the server cannot know, at least, in a sum that it sees."""
        return self.threshold(clients) - self.colluders(clients)

    def noise_in_steps(self, clients: int) -> float:
        """Return the deviation of the noise that a client adds to each of its numbers, in steps of the integers."""
        return self.noise_multiplier * levels(clients, self.ring_bits, self.noise_multiplier)

    def check_parts(self, codec: Codec, keys: str, *, weighting: str, robust: bool, protects: bool) -> None:
        """Raise ConfigError for parts of an uplink that a sum of unseen updates cannot have, all of them at once.

        Args:
            codec: of the updates.
            keys: who chooses keys, "shared" for one key of all clients.
            weighting: "equal" or "examples".
            robust: whether a robust mean is asked for.
            protects: whether clients protect updates by other means.

        """
        needs = []
        if not codec.adds_up or (codec.needs_key and keys != "shared"):
            needs.append('codec "mpdd:m=…:keys=shared" with 32 bits or "fedsgd", whose numbers add up')
        if protects:
            needs.append("a codec without clip and noise: secure sums clip and add noise themselves")
        if weighting != "equal":
            needs.append('weighting "equal": nobody may see how much a client has')
        if robust:
            needs.append("a mean that is not robust: nobody sees single updates, by which one tells liars")
        if needs:
            raise ConfigError(f"secure needs {'; '.join(needs)}")

    def check(self, clients: int) -> None:
        """Raise ConfigError unless so many clients can have a sum that hides each of them.

        Args:
            clients: how many are asked in a round.

        """
        if clients < 2:
            raise ConfigError(f"a secure sum of {clients} clients is no sum; ask two or more in a round")
        self.check_neighbours(clients)
        if self.honest_minimum(clients) < 2:
            raise ConfigError(
                f"colluding = {self.colluding}: of the {self.threshold(clients)} clients that stay for certain fewer "
                "than two are honest, and a sum of one hides nothing; lower it"
            )

    def check_neighbours(self, clients: int) -> None:
        """Raise ConfigError unless clients talk to enough others for what drop-outs and collusion are to be."""
        if not self.neighbours:
            return
        from fedmpdd.secure_sum import enough_neighbours  # needs a package that others do not

        fewest = enough_neighbours(clients, clients - self.threshold(clients), self.colluders(clients))
        if fewest == 0 or not fewest <= self.neighbours < clients - 1:
            advice = f"{fewest} or more, below {clients - 1}" if fewest else "0, everybody"
            raise ConfigError(
                f"neighbours = {self.neighbours}: {clients} clients, of whom {self.dropouts} drop out and "
                f"{self.colluding} collude, need {advice}"
            )


def levels(clients: int, ring_bits: int, noise_multiplier: float) -> float:
    """Return how many steps the longest vector of a client has.

    As many as the ring has room for in the sum of all, noise included; in a wide ring as many as float64 can tell
    apart, and as noise can be drawn on.

    Args:
        clients: how many are asked.
        ring_bits: of the ring.
        noise_multiplier: the deviation of a client's noise, in units of the longest vector.

    """
    room = clients + 1 + NOISE_ROOM * math.sqrt(clients) * noise_multiplier
    finest = _FINEST
    if noise_multiplier > 0:  # the noise of all is drawn as one where it can be
        finest = min(finest, _WIDEST_NOISE / (math.sqrt(clients) * noise_multiplier))
    return min((2.0 ** (ring_bits - 1) - 1) / room, finest)
