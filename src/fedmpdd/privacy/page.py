"""The audit's page and its picture: originals and reconstructions side by side, curves, numbers, verdicts."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpdd.documents import write_atomically
from fedmpdd.pages import builder
from fedmpdd.pages.audits import SHOWN, context_of, display_name, file_name, read_audit
from fedmpdd.privacy.rows import Section


def write_picture(folder: Path, section: Section) -> None:
    """Write MODEL.png: the private images on top, then a line per row of the results."""
    lines = [section.case.images] + [section.results[row.codec, row.attack]["images"] for row in section.rows]
    flat = [line.reshape(-1, *line.shape[2:])[:SHOWN] for line in lines]
    padded = [np.pad(line, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=0.5) for line in flat]
    picture = _png_of(np.concatenate([np.concatenate(list(line), axis=2) for line in padded], axis=1))

    def write(partial: Path) -> None:
        partial.write_bytes(picture)

    write_atomically(folder / f"{file_name(section.audit.config.model)}.png", write)


def write_page(path: Path, folder: Path | None = None) -> None:
    """Write the page of the audit in a folder, by default its own, from the results and pictures that are there."""
    audit = read_audit(path.parent if folder is None else folder)
    dataset = display_name(audit.config["config"]["dataset"])
    models = ", ".join(dict.fromkeys(display_name(row["model"]) for row in (audit.results or {"rows": []})["rows"]))
    page = builder.render(
        "fedmpdd.pages:audit.html.jinja",
        title=f"What an attacker gets: {models} on {dataset}",
        kicker="fedmpdd audit",
        audits=[context_of(audit)],
    )
    builder.write_page(path, page)


def _png_of(image: NDArray[np.float32]) -> bytes:
    """An image [channels, height, width] as a PNG file."""
    from PIL import Image

    pixels = (np.clip(image, 0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()
