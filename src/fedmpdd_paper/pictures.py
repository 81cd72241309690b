"""Curves of a table as one picture: loss and accuracy against rounds and against bytes, as the paper draws them."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from fedmpdd.documents import write_atomically
from fedmpdd.report import collect
from fedmpdd.report.plots import accuracy_curve, loss_curve
from fedmpdd_paper.table_text import short_name


def draw_curves(path: Path, title: str, rows: Sequence[dict[str, Any]], folders: Sequence[Sequence[Path]]) -> None:
    """Write the picture of rows, each with the run folders of its seeds. Shaded: a standard deviation over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(13, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    first_loss = 0.0
    for number, (row, paths) in enumerate(zip(rows, folders, strict=True)):
        runs = collect(paths).runs
        first_loss = max([first_loss, *(entry.loss for run in runs for entry in run.history.rounds[:1] if entry.loss)])
        style = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3], "linewidth": 1.3}
        # As far as the shortest run goes: beyond it fewer seeds would bend the mean.
        for line, curve in enumerate((loss_curve(runs), accuracy_curve(runs))):
            for column, x in enumerate(("rounds", "payload")):
                panel = panels[line][column]
                panel.plot(curve[x], curve["mean"], label=short_name(row), **style)
                low, high = (
                    [mean + sign * (sd or 0.0) for mean, sd in zip(curve["mean"], curve["sd"], strict=True)]
                    for sign in (-1, 1)
                )
                panel.fill_between(curve[x], low, high, color=style["color"], alpha=0.12, linewidth=0)
    for line, name in enumerate(("training loss", "test accuracy")):
        for column, x in enumerate(("rounds", "bytes from clients to server")):
            panels[line][column].set(xlabel=x, ylabel=name)
            panels[line][column].grid(alpha=0.25)
            panels[line][column].set_ylim(0, 1 if line else 1.2 * first_loss)
            if column:
                panels[line][column].set_xscale("log")
    figure.suptitle(title)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    picture = Image.open(drawn).convert("RGB").quantize(128)  # a quarter of the bytes, and nothing to be seen
    write_atomically(path, lambda partial: picture.save(partial, format="png", optimize=True))
