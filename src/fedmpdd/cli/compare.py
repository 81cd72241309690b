"""`fedmpdd compare`: the same federation with several codecs and seeds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import Config, DataDir, Json, Overrides, output, print_json, resume_hint, training
from fedmpdd.display import messages
from fedmpdd.errors import RunError

PAGE = "report.html"  # in the folder of a comparison


def compare(
    config: Config,
    overrides: Overrides = None,
    codecs: Annotated[str, typer.Option(help="Comma-separated, parameters with colons: fedsgd,mpdd:m=400:bits=1")] = "",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many, from the config's seed on.")] = 1,
    baseline: Annotated[
        str | None, typer.Option(help="The codec that others are held against, like fedsgd; else the first one.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Score to reach: an accuracy like 0.8; of a loss, one to fall to.")
    ] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Uplink bytes, of all clients together.")] = None,
    stop_at_target: Annotated[bool, typer.Option("--stop-at-target", help="End each training at its target.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the runs and their page; goes on there. Or a page alone: results.html."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train the same federation with every codec and seed, and tabulate scores, rounds and bytes.

    Example: fedmpdd compare demo --codecs fedsgd,mpdd:m=400 --seeds 3 --target 0.8 --out demo-codecs
    """
    from fedmpdd.uplink.codec_config import codec_list

    folder = None if out is None or out.suffix == ".html" else out
    if folder is not None and folder.is_file():
        raise RunError(f"--out {folder} is a file; name a folder for the runs, or a page that ends in .html")
    page = out if folder is None else folder / PAGE
    result = side_by_side(
        config,
        overrides,
        codec_list(codecs),
        page,
        folder=folder,
        goals={"target": target, "budget": budget},
        seeds=seeds,
        baseline=baseline,
        stop_at_target=stop_at_target,
        data_dir=data_dir,
    )
    show(result, page, as_json)
    if as_json:
        print_json(result.as_dict())


def side_by_side(
    config: str,
    overrides: list[str] | None,
    codecs: list[str],
    page: Path | None,
    *,
    goals: dict[str, Any],
    folder: Path | None = None,
    seeds: int = 1,
    baseline: str | None = None,
    stop_at_target: bool = False,
    data_dir: Path | None = None,
) -> Any:
    """Train with every codec and seed while showing how far it is; write the page of it where one is wanted."""
    training()
    from fedmpdd.front.compare import compare_configs, goals_of
    from fedmpdd.pages.builder import check_page, check_plotly
    from fedmpdd.simulation import load_config
    from fedmpdd.simulation.config import codec_config
    from fedmpdd.simulation.tasks import load_task

    if folder is not None:
        check_plotly()  # the folder is made with its first run
    elif page is not None:
        check_page(page)
    loaded = load_config(config, overrides)
    with resume_hint(_how_to_go_on(folder)):
        result = compare_configs(
            [(text, codec_config(loaded, text)) for text in codecs],
            load_task(loaded, data_dir),
            [loaded.seed + number for number in range(seeds)],
            out=folder,
            goals=goals_of(**goals),
            baseline=None if baseline is None else codec_config(loaded, baseline).codec,
            stop_at_target=stop_at_target,
        )
    if page is not None:
        result.report(page)
    return result


def show(result: Any, page: Path | None, as_json: bool) -> None:
    """Print the table of a comparison, unless its document is printed, and where its page is."""
    if not as_json:
        output(as_json).print(result.table())
    for note in result.notes():
        messages.print(note, soft_wrap=True)
    if page is not None:
        output(as_json).print(f"page: {page.resolve().as_uri()}", soft_wrap=True)


def _how_to_go_on(folder: Path | None) -> str:
    if folder is None:
        return "stopped; nothing was kept: with --out FOLDER a comparison goes on where it was stopped"
    return f"stopped; the same command with --out {folder} goes on from there"
