"""`fedmpdd demo`: a federation on real digits, FedSGD against FedMPDD and one-bit hadamard, and a page at the end."""

from pathlib import Path

from fedmpdd.display import PLOT_SETTINGS
from fedmpdd.display import readable_bytes as readable
from fedmpdd.errors import InputError
from fedmpdd.runs.compare import Comparison
from fedmpdd.runs.folders import write_text

CONFIG = "demo"
TARGET = 0.8
CODECS = {
    "fedsgd": "FedSGD",
    "mpdd:m=400": "FedMPDD (paper), m = 400",
    "mpdd:m=400:bits=1:family=hadamard:keys=partitioned": "one-bit hadamard, m = 400",
    "mpdd:m=50:bits=1:family=hadamard:keys=partitioned": "one-bit hadamard, m = 50",
}
PALETTE = ("#495057", "#1f6feb", "#862e9c", "#d9480f")


def write_page(rows: list[Comparison], path: Path) -> None:
    """Write one self-contained page: accuracy against rounds and against uplink bytes, and the table."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"type": "xy"}, {"type": "xy"}], [{"type": "table", "colspan": 2}, None]],
        row_heights=[0.66, 0.34],
        subplot_titles=("accuracy against rounds", "accuracy against uplink bytes", ""),
        vertical_spacing=0.12,
    )
    for row, colour in zip(rows, PALETTE, strict=False):
        rounds, sent, accuracy = (list(values) for values in zip(*row.history, strict=True))
        name = CODECS.get(row.codec, row.codec)
        for column, x in ((1, rounds), (2, sent)):
            style = {"name": name, "legendgroup": name, "line": {"color": colour, "width": 2}, "mode": "lines"}
            figure.add_trace(go.Scatter(x=x, y=accuracy, showlegend=column == 1, **style), row=1, col=column)
    cells = {
        "codec": [CODECS.get(row.codec, row.codec) for row in rows],
        "final accuracy": [f"{row.final_accuracy:.1%}" for row in rows],
        f"rounds to {TARGET:.0%}": ["–" if row.rounds_to_target is None else f"{row.rounds_to_target}" for row in rows],
        f"uplink to {TARGET:.0%}": [
            "–" if row.bytes_to_target is None else readable(row.bytes_to_target) for row in rows
        ],
        "uplink in all": [readable(row.uplink_bytes) for row in rows],
    }
    table = {"align": "left", "height": 28}
    figure.add_trace(
        go.Table(header={"values": list(cells), **table}, cells={"values": list(cells.values()), **table}), row=2, col=1
    )
    figure.update_xaxes(title="rounds", row=1, col=1)
    figure.update_xaxes(title="bytes sent by all clients together", type="log", row=1, col=2)
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    figure.update_layout(
        title="Softmax regression on 4,000 real digits, 100 clients, 50 a round",
        template="plotly_white",
        height=860,
        legend={"orientation": "h", "y": 1.12},
        margin={"t": 150},
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, config=PLOT_SETTINGS)
    page = page.replace("<head>", "<head><title>fedmpdd demo</title>", 1)
    try:
        write_text(path, page)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {error}") from None
