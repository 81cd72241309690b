"""Clients in the secure sums of a training: they answer the phases, and mask what they compute. No network in here."""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedmpdd.errors import FedmpddError, OrderError, SecureSumError
from fedmpdd.mqtt.secure import decline, round_of, sum_terms, sum_uplink, training_of
from fedmpdd.mqtt.terms import Terms
from fedmpdd.secure_sum import Ledger, MemoryLedger, Phase, SecureClient, read_terms
from fedmpdd.secure_sum import Terms as SumTerms
from fedmpdd.secure_sum.ledger import Entry
from fedmpdd.secure_sum.messages import Kind, kind_of, phases_of, tag_of
from fedmpdd.uplink.policy import ClientPolicy
from fedmpdd.uplink.secure import Elements

_log = logging.getLogger("fedmpdd")
_OPENS = {Phase.SHARE: Kind.KEYS, Phase.MASK: Kind.INBOX, Phase.UNMASK: Kind.SURVIVORS}


@runtime_checkable
class SumEncoder(Protocol):
    """What computes what clients of this process add to a sum."""

    def elements(self, round_number: int, flat: NDArray[np.float32], clients: Sequence[int]) -> list[Elements]:
        """Return the integers [length] of each client, with its noise, in a round that starts from this model."""


class RoundLedger(Ledger):
    """A client's ledger in a training whose rounds can begin anew: it allows no second sum of a round.

    A server that was killed has lost the sum that was under way, and begins another one of the same vectors. Clients
    take part in it as long as the earlier one cannot have been lifted without them: until they told their shares, which
    more than half of all clients must do; or with neighbours, where fewer will do, until they sent what they masked.

    Args:
        ledger: that keeps the entries.
        run: the training.

    """

    def __init__(self, ledger: Ledger, run: bytes) -> None:
        super().__init__(run)
        self._ledger = ledger

    def _check(self, entries: dict[bytes, Entry], terms: SumTerms, phase: Phase) -> int:
        step = super()._check(entries, terms, phase)
        last, answered = entries.get(terms.run, (-1, 0))
        telling = Phase.MASK if terms.neighbours else Phase.UNMASK
        if step == 0 and round_of(last) == round_of(terms.round) and answered > phases_of(terms).index(telling):
            raise SecureSumError(
                f"another sum of round {round_of(last)} was asked for, and this client's vector may be in one already: "
                "a vector is summed once; it takes part in the next round"
            )
        return step

    def _entries(self) -> AbstractContextManager[dict[bytes, Entry]]:
        return self._ledger._entries()

    def _write(self, entries: dict[bytes, Entry]) -> None:
        self._ledger._write(entries)


@dataclass
class _Part:
    """A client's part in a sum: its machine, and the last message with its answer, for a server that asks again."""

    client: SecureClient
    opening: bytes
    answer: bytes


class Members:
    """Some clients of a process in the secure sums of a training.

    Args:
        name: of the training.
        terms: of it.
        encoder: computes what the clients add.
        policy: what they insist on. Its ledger and identity are asked for by a client's number; without a ledger what
            a client answered is known as long as this process lives.

    Raises:
        OrderError: sums by these terms are of fewer clients than the policy insists on.

    """

    def __init__(self, name: str, terms: Terms, encoder: SumEncoder, policy: ClientPolicy) -> None:
        self._terms, self._encoder, self._policy = terms, encoder, policy
        self._run = training_of(name, terms)
        self._uplink = sum_uplink(terms)
        self._ledgers: dict[int, RoundLedger] = {}
        self._parts: dict[int, _Part] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._masked: Counter[int] = Counter()
        self._check_crowd()

    def _check_crowd(self) -> None:
        """Raise at once what every sum would be declined for."""
        threshold = sum_terms(self._uplink, self._run, 0, self._terms).threshold
        colluders = self._policy.colluders or 0
        if threshold - colluders < self._policy.fewest_clients:
            raise OrderError(
                f"sums of this training may be of {threshold} clients, and this one insists on "
                f"{self._policy.fewest_clients} that are not among {colluders} colluders; ask more clients in a round, "
                "lower secure.dropouts, or what the client insists on"
            )

    def hear(self, client: int, data: bytes) -> None:
        """Take a message for a client; `answers` reads it."""
        self._waiting.append((client, data))

    def answers(self, round_number: int, flat: NDArray[np.float32]) -> list[tuple[int, bytes]]:
        """Answer what came, as far as it is of this round.

        Args:
            round_number: that begins with the model.
            flat: the model [d].

        Returns:
            Clients, and what each of them sends.

        """
        waiting, self._waiting = self._waiting, []
        answers: list[tuple[int, bytes]] = []
        inboxes: dict[int, bytes] = {}
        for client, data in waiting:
            try:
                answer = self._answer(client, data, round_number)
            except FedmpddError as error:
                answers += self._declined(client, data, error)
                continue
            if answer is not None:
                answers.append((client, answer))
            elif self._is_to_mask(client, data):
                inboxes[client] = data
        return answers + (self._mask(inboxes, round_number, flat) if inboxes else [])

    def _answer(self, client: int, data: bytes, round_number: int) -> bytes | None:
        """Answer a message for which nothing is computed; None for others, and for those that ask nothing now."""
        part, kind = self._parts.get(client), kind_of(data)
        if part is not None and data == part.opening:
            return part.answer
        if kind == Kind.TERMS:
            return self._enter(client, data, round_number)
        if part is None:
            raise SecureSumError("this client was not asked before, or was started again since")
        machine = part.client
        if tag_of(data) != machine.terms.digest[:8] or kind != _OPENS.get(machine.phase):
            _log.info("client %s is at %s; a message of kind %s is ignored", client, machine.phase.name, kind)
            return None
        if machine.phase == Phase.MASK:
            return None
        part.answer = machine.answer(data)
        part.opening = data
        return part.answer

    def _is_to_mask(self, client: int, data: bytes) -> bool:
        part = self._parts.get(client)
        if part is None or part.client.phase != Phase.MASK:
            return False
        return kind_of(data) == Kind.INBOX and tag_of(data) == part.client.terms.digest[:8]

    def _enter(self, client: int, data: bytes, round_number: int) -> bytes | None:
        """Have a part in the sum that opens; None where it is of another round, or begun already."""
        protocol, part = read_terms(data), self._parts.get(client)
        number = round_of(protocol.round)
        if number > round_number:  # its model is not here yet
            self._waiting.append((client, data))
            return None
        if number < round_number or (part is not None and protocol.round <= part.client.terms.round):
            _log.info("client %s: what opened a sum of round %s came again, and is ignored", client, number)
            return None
        asked = self._terms.sample(number)
        if client not in asked:
            return None
        if protocol != sum_terms(self._uplink, self._run, protocol.round, self._terms):
            raise OrderError("the terms of the sum are not those that follow from the training's: nothing is told")
        self._parts.pop(client, None)
        policy = self._policy
        policy.check(self._terms.order(number), self._masked[client])
        machine = SecureClient(
            protocol,
            int(np.searchsorted(asked, client)),
            self._ledger_of(client),
            fewest_clients=policy.fewest_clients,
            colluders=policy.colluders,
            identity=None if policy.identity is None else policy.identity(client),
        )
        answer = machine.advertise()
        self._parts[client] = _Part(machine, data, answer)
        return answer

    def _ledger_of(self, client: int) -> RoundLedger:
        if client not in self._ledgers:
            ledger = MemoryLedger() if self._policy.ledger is None else self._policy.ledger(client)
            self._ledgers[client] = RoundLedger(ledger, self._run)
        return self._ledgers[client]

    def _mask(self, inboxes: dict[int, bytes], round_number: int, flat: NDArray[np.float32]) -> list[tuple[int, bytes]]:
        """Compute what some clients add, and answer with it under their masks."""
        clients = sorted(inboxes)
        try:
            rows = self._encoder.elements(round_number, flat, clients)
        except FedmpddError as error:
            return [answer for client in clients for answer in self._declined(client, inboxes[client], error)]
        answers: list[tuple[int, bytes]] = []
        for client, row in zip(clients, rows, strict=True):
            part = self._parts[client]
            try:
                part.answer = self._uplink.mask(part.client, inboxes[client], row)
            except FedmpddError as error:
                answers += self._declined(client, inboxes[client], error)
                continue
            part.opening = inboxes[client]
            self._masked[client] += 1
            answers.append((client, part.answer))
        return answers

    def _declined(self, client: int, data: bytes, error: FedmpddError) -> list[tuple[int, bytes]]:
        """Leave a sum, and say so; a message that cannot be read is of none."""
        try:
            tag = tag_of(data)
        except FedmpddError:
            _log.warning("client %s: a message of a secure sum cannot be read: %s", client, error)
            return []
        _log.warning("client %s has no part in the secure sum %s: %s", client, tag.hex(), error)
        part = self._parts.get(client)
        if part is not None and tag == part.client.terms.digest[:8]:
            del self._parts[client]
        return [(client, decline(tag, str(error)))]
