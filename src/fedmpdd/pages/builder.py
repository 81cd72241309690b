"""Makes a page from a template: style, script and plotly are in it, each once, and it loads nothing."""

import importlib.util
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

import fedmpdd
from fedmpdd.documents import write_text
from fedmpdd.errors import InputError, MissingDependencyError, RunError
from fedmpdd.pages import words

__all__ = ["check_page", "figure", "render", "write_page"]

_FILTERS = ("score", "size", "count", "ratio", "difference", "plain_bytes", "goal", "named", "breakable")


def render(template: str, *, title: str, kicker: str, data: dict[str, Any] | None = None, **context: Any) -> str:
    """Return a page; the same arguments give the same page.

    template: PACKAGE:FILE, one that extends `fedmpdd.pages:layout.html.jinja`. title: the heading. kicker: the line
    above it. data: what the page's script draws besides the figures that stand in the template. context: what the
    template speaks of; all text in it is escaped.
    """
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {name: getattr(words, name) for name in _FILTERS}
    return environment.get_template(template).render(
        title=title,
        kicker=kicker,
        version=fedmpdd.__version__,
        style=Markup(_source("fedmpdd.pages:page.css")),
        script=Markup(_source("fedmpdd.pages:page.js")),
        plotly=Markup(get_plotlyjs()),
        data=_as_script(data or {}),
        **context,
    )


def figure(title: str, traces: list[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    """Return a figure for a template's `figure` macro.

    traces: as Plotly takes them, with `colour`, a number, in place of colours: those follow the page's theme. layout:
    `x` and `y`, axes as Plotly takes them; `levels`, horizontal lines with `y` and `text`.
    """
    return {"title": title, "traces": traces, "x": {}, "y": {}, "levels": [], **layout}


def write_page(path: Path, page: str, option: str = "--out") -> None:
    """Write a page in one step; a file that is there is replaced."""
    try:
        write_text(path, page)
    except OSError as error:
        raise RunError(f"{option} {path} cannot be written: {error}; choose another place") from None


def check_page(path: Path, option: str = "--out") -> None:
    """Raise before the first round what would otherwise stop the page after the last one."""
    check_plotly()
    folder = path.resolve().parent
    if path.is_dir() or not path.name:
        raise InputError(f"{option} {path} is a folder; name a file in it")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: its folder does not exist or cannot be written to; choose another place")


def check_plotly() -> None:
    """Raise MissingDependencyError where no page can be made."""
    if importlib.util.find_spec("plotly") is None:
        raise MissingDependencyError("the page needs plotly, which is missing; in the checkout, pip install '.[train]'")


def _source(name: str) -> str:
    package, _, file = name.partition(":")
    return (files(package) / file).read_text(encoding="utf-8")


def _as_script(document: Any) -> Markup:
    """JSON that cannot end the script element it stands in, nor begin another."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
