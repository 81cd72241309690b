"""`fedmpdd demo`: a federation on real digits, FedSGD against FedMPDD and one-bit hadamard, and its page."""

from pathlib import Path
from typing import Annotated

import typer

from fedmpdd.cli.compare import show, side_by_side
from fedmpdd.cli.shared import Json, print_json

CONFIG, TARGET = "demo", 0.8
CODECS = [
    "fedsgd",
    "mpdd:m=400",
    "mpdd:m=400:bits=1:family=hadamard:keys=partitioned",
    "mpdd:m=50:bits=1:family=hadamard:keys=partitioned",
]


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("fedmpdd-demo.html"),
    as_json: Json = False,
) -> None:
    """Train on real digits with FedSGD, FedMPDD and one-bit hadamard: under two minutes, no download.

    Example: fedmpdd demo --out page.html
    """
    result = side_by_side(CONFIG, None, CODECS, out, goals={"target": TARGET})
    show(result, out, as_json)
    if as_json:
        print_json({**result.as_dict(), "page": str(out)})
