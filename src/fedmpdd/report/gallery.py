"""Reconstructions out of an audit folder: which part of which picture shows what."""

import base64
import re
import struct
from dataclasses import dataclass
from typing import Any

from fedmpdd.errors import RunError
from fedmpdd.report.collect import AuditRecord, again

SHOWN = 8  # the most images in a line of an audit's picture
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Tile:
    """One image of the picture, as a place in it in percent, and its SSIM."""

    left: float
    top: float
    ssim: float | None


@dataclass(frozen=True)
class Line:
    """The private images, or what one attack made of them."""

    codec: str
    attack: str
    verdict: str
    tiles: list[Tile]


@dataclass(frozen=True)
class Gallery:
    """One model's picture, cut into lines."""

    address: str  # holds the picture's own bytes
    columns: int
    lines: list[Line]
    shape: tuple[int, int]  # of a tile, in pixels: width, height


def gallery_of(audit: AuditRecord, model: str, rows: list[dict[str, Any]]) -> Gallery | None:
    """Cut up MODEL.png: the private images on top, then a line per row of the results. None where it is missing."""
    path = audit.folder / f"{_file_name(model)}.png"
    if not path.is_file():
        return None
    own, run = audit.config["audit"], audit.config["config"]
    try:
        columns = min(SHOWN, int(own["images"]) * int(own.get("batch") or run["batch"]))
        data = path.read_bytes()
        if not data.startswith(_PNG) or data[12:16] != b"IHDR":
            raise ValueError("this is no PNG")
        width, height = struct.unpack(">II", data[16:24])
    except (KeyError, TypeError, ValueError, OSError, struct.error) as error:
        raise RunError(f"{path} or its audit's config is damaged: {error!r}; {again(audit.folder)}") from None
    count = len(rows) + 1
    if columns < 1 or width % columns or height % count:
        raise RunError(
            f"{path} is {width} × {height}, expected {columns} images beside and {count} above each other; "
            + again(audit.folder)
        )
    tops = [_share(line, count) for line in range(count)]
    lefts = [_share(column, columns) for column in range(columns)]
    lines = [Line("the private images", "", "", [Tile(left, tops[0], None) for left in lefts])]
    for row, top in zip(rows, tops[1:], strict=True):
        values = [*row["ssim_each"], *[None] * columns]
        tiles = [Tile(left, top, value) for left, value in zip(lefts, values, strict=False)]
        lines.append(Line(row["codec"], row["attack"], row["verdict"], tiles))
    address = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
    return Gallery(address, columns, lines, (width // columns, height // count))


def _share(index: int, count: int) -> float:
    """Where CSS has a background begin so that part `index` of `count` shows, in percent."""
    return 0.0 if count == 1 else 100 * index / (count - 1)


def _file_name(model: str) -> str:
    """As an audit names its pictures."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower())
