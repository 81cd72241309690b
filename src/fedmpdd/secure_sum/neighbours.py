"""How many others a client must talk to, where it is not everybody.

Clients stand in a circle in random order, and each shares its secrets with the k/2 next to it on either side (Bell et
al. 2020). Most of those must stay, or its masks cannot be lifted; fewer must be in league with the server, or it lifts
both of them; and the circle must not be cut, by two stretches of k/2 who are all gone or in league, or the server gets
the sums of its pieces.
"""

import math

from fedmpdd.errors import InputError
from fedmpdd.secure_sum.checks import is_whole

SECRECY = 2.0**-40  # how likely, in a round, anybody may be less hidden than by the sum of all honest who stay
FAILURE = 2.0**-30  # how likely a round may fail with no more drop-outs than it should survive


def share_threshold(neighbours: int) -> int:
    """Return how many of the k + 1 who hold shares of a secret give it back: more than half.

    So that a server which tells one half this and the other half that cannot lift both masks of a client, unless one
    of them is in league with it.
    """
    return neighbours // 2 + 1


def enough_neighbours(
    clients: int, gone: int, colluders: int = 0, *, secrecy: float = SECRECY, failure: float = FAILURE
) -> int:
    """Return the fewest neighbours that keep both promises, an even number, or 0 where that takes everybody.

    gone: how many clients a round survives the loss of, whoever they are, with probability 1 − failure at least. Its
        threshold must be n − gone or more: a round that ends with fewer clients is not covered.
    colluders: how many clients are in league with the server; with probability 1 − secrecy at least it sees nothing but
        the sum of all others. Who they are, and who is gone, must not depend on the order of the circle.
    """
    for name, value, most in (("clients", clients, None), ("gone", gone, clients), ("colluders", colluders, clients)):
        if not is_whole(value, 0, most):
            raise InputError(f"{name} = {value!r} of {clients} clients: expected how many, a whole number")

    def keep(neighbours: int) -> bool:
        lost, seen = broken_promises(clients, neighbours, gone, colluders)
        return lost <= failure and seen <= secrecy

    fewest, most = 2, (clients - 2) // 2 * 2
    if most < fewest or not keep(most):
        return 0
    while fewest < most:
        middle = (fewest + most) // 4 * 2
        if keep(middle):
            most = middle
        else:
            fewest = middle + 2
    return most


def broken_promises(clients: int, neighbours: int, gone: int, colluders: int) -> tuple[float, float]:
    """Return bounds on how likely a round fails, and on how likely somebody is less hidden than promised."""
    needed, half = share_threshold(neighbours), neighbours // 2
    # Of a client that vanished, whose own share is lost too, more than k − needed of the k neighbours are gone.
    lost = clients * _at_least(neighbours - needed + 1, neighbours, gone, clients - 1)
    opened = clients * _at_least(needed, neighbours, colluders, clients - 1)
    cut = clients * _at_least(half, half, min(clients, gone + colluders), clients)  # one stretch; it takes two to cut
    return lost, opened + cut


def _at_least(fewest: int, drawn: int, marked: int, whole: int) -> float:
    """How likely so many of `marked` are among `drawn` of `whole`, each draw as likely as another."""
    marked = min(marked, whole)
    return sum(
        math.exp(_log_ways(marked, count) + _log_ways(whole - marked, drawn - count) - _log_ways(whole, drawn))
        for count in range(max(fewest, drawn - (whole - marked)), min(drawn, marked) + 1)
    )


def _log_ways(whole: int, part: int) -> float:
    """The logarithm of a binomial coefficient: the numbers themselves are long, and exact ones take half a minute."""
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)
