"""What people see while something runs: a live line in a terminal, plain lines elsewhere, all on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# Of Plotly's pages: the buttons one by one, since its default ones offer to upload the data to a server.
PLOT_SETTINGS: dict[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    "plotlyServerURL": "",
    "modeBarButtons": [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
}
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


class ManyRounds:
    """The progress of many trainings, a few at a time: the ones that moved last are shown."""

    def __init__(self, start: Any, at_once: int) -> None:
        self._start, self._at_once = start, at_once
        self._shown: dict[str, Rounds] = {}  # in the order in which they moved

    def __call__(self, name: str, done: int, total: int, accuracy: float | None) -> None:
        """Show a round of one of them."""
        rounds = self._shown.pop(name, None) or self._start(name, total)
        self._shown[name] = rounds
        rounds.note(done, "" if accuracy is None else f"accuracy {accuracy:.1%}")
        while len(self._shown) > self._at_once:
            self._shown.pop(next(iter(self._shown))).close()


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


def table(title: str, columns: dict[str, str]) -> Table:
    """An empty table; columns map names to "left" or "right"."""
    empty = Table(title=title, box=None, title_justify="left")
    for name, justify in columns.items():
        empty.add_column(name, justify="right" if justify == "right" else "left", no_wrap=justify == "right")
    return empty


def comparison_table(
    rows: list[Any], target: float | None, budget: int | None, names: dict[str, str] | None = None
) -> Table:
    """Codecs side by side: what they reached, in how many rounds, with how many bytes."""
    columns = {"codec": "left", "trained": "right", "accuracy": "right"}
    title = ""
    if target is not None:
        title = f"rounds and uplink to {target:.0%} test accuracy, and uplink against the first codec"
        columns |= {"rounds": "right", "uplink": "right", "against": "right"}
    if budget is not None:
        columns |= {f"at {readable_bytes(budget)}": "right"}
    result = table(title, {**columns, "seconds": "right"})
    first = rows[0].bytes_to_target if rows else None
    for row in rows:
        accuracy = "–" if row.final_accuracy is None else f"{row.final_accuracy:.1%}"
        cells = [(names or {}).get(row.codec, row.codec), str(row.rounds), accuracy]
        if target is not None:
            reached = row.bytes_to_target is not None
            cells += [str(row.rounds_to_target), readable_bytes(row.bytes_to_target)] if reached else ["–", "–"]
            cells.append(f"1/{first / row.bytes_to_target:,.1f}" if reached and first else "–")
        if budget is not None:
            cells.append("–" if row.accuracy_at_budget is None else f"{row.accuracy_at_budget:.1%}")
        result.add_row(*cells, f"{row.seconds:.1f}")
        if row.error is not None:
            result.add_row(f"  stopped: {row.error}")
    return result


def claims_table(rows: list[Any], level: float) -> Table:
    """Claims of the paper beside what was measured, and the verdicts."""
    title = f"claims, measured; intervals hold all together with probability {1 - level:.2%}"
    result = table(title, {"claim": "left", "measured": "right", "claimed": "right", "verdict": "left"})
    for row in rows:
        value, low, high = row.measured
        margin = f" ± {max(high - value, value - low):.2g}" if high > low else ""
        result.add_row(row.claim, f"{value:.4g}{margin}", f"{row.relation} {row.expected:.4g}", row.verdict)
    return result


def corrections(rows: list[Any]) -> str:
    """What is true instead of the claims that were not confirmed, each once."""
    texts = dict.fromkeys(row.corrected for row in rows if row.verdict != "holds" and row.corrected)
    return "\n".join(["what is true instead:", *(f"  * {text}" for text in texts)]) if texts else ""
