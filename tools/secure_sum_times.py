"""Print what a secure sum costs, in time and in bytes, as the tables of docs/secure-sum.md.

    python tools/secure_sum_times.py

Times are CPU times of one thread, since a machine may be busy with something else, without the network: medians over
clients and rounds for a client, over rounds for the server.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmpdd.secure_sum import (
    Identity,
    MemoryLedger,
    Phase,
    Roster,
    SecureClient,
    SecureServer,
    Terms,
    bytes_down,
    bytes_up,
    enough_neighbours,
    primitives,
)
from fedmpdd.secure_sum.messages import phases_of

# Clients, length of the vector, neighbours: everybody, or as many as a tenth gone and a tenth in league need; signed.
SIZES = [(clients, length, 0, False) for clients in (10, 50, 100) for length in (400, 13_426)]
SIZES += [
    (clients, 400, enough_neighbours(clients, clients // 10, clients // 10), False) for clients in (100, 1_000, 3_000)
]
SIZES += [(clients, 400, 0, True) for clients in (10, 50, 100)]
ROUNDS = 3  # one where there are a thousand clients


def milliseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU time of a call, and its result."""
    start = time.process_time()
    result = call()
    return 1e3 * (time.process_time() - start), result


def one_round(terms: Terms, leavers: int) -> tuple[list[list[float]], float]:
    """Return milliseconds of each client by phase, and of the server. The last so many clients leave after sharing.

    Clients' numbers have nothing to do with where they stand among their neighbours, so that any will do.
    """
    vectors = np.random.default_rng(0).integers(0, 2**terms.ring_bits, (terms.clients, terms.length), dtype=np.uint64)
    secrets = [primitives.new_secret() for _ in range(terms.clients)]
    roster = Roster.of([primitives.verify_key_of(secret) for secret in secrets]) if terms.signed else None
    clients = [
        SecureClient(terms, i, MemoryLedger(), identity=Identity(secrets[i], roster) if roster else None)
        for i in range(terms.clients)
    ]
    server = SecureServer(terms, roster)
    opening = dict.fromkeys(range(terms.clients), server.open())
    times: list[list[float]] = [[] for _ in clients]
    total = 0.0
    for phase in phases_of(terms):
        for i, message in opening.items():
            if phase not in (Phase.ADVERTISE, Phase.SHARE) and i >= terms.clients - leavers:
                continue
            calls: dict[Phase, Callable[[], bytes]] = {
                Phase.ADVERTISE: clients[i].advertise,
                Phase.SHARE: lambda i=i, message=message: clients[i].share(message),  # type: ignore[misc]
                Phase.MASK: lambda i=i, message=message: clients[i].mask(message, vectors[i]),  # type: ignore[misc]
                Phase.CONFIRM: lambda i=i, message=message: clients[i].confirm(message),  # type: ignore[misc]
                Phase.UNMASK: lambda i=i, message=message: clients[i].unmask(message),  # type: ignore[misc]
            }
            spent, answer = milliseconds(calls[phase])
            times[i].append(spent)
            total += milliseconds(lambda i=i, answer=answer: server.receive(i, answer))[0]  # type: ignore[misc]
        spent, result = milliseconds(server.finish if phase == Phase.UNMASK else server.advance)
        total += spent
        if isinstance(result, dict):
            opening = result
    expected = vectors[: terms.clients - leavers].sum(axis=0) & np.uint64(2**terms.ring_bits - 1)
    assert np.array_equal(result, expected)
    return times, total


def terms_of(clients: int, length: int, neighbours: int, signed: bool) -> Terms:
    """Return terms with the usual threshold, or of nine tenths where neighbours are as many as that needs."""
    threshold = clients - clients // 10 if neighbours else 0
    return Terms(os.urandom(16), 0, clients, length, threshold, neighbours=neighbours, signed=signed)


def main() -> None:
    """Print the tables."""
    print(
        "| n | neighbours | m | client: advertise, share, mask, (confirm,) unmask, ms | client in all, ms | server, ms "
        "| with n − t gone (a tenth, where neighbours are few), ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for clients, length, neighbours, signed in SIZES:
        terms = terms_of(clients, length, neighbours, signed)
        holders = f"{neighbours or 'all'}{', signed' if signed else ''}"
        rounds = range(ROUNDS if clients < 1_000 else 1)
        whole = [one_round(terms, 0) for _ in rounds]
        hard = [one_round(terms, clients - terms.threshold)[1] for _ in rounds]
        rows = [row for times, _ in whole for row in times]
        phases = ", ".join(f"{statistics.median(row[phase] for row in rows):.1f}" for phase in range(len(rows[0])))
        client = statistics.median(sum(row) for row in rows)
        server = statistics.median(total for _, total in whole)
        print(
            f"| {clients:,} | {holders} | {length:,} | {phases} | {client:.0f} | {server:.0f} "
            f"| {statistics.median(hard):.0f} |",
            flush=True,
        )
    print("\n| n | neighbours | m | up: advertise + share + mask (+ confirm) + unmask | down | up against the vector |")
    print("| --- | --- | --- | --- | --- | --- |")
    for clients, length, neighbours, signed in SIZES:
        terms = terms_of(clients, length, neighbours, signed)
        holders = f"{neighbours or 'all'}{', signed' if signed else ''}"
        up, down = bytes_up(terms), bytes_down(terms)
        parts = [" + ".join(f"{count:,}" for count in counts) + f" = {sum(counts):,}" for counts in (up, down)]
        ratio = sum(up) / terms.ring.nbytes(length)
        print(f"| {clients:,} | {holders} | {length:,} | {parts[0]} | {parts[1]} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
