"""Which thread holds which of the 4,096 values of a transform: bits of a position to registers, lanes and warps."""

from functools import cache
from typing import Any

from triton.experimental.gluon import language as gl

_LOG2 = 12


def _layout(registers: list[int], lanes: list[int], warps: list[int]) -> Any:
    def bases(bits: list[int]) -> list[list[int]]:
        return [[1 << bit] for bit in bits]

    return gl.DistributedLinearLayout(bases(registers), bases(lanes), bases(warps), [], [1 << _LOG2])


@cache
def near_layouts() -> tuple[Any, Any, Any]:
    """Neighbouring values: four a thread first, for wide loads, then bits 2 to 6, then 7 to 11 in registers."""
    return (
        _layout([0, 1, 9, 10, 11], [2, 3, 4, 5, 6], [7, 8]),
        _layout([2, 3, 4, 5, 6], [0, 1, 9, 10, 11], [7, 8]),
        _layout([7, 8, 9, 10, 11], [0, 1, 2, 3, 4], [5, 6]),
    )


@cache
def far_layouts(bits: int) -> tuple[Any, Any]:
    """2^bits rows of neighbouring columns: the five lowest row bits in registers first, then the five highest."""
    columns, rows = list(range(_LOG2 - bits)), list(range(_LOG2 - bits, _LOG2))
    return (
        _layout(rows[:5], columns[:5], columns[5:] + rows[5:]),
        _layout(rows[bits - 5 :], columns[:5], columns[5:] + rows[: bits - 5]),
    )
