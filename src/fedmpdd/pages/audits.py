"""Audit folders as pages show them: verdicts, reconstructions, numbers, and what counting says."""

import base64
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpdd.documents import is_number, problem_in, read_json
from fedmpdd.errors import RunError
from fedmpdd.imports import OBJECT
from fedmpdd.pages.builder import figure
from fedmpdd.pages.verdicts import LINKED, is_linked, linked_sentence, with_linkage
from fedmpdd.pages.words import flatten

CONFIG, RESULTS, CELLS = "config.json", "results.json", "cells"
LARGEST_RESULTS = 2**26  # bytes: an audit has numbers of every image
IMAGE_FOLDER = "fedmpdd.privacy.images:image_folder"  # names pictures of a folder in a config
SHOWN = 8  # the most images in a line of an audit's picture
_PNG = b"\x89PNG\r\n\x1a\n"


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


def _is_number_or_none(value: Any) -> bool:
    return value is None or is_number(value)


def _are_points(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(_are_numbers(each) and len(each) == 2 for each in value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(is_number(each) for each in value)


_ROW = {
    **dict.fromkeys(("model", "codec", "attack", "verdict"), (_is_word, "a text")),
    **dict.fromkeys(
        ("ssim", "control_ssim", "class_mean_ssim", "mse", "psnr", "labels_found", "bits_revealed"),
        (is_number, "a number"),
    ),
    "linkage": (_is_number_or_none, "null or a number"),
    "ssim_each": (_are_numbers, "a list of numbers"),
    "history": (_are_points, "null or pairs of numbers"),  # earlier versions did not keep it with the results
}
_CODEC = {
    **dict.fromkeys(("model", "codec", "verdict"), (_is_word, "a text")),
    "meter": (lambda value: isinstance(value, dict), "a table"),
}
_METER = {
    **dict.fromkeys(
        ("bits_per_update", "updates_per_client", "bits_revealed", "bits_of_data", "share"), (is_number, "a number")
    ),
    "paper": (_is_number_or_none, "null or a number"),
}


@dataclass(frozen=True)
class AuditRecord:
    """One audit folder; without results where it is unfinished."""

    folder: Path
    config: dict[str, Any]
    results: dict[str, Any] | None
    attacks: int  # that are done


@dataclass(frozen=True)
class Gallery:
    """One model's picture: the private images on top, then a line per row of the results."""

    address: str  # holds the picture's own bytes
    columns: int
    shape: tuple[int, int]  # of an image, in pixels: width, height


@dataclass(frozen=True)
class Section:
    """One model's share of an audit."""

    model: str
    rows: list[dict[str, Any]]
    codecs: list[dict[str, Any]]
    guesses: dict[str, float]  # SSIM of what needs no update
    gallery: Gallery | None
    figures: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """What the page calls the model."""
        return display_name(self.model)

    def strongest(self, codec: dict[str, Any]) -> dict[str, Any]:
        """Return the row that shows best how the verdict on a codec came about."""
        rows = [row for row in self.rows if row["codec"] == codec["codec"]]
        alike = [row for row in rows if row["verdict"] == codec["verdict"]]
        return max(alike or rows, key=lambda row: float(row["ssim"]))


def is_audit(folder: Path) -> bool:
    """Whether a folder holds an audit."""
    return (folder / CONFIG).is_file() and ((folder / RESULTS).is_file() or (folder / CELLS).is_dir())


def read_audit(folder: Path) -> AuditRecord:
    """Read and check an audit folder."""
    attacks = len(list((folder / CELLS).glob("*.npz")))
    path = folder / RESULTS
    if not path.is_file():
        config = _read(folder / CONFIG)
        _check_config(folder / CONFIG, config)
        return AuditRecord(folder, config, None, attacks)
    results = _read(path)
    if not isinstance(results, dict) or not all(isinstance(results.get(key), list) for key in ("rows", "codecs")):
        raise RunError(f"{path} is damaged: expected a table with rows, codecs and config; {_again(folder)}")
    _check_config(path, results.get("config"))
    if problem := next(_problems_of(results), None):
        raise RunError(f"{path}, {problem}; {_again(folder)}")
    return AuditRecord(folder, results["config"], judged(results), attacks)


def judged(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with the verdicts that their numbers have today: earlier versions did not count linkage.

    Rows that say among how many candidates images were found have been judged with that.

    Args:
        results: of an audit; they are not changed.

    """
    rows = [row if "candidates" in row else _judged(row) for row in results["rows"]]
    linked = {(row["model"], row["codec"]) for row in rows if row["verdict"] == LINKED}
    codecs = [
        {**codec, "verdict": with_linkage(codec["verdict"], (codec["model"], codec["codec"]) in linked)}
        for codec in results.get("codecs", [])
    ]
    return {**results, "rows": rows, **({"codecs": codecs} if codecs else {})}


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    word = with_linkage(row["verdict"], is_linked(row["linkage"], len(row["ssim_each"])))
    if word == row["verdict"]:
        return row
    text = row.get("sentence")
    sentence = {} if text is None else {"sentence": linked_sentence(text, row["linkage"])}
    return {**row, "verdict": word, **sentence}


def context_of(audit: AuditRecord) -> dict[str, Any]:
    """Return what the template of audits speaks of."""
    images = display_name(str(audit.config["config"].get("dataset")))
    return {"record": audit, "sections": sections_of(audit), "settings": flatten(audit.config), "images": images}


def sections_of(audit: AuditRecord) -> list[Section]:
    """Return an audit by model."""
    results = audit.results or {"rows": [], "codecs": []}
    sections = []
    for model in dict.fromkeys(row["model"] for row in results["rows"]):
        rows, codecs = ([row for row in results[key] if row["model"] == model] for key in ("rows", "codecs"))
        attacked = {row["codec"] for row in rows}
        sections.append(
            Section(
                model,
                rows,
                [codec for codec in codecs if codec["codec"] in attacked],
                results.get("guesses", {}).get(model, {}),
                _gallery_of(audit, model, len(rows)),
                _figures_of(rows),
            )
        )
    return sections


def display_name(text: str) -> str:
    """Return what people call a model, codec or images that a config names: an object or a folder by its name alone."""
    folder = re.match(rf"{re.escape(IMAGE_FOLDER)}\('(.*?)'", text)
    return folder[1] if folder else re.sub(rf"^{OBJECT}([^#:]*)(#\d+)?", r"\1", text)


def file_name(text: str) -> str:
    """Return a text as audits name their files after it, whatever the number of an object in this process."""
    return re.sub(r"[^a-z0-9]+", "-", display_name(text).lower())


def _problems_of(results: dict[str, Any]) -> Iterator[str]:
    """What cannot be shown of an audit's results."""
    for name, expected in (("rows", _ROW), ("codecs", _CODEC)):
        for number, row in enumerate(results[name]):
            problem = problem_in(row, expected)
            if problem is None and name == "codecs":
                problem = problem_in(row["meter"], _METER)
            if problem is not None:
                yield f"{name.removesuffix('s')} {number} is damaged: {problem}"


def _check_config(path: Path, config: Any) -> None:
    tables = isinstance(config, dict) and all(isinstance(config.get(key), dict) for key in ("config", "audit"))
    if not tables:
        raise RunError(f"{path} is not of an audit: expected tables config and audit; leave this folder out")


def _read(path: Path) -> Any:
    return read_json(path, "leave this folder out, or make it again", largest=LARGEST_RESULTS)


def _again(folder: Path) -> str:
    """What to do about a damaged file of an audit."""
    return f"delete the file and repeat fedmpdd audit … --out {folder}, which keeps what is done"


def _gallery_of(audit: AuditRecord, model: str, rows: int) -> Gallery | None:
    """Look at MODEL.png, and return how it is cut into images; None where it is missing."""
    path = audit.folder / f"{file_name(model)}.png"
    if not path.is_file():
        return None
    asked, run = audit.config["audit"], audit.config["config"]
    try:
        columns = min(SHOWN, int(asked["images"]) * int(asked.get("batch") or run["batch"]))
        data = path.read_bytes()
        if not data.startswith(_PNG) or data[12:16] != b"IHDR":
            raise ValueError("this is no PNG")
        width, height = struct.unpack(">II", data[16:24])
    except (KeyError, TypeError, ValueError, OSError, struct.error) as error:
        raise RunError(f"{path} or its audit's config is damaged: {error!r}; {_again(audit.folder)}") from None
    if columns < 1 or width % columns or height % (rows + 1):
        raise RunError(
            f"{path} is {width} × {height}, expected {columns} images beside and {rows + 1} above each other; "
            + _again(audit.folder)
        )
    address = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
    return Gallery(address, columns, (width // columns, height // (rows + 1)))


def _figures_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """SSIM by codec, and against the iterations of the attacks where they were kept."""
    range_of_ssim = {"title": {"text": "median SSIM"}, "range": [-0.05, 1.05]}
    bars = []
    for colour, attack in enumerate(dict.fromkeys(row["attack"] for row in rows)):
        ours = [row for row in rows if row["attack"] == attack]
        heights = {"x": [row["codec"] for row in ours], "y": [row["ssim"] for row in ours]}
        bars.append({"type": "bar", "name": attack, "colour": colour, **heights})
    class_mean = {"y": rows[0]["class_mean_ssim"], "text": "class mean"}
    curves = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{row['codec']} · {row['attack']}",
            "colour": colour,
            "x": [point[0] for point in row["history"]],
            "y": [point[1] for point in row["history"]],
        }
        for colour, row in enumerate(rows)
        if row.get("history")
    ]
    figures = [figure("Median SSIM by codec", bars, y=range_of_ssim, levels=[class_mean])]
    if curves:
        iterations = {"title": {"text": "iterations"}}
        figures.append(figure("Median SSIM against iterations", curves, x=iterations, y=range_of_ssim))
    return figures
