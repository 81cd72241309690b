"""The study of the paper uses documented names alone, so that anybody can write one like it."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import fedmpdd_paper

ROOT = Path(__file__).parents[2]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "tools" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


API = load_tool()


def imported_names() -> Iterator[tuple[str, str, str]]:
    """Yield what the study imports from the library: file, module, name."""
    folder = Path(fedmpdd_paper.__path__[0])
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            file = path.relative_to(folder).as_posix()
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedmpdd":
                for alias in node.names:
                    yield file, node.module or "", alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "fedmpdd" and alias.name != "fedmpdd":
                        yield file, alias.name, "the module itself"


def attributes_of_the_front_door() -> Iterator[tuple[str, str]]:
    """Yield what the study takes from `import fedmpdd as fm`: file, name."""
    folder = Path(fedmpdd_paper.__path__[0])
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fm":
                yield path.relative_to(folder).as_posix(), node.attr


def test_the_study_imports_documented_names_alone() -> None:
    imported = list(imported_names())
    assert len(imported) > 50
    others = [
        (file, module, name)
        for file, module, name in imported
        if module not in API.MODULES or name not in API.documented(module)
    ]
    assert others == []


def test_the_study_uses_documented_names_of_the_front_door_alone() -> None:
    used = list(attributes_of_the_front_door())
    assert ("trainings.py", "train") in used
    assert [(file, name) for file, name in used if name not in API.documented("fedmpdd")] == []


def test_the_page_of_documented_names_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == API.page(), "run python tools/make_api.py"
