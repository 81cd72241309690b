"""Imports go one way: a room imports only rooms that stand above it (CONTRIBUTING.md has the table)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import draw_imports

SOURCE = Path(__file__).parents[1] / "src"
FOUNDATIONS = ("errors", "documents", "display", "imports")  # single modules that every room may use
ROOMS = (
    "directions",
    "codecs",
    "wire",
    "secure_sum",
    "uplink",
    "server",
    "torch",
    "testing",
    "flower",
    "tasks",
    "simulation",
    "runs",
    "mqtt",
    "guarantees",
    "pages",
    "privacy",
    "report",
    "front",
    "cli",
)


def imported_modules(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, wherever in it, by its whole name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    """Return the room of a module's name, None for what is not of this package."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "fedmpdd" else None


def files() -> list[Path]:
    return sorted((SOURCE / "fedmpdd").rglob("*.py"))


def test_every_module_is_in_a_room_of_the_table() -> None:
    there = {path.relative_to(SOURCE / "fedmpdd").parts[0].removesuffix(".py") for path in files()}
    assert there - {"__init__", "__main__"} == {*FOUNDATIONS, *ROOMS}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_above_it(path: Path) -> None:
    room = path.relative_to(SOURCE / "fedmpdd").parts[0].removesuffix(".py")
    above: tuple[str, ...] = FOUNDATIONS
    if room in ROOMS:
        above += ROOMS[: ROOMS.index(room) + 1]
    elif room in ("__init__", "__main__"):
        above += ROOMS
    for module in imported_modules(path):
        other = room_of(module)
        if other not in (None, "", "__version__"):
            assert other in above, f"{path.name} of {room} imports {module}, which is not above it"


def test_the_library_knows_nothing_of_the_study_and_neither_of_the_benchmarks() -> None:
    for path in files():
        for module in imported_modules(path):
            assert not module.startswith(("fedmpdd_paper", "benchmarks")), path
    for path in (SOURCE / "fedmpdd_paper").rglob("*.py"):  # the benchmarks are outside the wheel
        for module in imported_modules(path):
            assert not module.startswith("benchmarks"), path


def test_the_contributors_page_has_the_same_rooms_in_the_same_order() -> None:
    assert draw_imports.rooms() == list(ROOMS)


def test_the_picture_of_imports_is_that_of_the_code() -> None:
    assert draw_imports.PICTURE.read_text(encoding="utf-8") == draw_imports.picture(), (
        "run python tools/draw_imports.py"
    )


def codec_classes() -> set[str]:
    """The names of the codecs of this package."""
    from fedmpdd.codecs import CODECS

    return {codec.__name__ for codec in CODECS.values()}


def asked_classes(tree: ast.AST) -> Iterator[str]:
    """Yield what isinstance, issubclass and comparisons of types ask for."""
    for node in ast.walk(tree):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if called in ("isinstance", "issubclass") or isinstance(node, ast.Compare):
            yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def test_nobody_outside_codecs_asks_which_class_a_codec_is() -> None:
    asked = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if "codecs" not in path.relative_to(SOURCE).parts
        for name in asked_classes(ast.parse(path.read_text(encoding="utf-8")))
        if name in codec_classes()
    }
    assert asked == set()
    asks = ast.parse("isinstance(codec, Peaks | MPDD), type(codec) is QSGD")
    assert codec_classes() & {*asked_classes(asks)} == {"Peaks", "MPDD", "QSGD"}
