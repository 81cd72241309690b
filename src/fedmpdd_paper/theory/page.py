"""The convergence part as one self-contained page."""

from collections.abc import Sequence

from fedmpdd.pages.builder import figure, render
from fedmpdd_paper.theory.convergence import Curve

LEAD = "A problem with known constants, d = 512; every number of rounds K is a training of its own with η = 1/(L√K)."


def convergence_page(curves: Sequence[Curve]) -> str:
    """Return a page with ‖∇f‖² against K on logarithmic axes, one figure for each number of clients."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    figures = []
    for clients in sorted({curve.clients for curve in curves}):
        traces = []
        for curve in (curve for curve in curves if curve.clients == clients):
            lines = (
                ("mean over rounds", curve.mean, "solid"),
                ("least of all rounds", curve.least, "dot"),
                ("bound on the mean (corrected)", [b if b < float("inf") else None for b in curve.bound], "dash"),
            )
            for what, values, dash in lines:
                style = {"mode": "lines+markers", "line": {"dash": dash}, "colour": names.index(curve.name)}
                points = {"x": list(curve.rounds), "y": list(values)}
                traces.append({"type": "scatter", "name": f"{curve.name}: {what}", **points, **style})
        axes = {
            "x": {"type": "log", "title": {"text": "rounds K"}},
            "y": {"type": "log", "title": {"text": "‖∇f‖²/d"}, "dtick": 1, "exponentformat": "power"},
        }
        figures.append(figure(f"{clients} client{'s' if clients > 1 else ''}", traces, **axes))
    return render(
        "fedmpdd.pages:figures.html.jinja", title="Convergence", kicker="fedmpdd verify", lead=LEAD, shown=figures
    )
