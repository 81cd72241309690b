"""What a client has answered outlives its process, and no two processes answer the same."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from fedmpdd.errors import InputError, SecureSumError
from fedmpdd.secure_sum import FileLedger, Ledger, MemoryLedger, Phase, SecureClient, Terms, ledger
from tests.secure_sum.rounds import RUN, terms_of


@pytest.fixture(params=["memory", "file"])
def book(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return MemoryLedger() if request.param == "memory" else FileLedger(tmp_path / "rounds.json")


def test_a_client_cannot_be_made_without_a_ledger() -> None:
    """`last_round` could be forgotten, and a vector was then summed twice."""
    with pytest.raises(TypeError, match="ledger"):
        SecureClient(terms_of(3), 0)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="expected a FileLedger"):
        SecureClient(terms_of(3), 0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ledger"):
        SecureClient.from_state(b"")  # type: ignore[call-arg]


def test_phases_are_taken_in_order_and_once_and_rounds_forward(book: Ledger) -> None:
    terms = terms_of(3)
    with pytest.raises(SecureSumError, match="another ledger"):
        book.take(terms, Phase.SHARE)
    book.take(terms, Phase.ADVERTISE)
    for phase in (Phase.SHARE, Phase.MASK, Phase.UNMASK):
        book.check(terms, phase)
        book.take(terms, phase)
        with pytest.raises(SecureSumError, match="older state"):
            book.take(terms, phase)
    for round_number in (0, 2, 3):
        with pytest.raises(SecureSumError, match="summed once"):
            book.take(terms_of(3, round=round_number), Phase.ADVERTISE)
    book.take(terms_of(3, round=2**64 - 1), Phase.ADVERTISE)
    book.take(Terms(bytes(16), 0, 3, 5), Phase.ADVERTISE)  # another training counts for itself


def test_a_ledger_of_one_training_takes_no_other(tmp_path: Path) -> None:
    """A server that gives a round another name would get the same vector again."""
    for book in (MemoryLedger(RUN), FileLedger(tmp_path / "rounds.json", run=RUN)):
        book.take(terms_of(3), Phase.ADVERTISE)
        with pytest.raises(SecureSumError, match="alone: nothing is told"):
            book.take(Terms(bytes(16), 9, 3, 5), Phase.ADVERTISE)
    with pytest.raises(InputError, match="16 bytes"):
        MemoryLedger(b"short")


def answer_and_die(path: Path) -> None:
    SecureClient(terms_of(3), 0, FileLedger(path)).advertise()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_was_killed_and_started_again_refuses_the_round(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    process = multiprocessing.get_context("spawn").Process(target=answer_and_die, args=(path,))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(SecureSumError, match="summed once"):
        SecureClient(terms_of(3), 0, FileLedger(path))
    SecureClient(terms_of(3, round=4), 0, FileLedger(path)).advertise()


def test_it_is_on_record_before_the_message_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full stops the answer, not the record of it."""
    book = FileLedger(tmp_path / "rounds.json")
    client = SecureClient(terms_of(3), 0, book)

    def full(_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            client.advertise()
    assert client.phase == Phase.ADVERTISE
    client.advertise()


def count_wins(path: Path, barrier: object, wins: object) -> None:
    book = FileLedger(path)
    for round_number in range(20):
        barrier.wait()  # type: ignore[attr-defined]
        try:
            book.take(terms_of(3, round=round_number), Phase.ADVERTISE)
        except SecureSumError:
            continue
        with wins.get_lock():  # type: ignore[attr-defined]
            wins.value += 1  # type: ignore[attr-defined]


def test_of_several_processes_one_answers_a_round(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, wins = context.Barrier(3), context.Value("i", 0)
    processes = [context.Process(target=count_wins, args=(tmp_path / "rounds.json", barrier, wins)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert wins.value == 20


def test_a_file_that_is_no_ledger_stops_the_client_instead_of_being_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    FileLedger(path).take(terms_of(3), Phase.ADVERTISE)
    whole = json.loads(path.read_text())
    assert whole["runs"] == {RUN.hex(): [3, 1]}
    damaged = ["", "null", "[]", "{}", "[" * 100_000, path.read_text()[:-3], "x" * (2**21 + 1)]
    damaged += [json.dumps({**whole, "format": "other"})]
    damaged += [json.dumps({**whole, "runs": {run: entry}}) for run, entry in (("ff", [1, 1]), (RUN.hex(), [-1, 0]))]
    damaged += [
        json.dumps({**whole, "runs": {RUN.hex(): entry}}) for entry in ([1], [1.5, 0], ["1", 0], None, [True, 1])
    ]
    for text in damaged:
        path.write_text(text)
        with pytest.raises(InputError, match="not a ledger"):
            FileLedger(path)


def test_a_file_that_names_a_run_twice_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "rounds.json"
    FileLedger(path).take(terms_of(3), Phase.ADVERTISE)
    whole = json.loads(path.read_text())
    twice = {"aa" * 16: [5, 1], "AA" * 16: [0, 0]}
    damaged: tuple[object, ...] = (twice, [])
    for runs in damaged:
        path.write_text(json.dumps({**whole, "runs": runs}))
        with pytest.raises(InputError, match="not a ledger"):
            FileLedger(path)


def test_a_folder_in_the_place_of_a_ledger_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        FileLedger(tmp_path)


@pytest.mark.parametrize("back", [False, True])
def test_a_ledger_that_is_deleted_or_set_back_is_noticed_by_who_uses_it(tmp_path: Path, back: bool) -> None:
    path, terms = tmp_path / "rounds.json", terms_of(4)
    book = FileLedger(path)
    book.take(terms, Phase.ADVERTISE)
    older = path.read_bytes()
    book.take(terms, Phase.SHARE)
    if back:
        path.write_bytes(older)
    else:
        path.unlink()
    with pytest.raises(InputError, match="deleted or replaced by an older one"):
        book.take(terms, Phase.SHARE if back else Phase.ADVERTISE)


def test_a_link_to_a_ledger_is_that_ledger(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "rounds.json")
    FileLedger(link).take(terms_of(4), Phase.ADVERTISE)
    with pytest.raises(SecureSumError, match="summed once"):
        FileLedger(tmp_path / "rounds.json").take(terms_of(4), Phase.ADVERTISE)
    assert link.is_symlink()


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder that can be written"):
        FileLedger(tmp_path / "missing" / "rounds.json")


def test_a_server_that_makes_up_trainings_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_RUNS", 2)
    book = MemoryLedger()
    for k in range(2):
        book.take(Terms(bytes([k] * 16), 0, 3, 5), Phase.ADVERTISE)
    with pytest.raises(SecureSumError, match="2 trainings already"):
        book.take(Terms(bytes([9] * 16), 0, 3, 5), Phase.ADVERTISE)
    book.take(Terms(bytes(16), 1, 3, 5), Phase.ADVERTISE)
