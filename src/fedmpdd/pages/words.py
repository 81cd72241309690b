"""Numbers as the page writes them."""

from typing import Any

from markupsafe import Markup, escape

from fedmpdd.imports import OBJECT
from fedmpdd.runs.history import Statistic

NOTHING = "–"
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def score(value: Statistic | None, name: str) -> str:
    """A score by the name of its metric: an accuracy as 88.9 ± 0.3 %, any other to four digits, 0.0312 ± 0.0004."""
    if value is None:
        return NOTHING
    if name == "accuracy":
        spread = "" if value.sd is None else f" ± {100 * value.sd:.1f}"
        return f"{100 * value.mean:.1f}{spread} %{_of(value)}"
    spread = "" if value.sd is None else f" ± {value.sd:.2g}"
    return f"{value.mean:.4g}{spread}{_of(value)}"


def size(value: Statistic | None) -> str:
    """A number of bytes, to three digits: 808 ± 12 kB."""
    if value is None:
        return NOTHING
    unit, factor = next((unit, factor) for unit, factor in _UNITS if value.mean >= factor or unit == "B")
    shown = value.mean / factor
    digits = 0 if unit == "B" else 2 if shown < 9.995 else 1 if shown < 99.95 else 0
    spread = f" ± {value.sd / factor:.{digits}f}" if value.sd else ""  # most codecs send the same whatever the seed
    return f"{shown:,.{digits}f}{spread} {unit}{_of(value)}"


def count(value: Statistic | None) -> str:
    """A number of rounds: 26.0 ± 1.4; whole where there is nothing to average."""
    if value is None:
        return NOTHING
    if value.sd is None:
        return f"{value.mean:,.0f}{_of(value)}"
    return f"{value.mean:,.1f} ± {value.sd:,.1f}{_of(value)}"


def _of(value: Statistic) -> str:
    return "" if value.complete else f" ({value.seeds} of {value.of} seeds)"


def ratio(value: float | None) -> str:
    """Against the first group: 1/19.4, or 10 times more."""
    if value is None or value == 0:
        return NOTHING
    if round(value, 3) == 1:
        return "1"
    if value > 1:
        return f"{value:,.2f} times more" if value < 9.995 else f"{value:,.0f} times more"
    return f"1/{1 / value:,.1f}" if value > 0.1 else f"1/{1 / value:,.0f}"


def difference(value: float | None, name: str) -> str:
    """A difference of scores: of accuracies in percentage points, +0.3, −1.2; of others to three digits."""
    if value is None:
        return NOTHING
    text = f"{100 * value:+.1f}" if name == "accuracy" else f"{value:+.3g}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def plain_bytes(value: int) -> str:
    """A number of bytes that somebody typed: 500 kB, and every digit where it is not round."""
    for unit, factor in _UNITS[:-1]:
        if value >= factor and value % (factor / 10) == 0:
            return f"{value / factor:g} {unit}"
    return f"{value:,} B"


def goal(value: float, name: str) -> str:
    """A target that somebody typed: 60 %, 62.5 % of an accuracy, 0.05 of a loss."""
    return f"{round(100 * value, 6):g} %" if name == "accuracy" else f"{value:g}"


def named(text: str) -> str:
    """The name of a dataset, a model or a loss: of an object of the program that ran, what it is called."""
    return text.removeprefix(OBJECT)


def breakable(text: str) -> Markup:
    """A name that may go on in the next line after a colon."""
    return Markup(":<wbr>").join(escape(part) for part in text.split(":"))


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Inner tables as dotted keys, values as texts."""
    result: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            result |= flatten(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = NOTHING if value is None else str(value)
    return result
