"""What people see while something runs: a live line in a terminal, plain lines elsewhere, all on standard error."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

messages = Console(stderr=True, highlight=False, markup=False)
PLAIN_EVERY_S = 5.0


def readable_bytes(count: float) -> str:
    """A number of bytes for people: 1.2 MB."""
    unit = "B"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


class Rounds:
    """The progress of one training: rounds, time left, accuracy, bytes, and bytes against FedSGD."""

    def __init__(self, name: str, total: int, done: int, live: Progress | None) -> None:
        self._name, self._total, self._live = name, total, live
        self._task = live.add_task(name, total=total, completed=done, note="") if live else None
        self._accuracy: float | None = None
        self._printed = time.monotonic()

    def __call__(self, done: int, accuracy: float | None, uplink: int, full: int) -> None:
        """Show a round: how many are done, the newest accuracy, bytes so far, and what FedSGD would have sent."""
        self._accuracy = self._accuracy if accuracy is None else accuracy
        shown = "" if self._accuracy is None else f"accuracy {self._accuracy:.1%}  "
        against = f"1/{full / max(uplink, 1):,.0f} of" if uplink <= full else f"{uplink / max(full, 1):,.1f} times"
        self.note(done, f"{shown}uplink {readable_bytes(uplink)}  {against} FedSGD")

    def note(self, done: int, note: str) -> None:
        """Show how many rounds are done, and a word on them."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=done, note=note)
        elif time.monotonic() - self._printed > PLAIN_EVERY_S or done == self._total:
            self._printed = time.monotonic()
            messages.print(f"{self._name}: round {done} of {self._total}  {note}")

    def close(self) -> None:
        """Show it no more."""
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)


@contextmanager
def round_display() -> Iterator[Any]:
    """Yield a maker of Rounds: `start(name, total, done=0)`."""
    if not sys.stderr.isatty():
        yield lambda name, total, done=0: Rounds(name, total, done, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=messages) as live:
        yield lambda name, total, done=0: Rounds(name, total, done, live)


@contextmanager
def share_display(what: str) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows which part is at work, how much of the whole is done, and the time left."""
    start = time.monotonic()
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"))
        with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=messages) as live:
            task = live.add_task(what, total=1.0, note="")
            yield lambda part, share: live.update(task, completed=share, note=part)
        return
    last = [0.0]

    def show(part: str, share: float) -> None:
        now = time.monotonic()
        if now - last[0] > PLAIN_EVERY_S or share >= 1:
            last[0] = now
            left = "" if share < 0.02 else f", about {(now - start) * (1 - share) / share:.0f} s left"
            messages.print(f"{what}: {share:.0%}{left}; {part}", soft_wrap=True)

    yield show


def download_progress() -> Callable[[str, int, int | None], None]:
    """Return a function that says how far a download is, every few seconds and at its end."""
    last = time.monotonic()

    def show(name: str, done: int, total: int | None) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > PLAIN_EVERY_S:
            last = time.monotonic()
            messages.print(f"{name}: {readable_bytes(done)} of {readable_bytes(total) if total else 'an unknown size'}")

    return show


def table(title: str, columns: dict[str, str], rows: Iterable[Iterable[str]] = ()) -> Table:
    """Return a table; columns map names to "left" or "right", a row may be shorter than they are."""
    result = Table(title=title, box=None, title_justify="left")
    for name, justify in columns.items():
        is_number = justify == "right"
        result.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result
