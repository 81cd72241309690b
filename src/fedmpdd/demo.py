"""`fedmpdd demo`: real gradients of real digits through the codec, what it costs, and what is lost, against theory."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD
from fedmpdd.data import mnist_5k
from fedmpdd.directions import Key, partitioned_keys
from fedmpdd.errors import MissingDependencyError
from fedmpdd.wire import Session

CLIENTS = 50
BATCH = 8
PALETTE = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c")
CURVE_M = (25, 50, 100, 200, 400, 800, 1_600, 3_200)

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """What one codec does to one round of clients."""

    codec: str
    m: int
    bits: int
    family: str
    partitioned: bool
    uplink_bytes: int  # per client: a whole frame, header, seed (where it is sent) and checksum included
    times_smaller: float
    error: float  # ‖estimate − mean gradient‖² / mean ‖gradient‖²
    predicted: float

    def as_dict(self) -> dict[str, object]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def client_gradients(clients: int = CLIENTS, batch: int = BATCH, steps: int = 30) -> Float32:
    """Gradients [clients, 7850] of softmax regression on minibatches of digits, after a few steps of training."""
    (images, labels), _ = mnist_5k.load()
    rng = np.random.default_rng(0)
    weights = np.zeros((785, 10))
    inputs = np.hstack([images, np.ones((len(images), 1), dtype=np.float32)]).astype(np.float64)

    def gradient(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        x = inputs[rows]
        logits = x @ weights
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), labels[rows]] -= 1
        return np.asarray(x.T @ p / len(rows))

    for _ in range(steps):
        weights -= 0.5 * gradient(rng.integers(len(images), size=256))
    batches = rng.permutation(len(images))[: clients * batch].reshape(clients, batch)
    return np.stack([gradient(rows).reshape(-1) for rows in batches]).astype(np.float32)


def round_error(codec: MPDD, gradients: Float32, partitioned: bool, rounds: int = 20) -> tuple[float, float]:
    """Return the error of the decoded mean over some rounds, measured through real frames, and as predicted."""
    n, d = gradients.shape
    mean = gradients.mean(axis=0, dtype=np.float64)
    norm = float((gradients.astype(np.float64) ** 2).sum(axis=1).mean())
    session = Session(codec, d, sends_seed=False)
    errors = []
    for number in range(rounds):
        keys = partitioned_keys(number, n) if partitioned else [Key(number * n + i) for i in range(n)]
        frames = [session.pack(update) for update in codec.encode(gradients, keys)]
        updates = [session.unpack(frame, key) for frame, key in zip(frames, keys, strict=True)]
        errors.append(((codec.decode_mean(updates) - mean) ** 2).sum() / norm)
    predicted = codec.variance(d, n, partitioned=partitioned, alignment=float(mean @ mean) / norm)
    return float(np.mean(errors)), predicted


SETTINGS = (
    ("FedPDD", MPDD(1), False),
    ("FedMPDD, as in the paper", MPDD(400), False),
    ("FedMPDD, 8 bits", MPDD(400, bits=8), False),
    ("FedMPDD, 1 bit", MPDD(400, bits=1), False),
    ("hadamard, partitioned", MPDD(400, family="hadamard"), True),
    ("hadamard, partitioned, 1 bit", MPDD(400, bits=1, family="hadamard"), True),
    ("hadamard, partitioned, 1 bit, m = 50", MPDD(50, bits=1, family="hadamard"), True),
)


def table(gradients: Float32) -> Iterator[Row]:
    """One row per setting: bytes of a frame, and the error of a round."""
    d = gradients.shape[1]
    for name, codec, partitioned in SETTINGS:
        error, predicted = round_error(codec, gradients, partitioned)
        size = Session(codec, d, sends_seed=not partitioned).frame_bytes
        yield Row(name, codec.m, codec.bits, codec.family, partitioned, size, 4 * d / size, error, predicted)


class Point(NamedTuple):
    """One dot of a curve."""

    curve: str
    m: int
    uplink_bytes: int
    error: float
    predicted: float


def curves(gradients: Float32) -> Iterator[Point]:
    """Error against m for four codecs."""
    for name, bits, family, partitioned in (
        ("rademacher, float32 (the paper)", 32, "rademacher", False),
        ("rademacher, 1 bit", 1, "rademacher", False),
        ("hadamard, partitioned, float32", 32, "hadamard", True),
        ("hadamard, partitioned, 1 bit", 1, "hadamard", True),
    ):
        for m in CURVE_M:
            codec = MPDD(m, bits=bits, family=family)
            size = Session(codec, gradients.shape[1], sends_seed=not partitioned).frame_bytes
            yield Point(name, m, size, *round_error(codec, gradients, partitioned, rounds=4))


def write_page(points: list[Point], rows: list[Row], path: Path) -> None:
    """Write one self-contained page: error against m and against bytes, and the table."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ModuleNotFoundError:
        raise MissingDependencyError("the page needs plotly, which is missing; pip install 'fedmpdd[demo]'") from None
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"type": "xy"}, {"type": "xy"}], [{"type": "table", "colspan": 2}, None]],
        row_heights=[0.6, 0.4],
        subplot_titles=("the more directions, the less error", "what an error costs in bytes", ""),
        vertical_spacing=0.12,
    )
    for name, colour in zip(dict.fromkeys(point.curve for point in points), PALETTE, strict=True):
        own = [point for point in points if point.curve == name]
        for column, x in ((1, [point.m for point in own]), (2, [point.uplink_bytes for point in own])):
            shared = {"x": x, "name": name, "legendgroup": name}
            dots = {"mode": "markers", "marker": {"color": colour, "size": 9}, "showlegend": column == 1}
            line = {"mode": "lines", "line": {"color": colour, "width": 1.5}, "showlegend": False}
            figure.add_trace(go.Scatter(y=[point.error for point in own], **shared, **dots), row=1, col=column)
            figure.add_trace(go.Scatter(y=[point.predicted for point in own], **shared, **line), row=1, col=column)
    cells = {
        "codec": [row.codec for row in rows],
        "bytes per client and round": [f"{row.uplink_bytes:,}" for row in rows],
        "times smaller than float32": [f"{row.times_smaller:,.1f}×" for row in rows],
        "error": [f"{row.error:.3f}" for row in rows],
        "predicted": [f"{row.predicted:.3f}" for row in rows],
    }
    style = {"align": "left", "height": 26}
    table = go.Table(header={"values": list(cells), **style}, cells={"values": list(cells.values()), **style})
    figure.add_trace(table, row=2, col=1)
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    figure.update_xaxes(title="directions m", row=1, col=1)
    figure.update_xaxes(title="bytes per client and round", row=1, col=2)
    figure.update_yaxes(title="error of the mean gradient, relative", row=1, col=1)
    figure.update_layout(
        title=f"One round of {CLIENTS} clients on real digits, d = 7,850: dots measured, lines theory",
        template="plotly_white",
        height=900,
        legend={"orientation": "h", "y": 1.12},
        margin={"t": 150},
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True})
    partial = path.with_name(path.name + ".part")
    partial.write_text(page, encoding="utf-8")
    partial.replace(path)
