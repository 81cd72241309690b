"""What a client has answered, so that it answers nothing twice: a vector is summed once.

Two sums over different clients differ by somebody's vector, and two answers to one phase lift both masks of somebody.
A client therefore writes down what it answers before the answer leaves, and a client that was killed, restarted, or
set back to an older state finds it there.
"""

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fedmpdd.documents import parse_json, write_text
from fedmpdd.errors import InputError, SecureSumError
from fedmpdd.secure_sum.messages import Phase, phases_of
from fedmpdd.secure_sum.terms import RUN_BYTES, Terms

MOST_RUNS = 10_000  # that a file remembers; a server can make up runs, and must not fill a disk
_MOST_BYTES = 2**21  # of the file: what so many runs take
_FORMAT = "fedmpdd secure-sum ledger 1"

Entry = tuple[int, int]  # the round that was answered last, and how many of its phases


class Ledger(ABC):
    """The last answer of one client in each training that it has a part in.

    A client has one ledger for as long as it lives, and all of its processes use that one. Clients have one each, also
    on one machine: a round that one of them answered counts as answered for whoever uses the same ledger.

    run: the one training (`Terms.run`) that the client has a part in; rounds of others are refused. None takes all: a
        server can then ask for the same vector again under the name of another training.
    """

    def __init__(self, run: bytes | None = None) -> None:
        if run is not None and (not isinstance(run, bytes) or len(run) != RUN_BYTES):
            raise InputError(f"run = {run!r}: expected the {RUN_BYTES} bytes that name the training, or None for any")
        self._run = run

    def check(self, terms: Terms, phase: Phase) -> None:
        """Raise SecureSumError if this phase of this round must not be answered (any more)."""
        with self._entries() as entries:
            self._check(entries, terms, phase)

    def take(self, terms: Terms, phase: Phase) -> None:
        """Write down that this phase is answered, or raise SecureSumError if it must not be.

        When this returns it is on record: only then may the answer leave.
        """
        with self._entries() as entries:
            step = self._check(entries, terms, phase)
            if terms.run not in entries and len(entries) >= MOST_RUNS:
                raise SecureSumError(
                    f"the ledger holds {MOST_RUNS:,} trainings already and takes no other: name the one to take part "
                    "in (run=…), with a ledger of its own"
                )
            self._write({**entries, terms.run: (terms.round, step + 1)})

    def _check(self, entries: dict[bytes, Entry], terms: Terms, phase: Phase) -> int:
        if self._run is not None and terms.run != self._run:
            raise SecureSumError(
                f"a round of training {terms.run.hex()} was asked for, and this client has a part in "
                f"{self._run.hex()} alone: nothing is told"
            )
        step = phases_of(terms).index(phase)
        last, answered = entries.get(terms.run, (-1, 0))
        if step == 0 and terms.round <= last:
            raise SecureSumError(
                f"round {terms.round} was asked for, but this client has answered round {last} already: a vector is "
                "summed once; start a later round"
            )
        if step > 0 and (last, answered) != (terms.round, step):
            raise SecureSumError(
                f"{phase.name} of round {terms.round} was asked for, and the ledger says that {answered} phases of "
                f"round {last} were answered: an older state of the client came back, or another ledger; leave this "
                "round"
            )
        return step

    @abstractmethod
    def _entries(self) -> AbstractContextManager[dict[bytes, Entry]]:
        """Return what is on record, with a lock on it for as long as it is looked at."""

    @abstractmethod
    def _write(self, entries: dict[bytes, Entry]) -> None:
        """Put this on record, for good."""


class MemoryLedger(Ledger):
    """A ledger that ends with the process: for simulations and tests.

    For a client whose process outlives the training it does too; one that may be restarted needs a `FileLedger`.
    """

    def __init__(self, run: bytes | None = None) -> None:
        super().__init__(run)
        self._known: dict[bytes, Entry] = {}
        self._lock = threading.Lock()

    @contextmanager
    def _entries(self) -> Iterator[dict[bytes, Entry]]:
        with self._lock:
            yield self._known

    def _write(self, entries: dict[bytes, Entry]) -> None:
        self._known = entries


class FileLedger(Ledger):
    """A ledger in a file that all processes of one client share, and that outlives them.

    The file is made where there is none, is replaced in one step, and is on the disk before an answer leaves. Beside it
    lies an empty file, `<path>.lock`, by which processes wait for one another. Who deletes the ledger, or brings an
    older copy back, makes the client forget: leave it out of backups that are restored. A process that is running
    notices and refuses to go on; one that starts afterwards cannot tell.
    """

    def __init__(self, path: str | os.PathLike[str], run: bytes | None = None) -> None:
        super().__init__(run)
        self._path = Path(os.path.realpath(path))  # a link to a ledger is that ledger, and has its lock
        self._known: dict[bytes, Entry] = {}  # what the file held when this process last looked
        with self._entries():  # a file that is no ledger is found out before any round starts
            pass

    @contextmanager
    def _entries(self) -> Iterator[dict[bytes, Entry]]:
        with _locked(self._path.with_name(self._path.name + ".lock")):
            entries = self._read()
            self._check_progress(entries)
            yield entries

    def _check_progress(self, entries: dict[bytes, Entry]) -> None:
        """Raise InputError if the file was deleted, or set back, since this process last looked."""
        for run, entry in self._known.items():
            if entries.get(run, (-1, 0)) < entry:
                raise InputError(
                    f"{self._path} was deleted or replaced by an older one while it was in use: it no longer says that "
                    f"round {entry[0]} of training {run.hex()} was answered; bring it back, or join a new training"
                )
        self._known = entries

    def _read(self) -> dict[bytes, Entry]:
        try:
            with self._path.open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"the ledger {self._path} cannot be read ({error}): name a file that can be") from None
        try:
            return entries_of(text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{self._path} is not a ledger of secure sums ({error}): what this client answered is not known, so "
                "that it must not answer; bring the file back, or join a new training with a new ledger"
            ) from None

    def _write(self, entries: dict[bytes, Entry]) -> None:
        write_text(self._path, text_of(entries))
        self._known = entries


def text_of(entries: dict[bytes, Entry]) -> str:
    """Return what is on record as text, for ledgers that outlive their process."""
    return json.dumps({"format": _FORMAT, "runs": {run.hex(): list(entry) for run, entry in entries.items()}})


def entries_of(text: bytes | str) -> dict[bytes, Entry]:
    """Read what `text_of` wrote, or raise an error of Python's that says what is wrong with it."""
    document = parse_json(text, largest=_MOST_BYTES)
    if document["format"] != _FORMAT:
        raise ValueError(f"the format is {document['format']!r}, expected {_FORMAT!r}")
    entries = {bytes.fromhex(run): (last, answered) for run, (last, answered) in document["runs"].items()}
    if len(entries) != len(document["runs"]):
        raise ValueError("it names one run twice, in two spellings")
    for run, entry in entries.items():
        if len(run) != RUN_BYTES or not all(type(value) is int and value >= 0 for value in entry):
            raise ValueError(f"{run.hex()}: {entry}, expected the name of a run, a round and a number of phases")
    return entries


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process, or thread, holds this file."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise InputError("a ledger in a file needs the file locks of a Unix, and this is none: see Ledger") from None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"no ledger can be kept here ({error}): name a file in a folder that can be written") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
