"""Layouts and orders that come from outside: whatever they say, a client raises OrderError and spends nothing."""

import json
import tracemalloc
from typing import Any

import pytest

from fedmpdd.codecs import CODECS
from fedmpdd.directions import Key
from fedmpdd.errors import InputError, OrderError
from fedmpdd.flower.instructions import RoundInstructions
from fedmpdd.flower.layout import ParameterLayout

LAYOUT = ParameterLayout(("a", "b"), ((3, 4), (4,)), ("float32", "float64"))
ORDER = RoundInstructions(3, {"name": "mpdd", "m": 5}, LAYOUT, "model", Key(7, 2))


def text_with(**changes: Any) -> str:
    """The order as it travels, with some of its values replaced; Infinity and NaN as Python writes them."""
    return json.dumps({**json.loads(ORDER.as_text()), **changes})


def with_shapes(*shapes: Any) -> str:
    layout = {
        "names": [str(i) for i in range(len(shapes))],
        "shapes": list(shapes),
        "dtypes": ["float32"] * len(shapes),
    }
    return text_with(layout=layout)


def test_orders_travel() -> None:
    assert RoundInstructions.from_text(ORDER.as_text()) == ORDER
    assert (
        RoundInstructions.from_text(text_with(layout={"names": ["x"], "shapes": [[]], "dtypes": ["float32"]})).layout.d
        == 1
    )


@pytest.mark.parametrize(
    "side",
    [float("inf"), float("-inf"), float("nan"), -1, True, None, 3.0, "3", [3], {}, 2**40 + 1, 10**4_000],
    ids=lambda side: str(side)[:12],
)
def test_sides_that_no_array_has(side: Any) -> None:
    for shapes in ([[side]], [[3], [2, side]]):
        with pytest.raises(OrderError, match=r"has shape .* expected integers"):
            RoundInstructions.from_text(with_shapes(*shapes))


@pytest.mark.parametrize("shape", [None, 3, "34", {"a": 3}, [[3]], [1] * 33], ids=str)
def test_shapes_that_no_array_has(shape: Any) -> None:
    with pytest.raises(OrderError, match="has shape"):
        RoundInstructions.from_text(with_shapes(shape))


@pytest.mark.parametrize("shapes", [[[0]], [[2**40, 2**40]], [[2**32, 2**32]], [[2**39], [2**40]], []], ids=str)
def test_numbers_of_coordinates_that_no_model_has(shapes: list[list[int]]) -> None:
    """2^32 · 2^32 is 0 modulo 2^64, and must not pass as that."""
    with pytest.raises(OrderError, match="no coordinate, or more than"):
        RoundInstructions.from_text(with_shapes(*shapes))


@pytest.mark.parametrize(
    "layout",
    [
        {"names": ["a"], "shapes": [[3], [4]], "dtypes": ["float32"]},
        {"names": ["a", "a"], "shapes": [[3], [4]], "dtypes": ["float32"] * 2},
        {"names": [3], "shapes": [[3]], "dtypes": ["float32"]},
        {"names": ["a"], "shapes": [[3]], "dtypes": ["object"]},
        {"names": ["a"], "shapes": [[3]], "dtypes": [["float32"]]},
        {"names": "a", "shapes": [[3]], "dtypes": ["float32"]},
        {"names": ["a"], "shapes": [[3]]},
        [],
        None,
    ],
    ids=str,
)
def test_layouts_that_no_model_has(layout: Any) -> None:
    with pytest.raises(OrderError):
        RoundInstructions.from_text(text_with(layout=layout))
    if isinstance(layout, dict):
        with pytest.raises(InputError):
            ParameterLayout.from_values(layout)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"wire":' * 100_000,
        '{"wire": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"wire": 1' + "0" * 5_000 + "}",
        '{"wire": NaN}',
        "Infinity",
        "[]",
        "null",
        '"wire"',
        "",
    ],
    ids=lambda text: text[:12],
)
def test_text_that_is_no_order(text: str) -> None:
    with pytest.raises(OrderError):
        RoundInstructions.from_text(text)


HUGE = 10**4_000
WRONG: dict[str, list[Any]] = {
    "round": [-1, 2**32, HUGE, 1.5, True, None, "3", float("inf")],
    "key": [[], [1, 2, 3], [float("inf"), 0], [-1, 0], [HUGE, 0], "ab", {}, 7],
    "codec": [
        *(None, [], "mpdd", {}, {"name": []}, {"name": "mpdd", "m": HUGE}, {"name": "gaussian", "noise": HUGE}),
        *({"name": "sa-fedlora", "cooling": value} for value in (HUGE, float("nan"), float("inf"))),
    ],
    "protection": [[], {"clip": HUGE}, {"clip": float("inf")}, {"clip": [1]}],
    "returns": [None, [], "all"],
    "error_feedback": [None, [], 2],
    "follow": [[], 3, {}, {"model": "", "arrays": "", "rule": {}, "lr": HUGE}],
    "something": [1],
}


@pytest.mark.parametrize(
    "changes",
    [{name: value} for name, values in WRONG.items() for value in values],
    ids=lambda changes: str(changes)[:40],
)
def test_orders_that_nobody_can_follow(changes: dict[str, Any]) -> None:
    tracemalloc.start()
    with pytest.raises(OrderError):
        RoundInstructions.from_text(text_with(**changes))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("name", CODECS)
def test_codecs_with_strange_parameters_are_refused(name: str) -> None:
    values: list[Any] = [HUGE, -1, float("inf"), float("nan"), None, [], {}, "x", [[1]]]
    for value in values:
        for parameter in ("m", "k", "size", "bits", "rows", "group", "rank", "warmup", "noise", "log2_step", "scaled"):
            try:
                RoundInstructions.from_text(text_with(codec={"name": name, parameter: value}))
            except OrderError:
                continue
            assert value is None or parameter == "warmup"  # what it is by itself, or a warmup that never ends


def test_an_order_as_long_as_a_model_is_not_parsed() -> None:
    with pytest.raises(OrderError, match="characters, and at most"):
        RoundInstructions.from_text("[" * (2**24 + 1))
