"""`fedmpdd replay`: a model from its journal, bit for bit."""

from pathlib import Path
from typing import Annotated

import typer

from fedmpdd.cli.shared import Json, TrustedPaths, TrustImports, print_json, training, trust_and_settings
from fedmpdd.display import share_display
from fedmpdd.errors import RunError


def replay(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a journal.")],
    given: TrustedPaths = None,
    until: Annotated[int | None, typer.Option(min=0, help="The model after so many rounds; default: all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; the model is the same.")] = "cpu",
    model: Annotated[Path | None, typer.Option(help="Also write the model to this .safetensors file.")] = None,
    trust_imports: TrustImports = False,
    as_json: Json = False,
) -> None:
    """Rebuild a model from its journal, bit for bit; exit status 1 if it is not the one that was trained.

    Example: fedmpdd replay runs/demo-001 --until 50 --model round-50.safetensors
    """
    training()
    from fedmpdd.simulation import replay as journal

    trusted, settings = trust_and_settings(given or [], trust_imports)
    if settings:
        raise RunError(f"replay takes no changes, such as {next(iter(settings))}: give at most import paths to trust")
    with share_display(f"replay of {run_folder}") as show:
        rebuilt = journal.replay(run_folder, until=until, device=device, on_progress=show, trust_imports=trusted)
    if model is not None:
        journal.write_model(model, rebuilt)
    document = rebuilt.as_dict()
    if as_json:
        print_json(document)
    else:
        verdict = "as trained" if rebuilt.matches else f"other than trained, from round {rebuilt.first_difference} on"
        print(f"{rebuilt.rounds} rounds, model sha256 {document['sha256']}: {verdict}")
    if not rebuilt.matches:
        raise typer.Exit(1)
