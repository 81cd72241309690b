"""The convergence part as one self-contained page."""

from collections.abc import Sequence

from fedmpdd.display import PLOT_SETTINGS
from fedmpdd_paper.theory.convergence import Curve

PALETTE = ("#495057", "#d9480f", "#1f6feb")


def convergence_page(curves: Sequence[Curve]) -> str:
    """Return a page with ‖∇f‖² against K on logarithmic axes, one panel for each number of clients."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = sorted({curve.clients for curve in curves})
    titles = [f"{clients} client{'s' if clients > 1 else ''}" for clients in panels]
    figure = make_subplots(cols=len(panels), rows=1, shared_yaxes=True, subplot_titles=titles)
    names = list(dict.fromkeys(curve.name for curve in curves))
    for curve in curves:
        column = panels.index(curve.clients) + 1
        colour = PALETTE[names.index(curve.name) % len(PALETTE)]
        lines = (
            ("mean over rounds", curve.mean, "solid"),
            ("least of all rounds", curve.least, "dot"),
            ("bound on the mean (corrected)", [b if b < float("inf") else None for b in curve.bound], "dash"),
        )
        for what, values, dash in lines:
            label = f"{curve.name}: {what}"
            style = {"name": label, "legendgroup": label, "line": {"color": colour, "dash": dash}}
            trace = go.Scatter(x=curve.rounds, y=values, mode="lines+markers", showlegend=column == 1, **style)
            figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(type="log", title="rounds K, each a training of its own with η = 1/(L√K)")
    figure.update_yaxes(type="log", title="‖∇f‖²/d", col=1, row=1)
    figure.update_yaxes(type="log")
    figure.update_layout(
        title="Convergence on a problem with known constants, d = 512", template="plotly_white", height=640
    )
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, config=PLOT_SETTINGS)
    return page
