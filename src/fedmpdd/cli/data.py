"""`fedmpdd data`: words on the command line to calls."""

from typing import Annotated

import typer

from fedmpdd.cli.shared import Command, DataDir, Json, output, print_json
from fedmpdd.display import download_progress, messages, table

app = typer.Typer(
    help="Datasets: what there is, where it is, how to get it. They lie in --data-dir, or else in the folder that the "
    "variable FEDMPDD_DATA names, or else in ~/.cache/fedmpdd/data; each has a folder there, such as mnist/.\n\n"
    "Example: FEDMPDD_DATA=~/datasets fedmpdd data check mnist",
    no_args_is_help=True,
)


@app.command("list", cls=Command)
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show the datasets, and which are here.

    Example: fedmpdd data list
    """
    from fedmpdd.tasks.data import data_folder, sources_named

    folder = data_folder(data_dir)
    rows = []
    for source in sources_named("all"):
        files = len(source.find(folder)) if source.find else 0
        state = "comes with the package" if not source.files else f"{files} files" if files else "not here"
        rows.append({"dataset": source.name, "state": state})
    if as_json:
        print_json({"folder": str(folder), "rows": rows})
        return
    cells = [[row["dataset"], row["state"]] for row in rows]
    output(False).print(table(f"in {folder}", {"dataset": "left", "state": "left"}, cells))


@app.command("fetch", cls=Command)
def data_fetch(
    name: Annotated[str, typer.Argument(help="A dataset, or all.")], data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Download a dataset from its official mirror, checked by SHA-256.

    Example: fedmpdd data fetch fashion-mnist --data-dir ~/datasets
    """
    from fedmpdd.tasks.data import data_folder, sources_named
    from fedmpdd.tasks.data.fetch import fetch

    folder = data_folder(data_dir)
    rows = []
    for source in sources_named(name):
        if name == "all" and not source.has_mirror:
            messages.print(f"{source.name}: no mirror is known; its files have to be put into {folder / source.name}")
            continue
        messages.print(f"{source.name} → {folder}")
        brought = fetch(source, folder, download_progress())
        messages.print(f"{source.name}: {len(brought)} files brought")
        rows.append({"dataset": source.name, "brought": [str(path) for path in brought]})
    if as_json:
        print_json({"folder": str(folder), "rows": rows})


@app.command("check", cls=Command)
def data_check(
    name: Annotated[str, typer.Argument(help="A dataset, or all.")] = "all",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Look at every file of a dataset and load it; exit status 1 if something is damaged.

    Example: fedmpdd data check mnist
    """
    from fedmpdd.tasks.data import data_folder, sources_named
    from fedmpdd.tasks.data.fetch import check

    findings = [finding for source in sources_named(name) for finding in check(source, data_folder(data_dir))]
    if as_json:
        print_json({"rows": [finding._asdict() for finding in findings]})
    for finding in [] if as_json else findings:
        print(f"{finding.state:8}  {finding.dataset:14} {finding.path}: {finding.detail}")
    if any(finding.state == "damaged" for finding in findings):
        raise typer.Exit(1)
