"""Numbers as the page writes them."""

from typing import Any

from markupsafe import Markup, escape

from fedmpdd.runs.history import Statistic

NOTHING = "–"
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def share(value: Statistic | None) -> str:
    """An accuracy: 88.9 % ± 0.3."""
    if value is None:
        return NOTHING
    spread = "" if value.sd is None else f" ± {100 * value.sd:.1f}"
    return f"{100 * value.mean:.1f}{spread} %{_of(value)}"


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
    """Against the first group: 1/19.4, or × 1.3."""
    if value is None or value == 0:
        return NOTHING
    if round(value, 3) == 1:
        return "1"
    if value > 1:
        return f"× {value:,.2f}" if value < 10 else f"× {value:,.0f}"
    return f"1/{1 / value:,.1f}" if value > 0.1 else f"1/{1 / value:,.0f}"


def points(value: float | None) -> str:
    """A difference of accuracies, in percentage points: +0.3, −1.2."""
    if value is None:
        return NOTHING
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def plain_bytes(value: int) -> str:
    """A number of bytes that somebody typed: 500 kB, and every digit where it is not round."""
    for unit, factor in _UNITS[:-1]:
        if value >= factor and value % (factor / 10) == 0:
            return f"{value / factor:g} {unit}"
    return f"{value:,} B"


def percent(value: float) -> str:
    """A target that somebody typed: 60 %, 62.5 %."""
    return f"{round(100 * value, 6):g} %"


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
