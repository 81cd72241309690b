"""How many others a client must talk to, where it is not everybody.

Clients stand in a circle in random order, and each shares its secrets with the k/2 next to it on either side (Bell et
al. 2020). Most of those must stay, or its masks cannot be lifted; fewer must be in league with the server, or it lifts
both of them; and no stretch of k/2 that are gone or in league may cut the circle, or the server gets sums of pieces.
"""

import math

from fedmpdd.errors import InputError

SECRECY = 2.0**-40  # how likely anybody's vector may be less hidden than the sum of all honest clients hides it
FAILURE = 2.0**-30  # how likely a round may fail with no more drop-outs than it should survive


def share_threshold(neighbours: int) -> int:
    """Return how many of the k + 1 who hold shares of a secret give it back: more than half.

    So that even a server which tells one half this and the other half that cannot lift both masks of a client.
    """
    return neighbours // 2 + 1


def enough_neighbours(
    clients: int, dropouts: float, colluding: float = 0.0, secrecy: float = SECRECY, failure: float = FAILURE
) -> int:
    """Return the fewest neighbours that keep both promises, an even number, or 0 where that takes everybody.

    dropouts: the share of clients that a round survives, whoever they are, with probability 1 − failure at least.
    colluding: the share of clients in league with the server; nothing but the sum of all others is seen then, with
        probability 1 − secrecy at least. Who they are, and who drops out, must not depend on the order of the circle.
    """
    for name, value, most in (("dropouts", dropouts, 0.5), ("colluding", colluding, 0.5)):
        if not 0 <= value < most:
            raise InputError(f"{name} = {value!r}: expected a share of the clients from 0 to below {most}")
    fewest, most = 2, (clients - 2) // 2 * 2
    if most < fewest or not _is_enough(clients, most, dropouts, colluding, secrecy, failure):
        return 0
    while fewest < most:  # both promises are kept better the more neighbours there are, but for single steps
        middle = (fewest + most) // 4 * 2
        if _is_enough(clients, middle, dropouts, colluding, secrecy, failure):
            most = middle
        else:
            fewest = middle + 2
    return most


def _is_enough(
    clients: int, neighbours: int, dropouts: float, colluding: float, secrecy: float, failure: float
) -> bool:
    gone, friends = math.floor(dropouts * clients), math.floor(colluding * clients)
    needed = share_threshold(neighbours)
    # Of a client that vanished, whose own share is lost too, more than k − needed of the k neighbours are gone.
    lost = clients * _at_least(neighbours - needed + 1, neighbours, gone, clients - 1)
    opened = clients * _at_least(needed, neighbours, friends, clients - 1)
    cut = clients * _at_least(neighbours // 2, neighbours // 2, gone + friends, clients)
    return lost <= failure and opened + cut <= secrecy


def _at_least(fewest: int, drawn: int, marked: int, whole: int) -> float:
    """How likely so many of `marked` are among `drawn` of `whole`, each draw as likely as another."""
    return sum(
        math.exp(_log_ways(marked, found) + _log_ways(whole - marked, drawn - found) - _log_ways(whole, drawn))
        for found in range(max(fewest, drawn - (whole - marked)), min(drawn, marked) + 1)
    )


def _log_ways(whole: int, part: int) -> float:
    """The logarithm of a binomial coefficient: the numbers themselves are long, and exact ones take half a minute."""
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)
