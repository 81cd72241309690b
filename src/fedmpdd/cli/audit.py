"""`fedmpdd audit`: what an attacker really gets."""

from pathlib import Path
from typing import Annotated

import typer

from fedmpdd.cli.shared import (
    DataDir,
    Json,
    Overrides,
    TrustImports,
    blame_user_code,
    output,
    print_json,
    resume_hint,
    training,
    trust_and_settings,
)
from fedmpdd.errors import ConfigError, DataError, RunError
from fedmpdd.imports import is_import_path


def audit(
    config: Annotated[str | None, typer.Argument(help="A TOML file, or a shipped name such as audit-mnist.")] = None,
    overrides: Overrides = None,
    images: Annotated[
        str | None,
        typer.Option(help="Your images: a folder of pictures, with a folder per class or without, or mydata.py:load."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=11, max=4096, help="Height and width to scale the pictures of --images to.")
    ] = None,
    codecs: Annotated[
        str | None, typer.Option(help="Codecs, like mpdd:m=400,mycodec.py:Mine(m=3); else those of CONFIG.")
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="Attack the model of this run's newest checkpoint.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; audits/NAME-001 and so on if not given. Goes on there.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this audit folder, as its own config says.")] = None,
    trust_imports: TrustImports = False,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Attacks at a time, a process each.")] = 1,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Attack the updates of a config, and say what an attacker really gets.

    Model, images, loss and codecs may be of your own, by import path: a module, or a file of this folder.

    Example: fedmpdd audit audit-mnist --codecs fedsgd,mpdd:m=400 --run runs/demo-001

    Example: fedmpdd audit demo "model=mynet.py:Net(width=32)" --images photos --size 32 --out audits/mine

    Example: fedmpdd audit --resume audits/mine --trust-imports
    """
    training()
    from fedmpdd.front.audit import audit_folder
    from fedmpdd.privacy.audit import PAGE
    from fedmpdd.privacy.config import load_audit, read_audit_config
    from fedmpdd.runs.folders import free_folder

    if resume is not None:
        given = [] if config is None else [config, *(overrides or [])]
        named = [text for text in given if "=" in text]
        trusted, settings = trust_and_settings(named, trust_imports)
        if settings or len(named) < len(given) or out or images or codecs or run_folder:
            raise RunError(f"--resume {resume} goes on as the config of that audit says; give nothing beside it")
        chosen, folder = read_audit_config(resume, trusted), resume
    elif trust_imports:
        raise ConfigError("--trust-imports is for --resume; the code that a config of yours names is yours to trust")
    elif config is None:
        raise ConfigError("name a config, like `fedmpdd audit audit-mnist`, or an audit to --resume")
    else:
        changes = [*(overrides or []), *_images(images, size)]
        chosen = load_audit(config, changes, codecs=codecs, run=run_folder)
        folder = out or free_folder(config, Path("audits"))
    how_to_go_on = f"the same command with --out {folder} goes on from there"
    if resume is not None:
        how_to_go_on = "the same command goes on from there"
    own_code = blame_user_code(chosen.config.model_dump(mode="json"))
    with resume_hint(f"stopped; {how_to_go_on}"), own_code:
        result = audit_folder(chosen, folder, data_dir, jobs=jobs)
    if as_json:
        print_json({"folder": str(folder), **result.results})
        return
    console = output(False)
    console.print(result.table())
    for note in result.notes():
        console.print(note, soft_wrap=True)
    console.print(f"the page: {folder / PAGE}", soft_wrap=True)


def _images(named: str | None, size: int | None) -> list[str]:
    """The change to a config that an option stands for."""
    from fedmpdd.privacy.images import folder_named

    if named is None:
        if size is not None:
            raise ConfigError(f"--size {size} came without --images; it is for a folder of pictures")
        return []
    if Path(named).is_dir():
        return [f"dataset={folder_named(Path(named), size)}"]
    if not is_import_path(named):
        raise DataError(f"--images {named}: there is no such folder; expected one with pictures, or mydata.py:load")
    if size is not None:
        raise ConfigError(f"--size {size} is for a folder of pictures; {named} says itself how large its images are")
    return [f"dataset={named}"]
