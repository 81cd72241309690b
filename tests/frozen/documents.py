"""The keys of every --json document, and the names that the package exports: they may only grow."""

import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main as benchmarks
from fedmpdd.cli import main as command_line
from tests.report.fixtures import make_audit, make_runs

TINY = ("rounds=4", "clients=10", "clients_per_round=4", "evaluate_every=2", "device=cpu")
NOISY = ("codec.keys=shared", "codec.clip=2.0", "codec.noise_multiplier=0.5", "clients=200", "rounds=5")
SECURE = ("codec.keys=shared", "secure.clip=2.0", "secure.noise_multiplier=0.5", "clients=200", "rounds=5")
AUDIT = ("dataset=mnist-5k", "audit.models=[]", "model=logistic", "audit.images=2", "audit.effort=0.01")
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "demo", *TINY, "journal=true", "--out", "run"),
    "resume": ("run", "--resume", "run"),
    "replay": ("replay", "run"),
    "compare": ("compare", "demo", *TINY, "--codecs", "fedsgd,mpdd:m=20", "--target", "0.1", "--budget", "100000"),
    "plan": ("plan", "--d", "1000", "--budget", "64"),
    "epsilon": ("epsilon", "demo", *NOISY, "--target", "4"),
    "epsilon secure": ("epsilon", "demo", *SECURE, "--target", "4"),
    "audit": ("audit", "audit-mnist", *AUDIT, "--codecs", "mpdd:m=50,mpdd:m=20:bits=1", "--out", "audit"),
    "report": ("report", "runs", "made-audit", "--target", "0.6", "--budget", "500"),
    "verify": ("verify", "norms"),
    "reproduce": ("reproduce",),
    "data list": ("data", "list", "--data-dir", "."),
    "data check": ("data", "check", "mnist-5k", "--data-dir", "."),
}
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "bench codec": ("codec", "--seconds", "0.01", "--no-memory"),
    "bench rounds": ("rounds", "--seconds", "0.1"),
}


def documents(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the document of every command that ends within seconds, run in an empty folder."""
    make_runs(folder / "runs")
    make_audit(folder / "made-audit")
    with chdir(folder):
        for name, arguments in COMMANDS.items():
            yield name, document_of(*arguments)
        for name, arguments in BENCHMARKS.items():
            yield name, document_of(*arguments, command=benchmarks)


def document_of(*arguments: str, command: Callable[[], None] = command_line) -> Any:
    """Return what a command prints with --json, as one document."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", ["fedmpdd", *arguments, "--json"])
        try:
            command()
        except SystemExit as ended:
            if ended.code:
                raise AssertionError(f"{arguments} ended with status {ended.code}") from None
    return json.loads(printed.getvalue())


def table_document(folder: Path) -> Any:
    """Return the document of a small table of the paper, which `reproduce TABLE` prints."""
    from fedmpdd_paper.reproduce import reproduce
    from fedmpdd_paper.trainings import Workspace
    from tests.paper.test_reproduce import small_table

    return json.loads(json.dumps(reproduce(small_table(), Workspace(folder, "cpu"), seeds=1)))


def meter_document() -> Any:
    """Return what `meter` prints after a conversation of one client."""
    from fedmpdd.flower.socket_counter import SocketCounter
    from tests.flower.test_socket_counter import measure, request, say

    async def talk(meter: SocketCounter, ports: list[int]) -> None:
        await say(ports[0], request("/SendMessages", b"frame"))

    meter = measure(talk)
    return {"clients": list(meter.summary().values()), "replies": meter.replies(), "messages": meter.messages()}


def key_paths(document: Any, path: str = "") -> set[str]:
    """Return the path of every key of a document, all elements of a list together: `rows[].codec`."""
    if isinstance(document, list):
        return {key for element in document for key in key_paths(element, f"{path}[]")}
    if not isinstance(document, dict):
        return set()
    paths = set()
    for key, value in document.items():
        paths |= {f"{path}.{key}".removeprefix("."), *key_paths(value, f"{path}.{key}".removeprefix("."))}
    return paths


def exported_names(module: str) -> list[str]:
    """Return what a package says that it exports."""
    return sorted(importlib.import_module(module).__all__)


def measured(folder: Path) -> dict[str, list[str]]:
    """Return the key paths of all documents by command."""
    sources: dict[str, Callable[[], Any]] = {
        "reproduce TABLE": lambda: table_document(folder / "tables"),
        "meter": meter_document,
    }
    found = {name: key_paths(document) for name, document in documents(folder)}
    found |= {name: key_paths(source()) for name, source in sources.items()}
    return {name: sorted(paths) for name, paths in found.items()}
