import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fedmpdd.errors import ConfigError
from fedmpdd.tasks import models


@pytest.mark.parametrize(
    ("name", "shape", "d"),
    [
        ("logistic", (1, 28, 28), 7850),
        ("lenet", (1, 28, 28), 13426),
        ("cnn-lin2022", (1, 28, 28), 44426),
        ("cnn-mcmahan2017", (3, 32, 32), 319242),
    ],
)
def test_sizes_are_the_papers(name: str, shape: tuple[int, int, int], d: int) -> None:
    model, flat = models.build(name, shape, 10, init="default", seed=1)
    assert model.d == d == flat.numel()
    assert model(flat, torch.zeros(3, *shape)).shape == (3, 10)


def test_flat_model_computes_what_the_module_does() -> None:
    torch.manual_seed(3)
    module = models.lenet((1, 28, 28), 10)
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    model, _ = models.build("lenet", (1, 28, 28), 10, init="default", seed=9)
    x = torch.randn(4, 1, 28, 28)
    assert torch.equal(model(flat, x), module(x))


def test_the_seed_decides_and_pytorchs_own_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (models.build("lenet", (1, 28, 28), 10, init="uniform", seed=s)[1] for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.abs().max() <= 0.5
    assert first.abs().mean() > 0.2


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


class NineClasses(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 9)


def no_module() -> int:
    return 3


def test_any_module_by_import_path() -> None:
    model, flat = models.build("tests.tasks.test_models:Tiny", (1, 28, 28), 10, init="default", seed=1)
    assert model.d == 7_850 == flat.numel()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "expected one of logistic, lenet"),
        ("no.such.module:Net", "cannot be imported"),
        ("tests.tasks.test_models:Missing", "cannot be imported"),
        ("tests.tasks.test_models:NineClasses", r"expected \[2, 10\]"),
        ("tests.tasks.test_models:no_module", "expected a torch.nn.Module"),
    ],
)
def test_models_that_cannot_be_used(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build(name, (1, 28, 28), 10, init="default", seed=1)


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not take images"):
        models.build("tests.tasks.test_models:Tiny", (3, 32, 32), 10, init="default", seed=1)


CALLED: list[str] = []


class Factory:
    """A callable object, as builtins.exit is one."""

    def __call__(self) -> nn.Module:
        CALLED.append("object")
        return Tiny()


class NotAModule:
    def __init__(self) -> None:
        CALLED.append("class")


def make_tiny(width: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width))


def leaves() -> nn.Module:
    sys.exit(0)


class LeavesLater(Tiny):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit(0)


class LeavesWhenAsked(Tiny):
    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        sys.exit(0)


factory = Factory()
partial_function = functools.partial(make_tiny, width=10)
partial_class = functools.partial(Tiny)
partial_object = functools.partial(factory)


@pytest.mark.parametrize("name", ["make_tiny", "partial_function", "partial_class"])
def test_functions_and_partials_make_models(name: str) -> None:
    model, _ = models.build(f"tests.tasks.test_models:{name}", (1, 28, 28), 10, init="default", seed=1)
    assert model.d == 7_850


@pytest.mark.parametrize(
    "name",
    [
        "os:abort",
        "os:_exit",
        "builtins:exit",
        "builtins:dict",
        "torch:zeros",
        "tests.tasks.test_models:factory",
        "tests.tasks.test_models:partial_object",
        "tests.tasks.test_models:NotAModule",
        "tests.tasks.test_models:CALLED",
    ],
)
def test_what_makes_no_module_is_refused_before_it_is_called(name: str) -> None:
    with pytest.raises(ConfigError, match="is not called; expected a class that derives from"):
        models.build(name, (1, 28, 28), 10, init="default", seed=1)
    assert not CALLED


@pytest.mark.parametrize("name", ["leaves", "LeavesLater", "LeavesWhenAsked"])
def test_a_model_that_exits_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"called exit\(0\)"):
        models.build(f"tests.tasks.test_models:{name}", (1, 28, 28), 10, init="default", seed=1)


def test_a_module_that_exits_or_breaks_when_it_is_imported_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, code in (("leaving_for_tests", "raise SystemExit(0)"), ("broken_for_tests", "1 / 0")):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        with pytest.raises(ConfigError, match="cannot be imported: "):
            models.build(f"{name}:Net", (1, 28, 28), 10, init="default", seed=1)


def test_parameters_are_counted_without_making_them() -> None:
    assert models.count_parameters("lenet", (1, 28, 28), 10) == 13_426
    assert models.count_parameters("logistic", (1, 2**16, 2**16), 2**16) == 2**48 + 2**16
    assert models.count_parameters("tests.tasks.test_models:Tiny", (1, 28, 28), 10) is None
    with pytest.raises(ConfigError, match="cannot be made for images"):
        models.count_parameters("logistic", (2**16, 2**16, 2**16), 2**16)


def half_frozen() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 8).bfloat16(), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    return module


def test_a_frozen_base_in_bfloat16_stays_so_where_a_config_names_it() -> None:
    model, _ = models.build(
        "tests.tasks.test_models:half_frozen", None, 10, init="default", seed=1, gives_classes=False
    )
    assert {value.dtype for value in model.module.parameters()} == {torch.bfloat16, torch.float32}
