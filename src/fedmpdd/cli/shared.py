"""What all commands have in common: options, and how they print."""

import inspect
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperArgument, TyperCommand

from fedmpdd.display import messages
from fedmpdd.documents import parse_override
from fedmpdd.errors import ConfigError, FedmpddError, MissingDependencyError
from fedmpdd.imports import Trust, blamed, import_paths

__all__ = [
    "Command",
    "Config",
    "DataDir",
    "Json",
    "Overrides",
    "TrustImports",
    "TrustedPaths",
    "output",
    "print_json",
    "resume_hint",
    "training",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; everything else goes to standard error.")]
Config = Annotated[str, typer.Argument(help="A TOML file, or a shipped name such as demo or lenet-fmnist.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes, like codec.m=400.")]
TrustImports = Annotated[
    bool,
    typer.Option("--trust-imports", help="Import and run the code that the folder names, like model=mynet.py:Net."),
]
TrustedPaths = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=PATH]...", help="Import paths that the folder names, like model=mynet.py:Net."),
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
def resume_hint(text: str) -> Iterator[None]:
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


@contextmanager
def blame_user_code(table: dict[str, Any]) -> Iterator[None]:
    """Turn what code of the user's raises, which a config names, into one line: a traceback shows mostly our files."""
    try:
        yield
    except FedmpddError:
        raise
    except Exception as error:
        line = blamed(error, import_paths(table))
        if line is None:
            raise
        raise ConfigError(f"code that the config names has failed: {line}") from error


def trust_and_settings(given: list[str], trust_imports: bool) -> tuple[Trust, dict[str, Any]]:
    """Part what was given beside a folder: import paths by key, which are trusted then, and other settings."""
    settings = dict(parse_override(text) for text in given)
    paths = import_paths(settings)
    return trust_imports or paths, {key: value for key, value in settings.items() if key not in paths}


class Command(TyperCommand):
    """A command that says, of an option that it lacks and a config has, how that is written."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # From 8.5 on click clears the help of an argument, which typer up to 0.20 has set before.
        texts = _helps_of(self.callback)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.help is None:
                parameter.help = texts.get(parameter.name or "")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = _override_meant(error.option_name, words, of_audit=self.name == "audit")
            if meant is None or "overrides" not in [parameter.name for parameter in self.params]:
                raise
            problem = f"there is no option {error.option_name}; settings of a config have no dashes: write {meant}"
            raise ConfigError(problem) from None


def _helps_of(function: Any) -> dict[str, str | None]:
    """The help of each parameter of a function whose annotations are those of a command."""
    helps = {}
    for name, parameter in inspect.signature(inspect.unwrap(function)).parameters.items():
        for note in getattr(parameter.annotation, "__metadata__", ()):
            helps[name] = getattr(note, "help", None)
    return helps


def _override_meant(option: str, words: list[str], *, of_audit: bool) -> str | None:
    """The change to a config that somebody wrote as an option."""
    try:
        from fedmpdd.privacy.config import AuditConfig
        from fedmpdd.simulation.config import settings_named
    except ModuleNotFoundError:  # what trains is not installed
        return None
    name = option.strip("-").replace("-", "_")
    keys = settings_named(name) + ([f"audit.{name}"] if of_audit and name in AuditConfig.model_fields else [])
    key = next(iter(keys), None)
    if key is None:
        return None
    place = next(number for number, word in enumerate(words) if word.partition("=")[0] == option)
    _, equals, value = words[place].partition("=")
    if not equals and place + 1 < len(words) and not words[place + 1].startswith("--"):
        value = words[place + 1]
    return f"{key}={value or '…'}"
