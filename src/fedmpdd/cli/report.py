"""`fedmpdd report`: one page from runs and audits."""

from pathlib import Path
from typing import Annotated

import typer

from fedmpdd.cli.shared import Json, output, print_json, training
from fedmpdd.display import messages


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, audit folders, or folders that hold some.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; one that is there is replaced.")] = Path(
        "report.html"
    ),
    target: Annotated[list[float] | None, typer.Option(help="Score to reach, like 0.6; may be repeated.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Uplink bytes to stay within; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Make one page of runs and audits: curves, tables, reconstructions, and what was run.

    Example: fedmpdd report runs/ audits/ --target 0.6 --out page.html
    """
    training()
    from fedmpdd.pages.builder import check_page
    from fedmpdd.report import Goals, collect, tables, write_report

    check_page(out)
    goals = Goals(target or (), budget or ())
    collection = collect(folders)
    document = tables(collection, goals)
    write_report(out, collection, goals)
    for text in collection.left_out:
        messages.print(f"left out: {text}", soft_wrap=True)
    output(as_json).print(f"page: {out.resolve().as_uri()}", soft_wrap=True)
    if as_json:
        print_json({"page": str(out), **document})
