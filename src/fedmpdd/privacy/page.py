"""The audit's page: one file, no network; originals and reconstructions side by side, bars, curves, verdicts."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.display import PLOT_SETTINGS
from fedmpdd.privacy.findings import Row, Section
from fedmpdd.runs.folders import write_text

SHOWN = 8  # images per row
PALETTE = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#495057")
STYLE = """
:root { color-scheme: light dark; --line: #8884; --muted: #777; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
.row { display: grid; grid-template-columns: 16rem repeat(8, minmax(40px, 72px)); gap: 4px; align-items: center; }
.row img { width: 100%; image-rendering: pixelated; background: #000; }
.row .name { font-size: 0.85rem; overflow-wrap: anywhere; }
.muted { color: var(--muted); font-size: 0.9rem; }
.verdict { font-weight: 600; }
@media (max-width: 50rem) { .row { grid-template-columns: repeat(4, 1fr); } .row .name { grid-column: 1 / -1; } }
"""


def write_page(path: Path, results: dict[str, Any], sections: Sequence[Section]) -> None:
    """Write the page."""
    config, audit = results["config"]["config"], results["config"]["audit"]
    stage = f"the newest checkpoint of {audit['run']}" if audit["run"] else f"initialisation ({config['init']})"
    batch = audit["batch"] or config["batch"]
    names = ", ".join(section.audit.config.model for section in sections)
    title = f"What an attacker gets: {names} on {config['dataset']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Model at {html.escape(stage)}; batches of {batch}; {audit['images']} private batches; labels "
        f"{audit['labels']}; {audit['rounds']} round(s) seen of each. The attacker has the frames, the model and the "
        "seeds, as a server has, and public images of the same kind. It never has a gradient.</p>",
        "<p class='muted'>Few bits and projections are settings, not guarantees: a better attack may find more. "
        "Guarantees come from clipping with noise and from secure aggregation.</p>",
    ]
    for number, section in enumerate(sections):
        model = section.audit.config.model
        codecs = [codec for codec in results["codecs"] if codec["model"] == model]
        parts += [
            f"<h2>{html.escape(model)}</h2>",
            "<h3>Verdicts</h3>",
            _verdicts(section.rows, codecs),
            "<h3>Reconstructions</h3>",
            _gallery(section),
            "<h3>Numbers</h3>",
            _numbers(section.rows, results["guesses"][model]),
            "<h3>SSIM</h3>",
            _plots(section, with_library=number == 0),
            "<h3>What counting alone says</h3>",
            _meters(codecs),
        ]
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    write_text(path, page)


def _verdicts(rows: "list[Row]", codecs: list[dict[str, Any]]) -> str:
    lines = []
    for codec in codecs:
        own = [row for row in rows if row.codec == codec["codec"]]
        best = max([row for row in own if row.verdict == codec["verdict"]] or own, key=lambda row: row.ssim)
        lines.append(
            f"<li><span class='verdict'>{html.escape(codec['codec'])}: {codec['verdict']}.</span> "
            f"The attack {html.escape(best.sentence.removeprefix(codec['codec'] + ': '))}</li>"
        )
    return f"<ul>{''.join(lines)}</ul>"


def _gallery(section: Section) -> str:
    originals = section.scene.images
    flat = originals.reshape(-1, *originals.shape[2:])[:SHOWN]
    rows = [_gallery_row("the private images", flat, [None] * len(flat))]
    for row in section.rows:
        images = section.cells[row.codec, row.attack]["images"]
        images = images.reshape(-1, *images.shape[2:])[:SHOWN]
        rows.append(_gallery_row(f"{row.codec} · {row.attack} · {row.verdict}", images, row.ssim_each))
    return "".join(rows)


def _gallery_row(name: str, images: NDArray[np.float32], values: list[Any]) -> str:
    pictures = "".join(
        f"<img alt='{html.escape(name)}, image {i + 1}' "
        f"title='{'' if value is None else f'SSIM {value:.2f}'}' src='{png_address(image)}'>"
        for i, (image, value) in enumerate(zip(images, values, strict=False))
    )
    return f"<div class='row'><div class='name'>{html.escape(name)}</div>{pictures}</div>"


def png_address(image: NDArray[np.float32]) -> str:
    """An image [channels, height, width] as an address that holds its own bytes."""
    return "data:image/png;base64," + base64.b64encode(png_of(image)).decode("ascii")


def png_of(image: NDArray[np.float32]) -> bytes:
    """An image [channels, height, width] as a PNG file."""
    from PIL import Image

    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def picture(section: Section) -> bytes:
    """All reconstructions as one PNG: the private images on top, then a line per row of the results."""
    lines = [section.scene.images] + [section.cells[row.codec, row.attack]["images"] for row in section.rows]
    flat = [line.reshape(-1, *line.shape[2:])[:SHOWN] for line in lines]
    padded = [np.pad(line, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=0.5) for line in flat]
    return png_of(np.concatenate([np.concatenate(list(line), axis=2) for line in padded], axis=1))


def _numbers(rows: "list[Row]", guesses: dict[str, float]) -> str:
    head = ("codec", "attack", "SSIM", "control", "class mean", "MSE", "PSNR", "labels", "linkage", "bits", "verdict")
    lines = []
    for row in rows:
        linked = "–" if row.linkage is None else f"{row.linkage:.0%}"
        numbers = (
            f"{row.ssim:.2f}", f"{row.control_ssim:.2f}", f"{row.class_mean_ssim:.2f}", f"{row.mse:.4f}",
            f"{row.psnr:.1f}", f"{row.labels_found:.0%}", linked, f"{row.bits_revealed:,}",
        )  # fmt: skip
        cells = "".join(f"<td class='number'>{number}</td>" for number in numbers)
        lines.append(f"<tr><td>{html.escape(row.codec)}</td><td>{row.attack}</td>{cells}<td>{row.verdict}</td></tr>")
    titles = "".join(f"<th{' class=number' if 1 < i < 10 else ''}>{name}</th>" for i, name in enumerate(head))
    trivial = ", ".join(f"{name} {value:.2f}" for name, value in guesses.items())
    return (
        f"<div class='scroll'><table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        "<p class='muted'>Medians over images. Control: the same attack on the whole gradient. Linkage: the true image "
        f"found among 100 of its class. SSIM of guesses that need no update: {trivial}.</p>"
    )


def _plots(section: Section, *, with_library: bool) -> str:
    import plotly.graph_objects as go

    bars, curves = go.Figure(), go.Figure()
    for attack, colour in zip(section.audit.audit.attacks, PALETTE, strict=False):
        own = [row for row in section.rows if row.attack == attack]
        bars.add_bar(x=[row.codec for row in own], y=[row.ssim for row in own], name=attack, marker_color=colour)
    class_mean = section.rows[0].class_mean_ssim
    bars.add_hline(y=class_mean, line_dash="dot", annotation_text="class mean")
    for row in section.rows:
        history = section.cells[row.codec, row.attack]["history"]
        curves.add_scatter(x=history[:, 0], y=history[:, 1], name=f"{row.codec} · {row.attack}", mode="lines")
    for figure, name in ((bars, "median SSIM by codec"), (curves, "median SSIM against iterations")):
        figure.update_layout(
            title=name,
            height=460,
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font={"color": "#888"},
            yaxis={"range": [-0.05, 1.05], "gridcolor": "rgba(128,128,128,0.3)"},
            xaxis={"gridcolor": "rgba(128,128,128,0.3)"},
        )
    return str(
        bars.to_html(include_plotlyjs=with_library, full_html=False, config=PLOT_SETTINGS)
        + curves.to_html(include_plotlyjs=False, full_html=False, config=PLOT_SETTINGS)
    )


def _meters(codecs: list[dict[str, Any]]) -> str:
    head = (
        "codec",
        "bits an update",
        "updates a client",
        "bits revealed",
        "bits of its data, at most",
        "share",
        "T·m/d",
    )
    lines = []
    for codec in codecs:
        m = codec["meter"]
        paper = "–" if m["paper"] is None else f"{m['paper']:.2f}"
        numbers = (
            f"{m['bits_per_update']:,.0f}", f"{m['updates_per_client']:,.0f}", f"{m['bits_revealed']:,.0f}",
            f"{m['bits_of_data']:,.0f}", f"{m['share']:.3g}", paper,
        )  # fmt: skip
        cells = "".join(f"<td class='number'>{number}</td>" for number in numbers)
        lines.append(f"<tr><td>{html.escape(codec['codec'])}</td>{cells}</tr>")
    titles = "".join(f"<th{' class=number' if i else ''}>{name}</th>" for i, name in enumerate(head))
    return (
        f"<div class='scroll'><table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        "<p class='muted'>Over the whole run, for a client that takes part in its share of the rounds. A share below 1 "
        "means that nobody can recover all examples of a client; single ones may still be recovered. T·m/d is the "
        "paper's measure, which it wants below 1; it is no bound on what is recovered.</p>"
    )
