"""Every public name says what it is; an override by what it overrides."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import fedmpdd
import fedmpdd_paper

NEED_A_GPU = {"fedmpdd.directions.cuda", "fedmpdd.directions.cuda_kernels", "fedmpdd.directions.cuda_layouts"}


def module_names() -> list[str]:
    packages = (fedmpdd, fedmpdd_paper)
    found = (
        module.name
        for package in packages
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    )
    return sorted(name for name in found if name not in NEED_A_GPU and not name.endswith(("__main__", "_native")))


def public_names(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public functions, classes and methods that a module defines."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value
        for method, member in vars(value).items() if inspect.isclass(value) else ():
            if not method.startswith("_") and (
                inspect.isfunction(member) or isinstance(member, property | classmethod)
            ):
                yield f"{name}.{method}", getattr(value, method)


@pytest.mark.parametrize("name", module_names())
def test_public_names_have_docstrings(name: str) -> None:
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    module = importlib.import_module(name)
    missing = [public for public, value in public_names(module) if not inspect.getdoc(value)]
    assert missing == []
