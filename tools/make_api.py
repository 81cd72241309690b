"""Write docs/api.md, the list of documented names: `python tools/make_api.py`.

A name is documented when it stands in the `__all__` of one of MODULES. Other names may change from one version to the
next. The study of the paper, `fedmpdd_paper`, imports documented names alone, and a test holds it to that.
"""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

# What each is for, in the order in which somebody needs them.
MODULES = {
    "fedmpdd": "The front door. `import fedmpdd as fm` needs NumPy alone; what trains is loaded at its first use.",
    "fedmpdd.front.callbacks": "What happens beside the rounds of a training. Also `fm.callbacks`.",
    "fedmpdd.tasks.text": "From texts to tasks. Also `fm.text`.",
    "fedmpdd.torch": "For training loops of your own. Also `fm.torch`.",
    "fedmpdd.testing": "The common tests of codecs. Also `fm.testing`.",
    "fedmpdd.codecs": "What a codec of your own is made of.",
    "fedmpdd.directions": "The streams of ±1.",
    "fedmpdd.errors": "Every exception that the package raises on purpose.",
    "fedmpdd.simulation": "Configs, and the local engine below `fm.train`.",
    "fedmpdd.runs.history": "What run folders say.",
    "fedmpdd.runs.settings": "Whether a folder is the run that somebody means.",
    "fedmpdd.tasks.data": "Datasets of the package, and how examples are dealt out.",
    "fedmpdd.flower": "The strategy and the mod for Flower.",
    "fedmpdd.secure_sum": "The protocol of secure sums, without a federation around it.",
    "fedmpdd.privacy.config": "What an audit asks for.",
    "fedmpdd.privacy.audit": "Audits in a folder.",
    "fedmpdd.report": "The page of runs and audits.",
    "fedmpdd.report.plots": "Its curves.",
    "fedmpdd.pages.builder": "Pages that load nothing from elsewhere.",
    "fedmpdd.documents": "Files that appear whole or not at all.",
    "fedmpdd.display": "Tables and progress on a terminal.",
    "fedmpdd.cli.shared": "What commands of other packages share with those of this one.",
}


def documented(module: str) -> list[str]:
    """Return the documented names of a module: those of `__all__`, and those that are loaded at their first use."""
    loaded = importlib.import_module(module)
    names = {*getattr(loaded, "__all__", ()), *getattr(loaded, "_LAZY", ())}
    return sorted((name for name in names if not name.startswith("__")), key=lambda name: (name.lower(), name))


def page() -> str:
    """Return the text of the page."""
    lines = [
        "# Documented names",
        "",
        "These names stay as they are within a minor version. `help(name)` has arguments, results and examples.",
        "",
        "This page is written by `python tools/make_api.py`. A test fails where it is not what the code says.",
        "",
    ]
    for module, purpose in MODULES.items():
        lines += [f"## `{module}`", "", purpose, "", "| name | what it is |", "| --- | --- |"]
        loaded = importlib.import_module(module)
        lines += [f"| `{name}` | {summary(getattr(loaded, name))} |" for name in documented(module)]
        lines.append("")
    return "\n".join(lines)


def summary(value: Any) -> str:
    """Return the first sentence of what a name says of itself, or what kind of value it is."""
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
        return text.replace("|", "\\|")
    if isinstance(value, int | str):
        return f"the constant `{value!r}`"
    return "a table by name" if isinstance(value, dict) else f"a constant of {type(value).__name__.strip('_')}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE, file=sys.stdout)


if __name__ == "__main__":
    main()
