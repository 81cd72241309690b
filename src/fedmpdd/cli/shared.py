"""What all commands have in common: options, and how they print."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedmpdd.display import messages
from fedmpdd.errors import MissingDependencyError, RunError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; everything else goes to standard error.")]
Config = Annotated[str, typer.Argument(help="A TOML file, or a shipped name such as demo or lenet-fmnist.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes, like codec.m=400.")]
TrustImports = Annotated[
    bool,
    typer.Option("--trust-imports", help="Import and call the model that the folder names, like package.module:Net."),
]
TrustedModel = Annotated[
    list[str] | None,
    typer.Argument(metavar="[model=PATH]", help="The import path that the folder must name; then it is trusted."),
]
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


def trusted_models(given: list[str], trust_imports: bool, problem: str) -> bool | str:
    """Return what may be imported: anything, the model that was given by its path, or nothing."""
    paths = {text.removeprefix("model=") for text in given if text.startswith("model=")}
    if len(paths) != len(given):
        raise RunError(problem)
    return trust_imports or (paths.pop() if paths else False)
