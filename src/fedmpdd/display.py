"""What people see while something runs: a live line in a terminal, plain lines elsewhere, all on standard error."""

import io
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = [
    "Rounds",
    "Sheet",
    "as_text",
    "download_progress",
    "messages",
    "readable_bytes",
    "readable_score",
    "round_display",
    "share_display",
    "table",
    "wrap_name",
]

messages = Console(stderr=True, highlight=False, markup=False)
PLAIN_EVERY_S = 5.0
NAME_WIDTH = 20  # characters that a name has at least before it goes on in the next line


def readable_bytes(count: float) -> str:
    """A number of bytes for people: 1.2 MB."""
    unit = "B"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def readable_score(value: float | None, score: str = "accuracy") -> str:
    """A score for people: an accuracy is a share, 88.1%; any other a number, 0.0312."""
    if value is None:
        return "–"
    return f"{value:.1%}" if score == "accuracy" else f"{value:.4g}"


class Rounds:
    """The progress of one training: rounds, time left, score, bytes, and bytes against FedSGD."""

    def __init__(self, name: str, total: int, done: int, live: Progress | None, score: str = "accuracy") -> None:
        self._name, self._total, self._live, self._score = name, total, live, score.removeprefix("-")
        self._task = live.add_task(name, total=total, completed=done, note="") if live else None
        self._accuracy: float | None = None
        self._printed = time.monotonic()

    def __call__(self, done: int, accuracy: float | None, uplink: int, full: int) -> None:
        """Show a round: how many are done, the newest score, bytes so far, and what FedSGD would have sent."""
        self._accuracy = self._accuracy if accuracy is None else accuracy
        shown = "" if self._accuracy is None else f"{self._score} {readable_score(self._accuracy, self._score)}  "
        against = f"1/{full / max(uplink, 1):,.0f} of" if uplink <= full else f"{uplink / max(full, 1):,.1f} times"
        self.note(done, f"{shown}uplink {readable_bytes(uplink)}  {against} FedSGD")

    def note(self, done: int, note: str) -> None:
        """Show how many rounds are done, and a word on them."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=done, note=note)
        elif time.monotonic() - self._printed > PLAIN_EVERY_S or done == self._total:
            self._printed = time.monotonic()
            messages.print(f"{self._name}: round {done} of {self._total}  {note}", soft_wrap=True)

    def close(self) -> None:
        """Show it no more."""
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)


@contextmanager
def round_display() -> Iterator[Any]:
    """Yield a maker of Rounds: `start(name, total, done=0, score="accuracy")`."""
    if not sys.stderr.isatty():
        yield lambda name, total, done=0, score="accuracy": Rounds(name, total, done, None, score)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=messages) as live:
        yield lambda name, total, done=0, score="accuracy": Rounds(name, total, done, live, score)


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


def wrap_name(name: str, width: int) -> str:
    """Return a name of a codec in lines that are so long, where that is possible; they end after colons and commas."""
    lines = [""]
    for piece in re.findall(r"[^:,]+[:,]?|[:,]", name):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


class Sheet:
    """A table for people that cuts nothing, however narrow the terminal is.

    Names fold first, then headings. Where numbers would still not fit beside each other, every row is a name and the
    lines below it.
    """

    def __init__(self, title: str, columns: dict[str, str], rows: Iterable[Iterable[str]] = ()) -> None:
        self._title, self._columns = title, columns
        self._rows = [list(row) for row in rows]

    def add_row(self, *cells: str) -> None:
        """Add a row, which may be shorter than the columns are many."""
        self._rows.append(list(cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for headings in (list(self._columns), [heading.replace(" ", "\n") for heading in self._columns]):
            numbers = self._numbers(headings)
            if self._names() + numbers <= options.max_width:
                yield self._table(headings, options.max_width - numbers)
                return
        if self._title:
            yield Text(self._title, style="italic")
        for name, *cells in self._rows:
            yield Text(name, overflow="fold")
            yield Text(self._below(cells, options.max_width), overflow="fold")

    def _numbers(self, headings: list[str]) -> int:
        """The characters that columns of numbers take."""
        lines = [heading.split("\n") for heading in headings]
        kinds = self._columns.values()
        return sum(
            2 + max(self._longest(index), *map(cell_len, lines[index]))
            for index, justify in enumerate(kinds)
            if justify == "right"
        )

    def _names(self) -> int:
        """The characters that columns of names take at least."""
        kinds = enumerate(self._columns.items())
        return sum(
            2 + min(max(self._longest(index), cell_len(heading)), NAME_WIDTH)
            for index, (heading, justify) in kinds
            if justify == "left"
        )

    def _longest(self, index: int) -> int:
        """The characters of the longest cell of a column."""
        return max((cell_len(row[index]) for row in self._rows if index < len(row)), default=0)

    def _table(self, headings: list[str], left: int) -> Table:
        """The table; `left` characters are there for names, which break after colons where there is one column."""
        result = Table(title=self._title, box=None, title_justify="left")
        for heading, justify in zip(headings, self._columns.values(), strict=True):
            is_number = justify == "right"
            result.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
        has_one = list(self._columns.values()).count("left") == 1
        for name, *cells in self._rows:
            result.add_row(wrap_name(name, left - 2) if has_one else name, *cells)
        return result

    def _below(self, cells: list[str], width: int) -> str:
        """A row's cells beside their headings, as many in a line as fit, and where those of other rows stand."""
        lines = [""]
        for index, (heading, cell) in enumerate(zip(list(self._columns)[1:], cells, strict=False), 1):
            item = f"  {heading} {' ' * (self._longest(index) - cell_len(cell))}{cell}"
            if lines[-1] and cell_len(lines[-1] + item) > width:
                lines.append("")
            lines[-1] += item
        return "\n".join(lines)


def as_text(sheet: Sheet, notes: Iterable[str] = (), width: int = 100) -> str:
    """Return a table and lines below it as plain text, which is what Python shows of a result."""
    text = io.StringIO()
    # Plain in a notebook too, where rich would write HTML beside it, and codes of colours into the text.
    plain: dict[str, Any] = {"force_jupyter": False, "force_terminal": False, "color_system": None}
    console = Console(file=text, width=width, highlight=False, markup=False, **plain)
    console.print(sheet)
    for note in notes:
        console.print(note, soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().split("\n"))


def table(title: str, columns: dict[str, str], rows: Iterable[Iterable[str]] = ()) -> Sheet:
    """Return a table; columns map names to "left" or "right", a row may be shorter than they are."""
    return Sheet(title, columns, rows)
