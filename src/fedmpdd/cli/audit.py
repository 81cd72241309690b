"""`fedmpdd audit`: what an attacker really gets."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import Config, DataDir, Json, Overrides, output, print_json, said_how_to_go_on, training
from fedmpdd.display import share_display, table


def audit(
    config: Config,
    overrides: Overrides = None,
    codecs: Annotated[
        str | None, typer.Option(help="Codecs, like mpdd:m=400,qsgd:bits=4; else those of CONFIG.")
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="Attack the model of this run's newest checkpoint.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; audits/NAME-001 and so on if not given. Resumes there.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Attacks at a time, a process each.")] = 1,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Attack the updates of a config, and say what an attacker really gets.

    Example: fedmpdd audit audit-mnist --codecs fedsgd,mpdd:m=400 --run runs/demo-001
    """
    training()
    from fedmpdd.privacy.audit import PAGE, run_audit
    from fedmpdd.privacy.config import load_audit
    from fedmpdd.runs.folders import free_folder

    chosen = load_audit(config, overrides or [], codecs=codecs, run=run_folder)
    folder = out or free_folder(config, Path("audits"))
    with (
        said_how_to_go_on(f"stopped; the same command with --out {folder} goes on from there"),
        share_display("audit") as progress,
    ):
        results = run_audit(chosen, folder, data_dir, progress, jobs)
    if as_json:
        print_json({"folder": str(folder), **results})
        return
    guesses = "; ".join(f"{model}: class mean {ssim['class mean']:.2f}" for model, ssim in results["guesses"].items())
    columns = {"model": "left", "codec": "left", "attack": "left", "SSIM": "right", "control": "right"}
    columns |= {"labels": "right", "linkage": "right", "verdict": "left"}
    console = output(False)
    title = f"median SSIM, and that of the same attack on the whole gradient ({guesses})"
    console.print(table(title, columns, [_cells_of(row) for row in results["rows"]]))
    for codec in results["codecs"]:
        console.print(f"{codec['model']}, {codec['codec']}: {codec['verdict']}", soft_wrap=True)
    console.print(f"the page: {folder / PAGE}", soft_wrap=True)


def _cells_of(row: dict[str, Any]) -> list[str]:
    linked = "–" if row["linkage"] is None else f"{row['linkage']:.0%}"
    scores = [f"{row['ssim']:.2f}", f"{row['control_ssim']:.2f}", f"{row['labels_found']:.0%}", linked]
    return [row["model"], row["codec"], row["attack"], *scores, row["verdict"]]
