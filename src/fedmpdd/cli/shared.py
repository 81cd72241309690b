"""What all commands have in common: options, and how they print."""

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmpdd.display import messages
from fedmpdd.errors import InputError, MissingDependencyError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; everything else goes to standard error.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the datasets; default: FEDMPDD_DATA.")]


def print_json(document: dict[str, Any]) -> None:
    """Print the one document that --json promises."""
    print(json.dumps(document, indent=2))


def output(as_json: bool) -> Console:
    """Return where results for people go: to standard error, where standard output is for a document."""
    return messages if as_json else Console(highlight=False, markup=False)


def training() -> Any:
    """Import what trains, or say what is missing."""
    try:
        from fedmpdd.runs import folders as runs
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"training needs the package {error.name}, which is missing; in the checkout, pip install '.[train]'"
        ) from None
    return runs


@contextmanager
def said_how_to_go_on(text: str) -> Iterator[None]:
    """Print how to go on when what is inside is stopped."""
    # What stops services and containers, and what is in the background, stops as Ctrl-C does: with a checkpoint.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        messages.print(text, soft_wrap=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def check_page(path: Path, option: str = "--out") -> None:
    """Raise before the first round what would otherwise stop the page after the last one."""
    if importlib.util.find_spec("plotly") is None:
        raise MissingDependencyError("the page needs plotly, which is missing; in the checkout, pip install '.[train]'")
    folder = path.resolve().parent
    if path.is_dir() or not path.name:
        raise InputError(f"{option} {path} is a folder; name a file in it")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: its folder does not exist or cannot be written to; choose another place")
