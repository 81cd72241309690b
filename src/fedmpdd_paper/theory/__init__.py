"""`fedmpdd verify`: every lemma and theorem of the paper as a measurement, with a verdict (docs/theory.md)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedmpdd.directions import using
from fedmpdd.errors import InputError, MissingDependencyError
from fedmpdd_paper.theory import averaging, convergence, estimators, inversion, norms
from fedmpdd_paper.theory.claims import JOINT_LEVEL, MAX_INTERVALS, Interval, Row, Say
from fedmpdd_paper.theory.convergence import Curve
from fedmpdd_paper.theory.page import convergence_page

PARTS: dict[str, Callable[[Say, list[Curve]], Iterator[Row]]] = {
    "estimator": lambda say, curves: estimators.rows(say),
    "norms": lambda say, curves: norms.rows(say),
    "averaging": lambda say, curves: averaging.rows(say),
    "convergence": convergence.rows,
    "inversion": lambda say, curves: inversion.rows(say),
}


class Report(NamedTuple):
    """All rows, and the curves of the convergence part."""

    rows: list[Row]
    curves: list[Curve]

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        curves = [
            {**vars(curve), "bound": [None if bound == float("inf") else bound for bound in curve.bound]}
            for curve in self.curves
        ]
        return {"joint_level": JOINT_LEVEL, "rows": [row.as_dict() for row in self.rows], "curves": curves}


def verify(say: Say, parts: Sequence[str] = (), *, curves_wanted: bool = False) -> Report:
    """Measure the claims of these parts, of all without any; `say` hears what comes next. All take about a minute."""
    if curves_wanted and parts and "convergence" not in parts:
        raise InputError(f"a plot shows the part convergence, which is not among {', '.join(parts)}; add it")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"part {part!r} is unknown: expected {', '.join(PARTS)}; leave parts out for all of them")
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "verify needs the package threadpoolctl, which is missing; in the checkout, pip install '.[train]'"
        ) from None
    rows: list[Row] = []
    curves: list[Curve] = []
    # All of this is many small products: threads that wait for each other on a busy machine cost more than they bring.
    with using(threads=1), threadpool_limits(1):
        for name, measure in PARTS.items():
            if not parts or name in parts:
                rows.extend(measure(say, curves))
    assert len(rows) <= MAX_INTERVALS, "more intervals than share the joint level"
    return Report(rows, curves)


__all__ = ["PARTS", "Curve", "Interval", "Report", "Row", "convergence_page", "verify"]
