"""`fedmpdd run`: one training, into a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from fedmpdd.cli.shared import (
    DataDir,
    Json,
    Overrides,
    TrustImports,
    blame_user_code,
    print_json,
    resume_hint,
    training,
    trust_and_settings,
)
from fedmpdd.display import messages, readable_bytes, round_display
from fedmpdd.errors import ConfigError, RunError


def run(
    config: Annotated[str | None, typer.Argument(help="A TOML file, or a shipped name such as lenet-fmnist.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make; default: runs/CONFIG-NUMBER.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
    trust_imports: TrustImports = False,
    data_dir: DataDir = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
    as_json: Json = False,
) -> None:
    """Train once, into a run folder that can be killed and resumed at any moment.

    Model, dataset, loss, metrics and codec may be of your own, by import path: a module, or a file of this folder.

    Example: fedmpdd run demo "model=mynet.py:Net(width=32)" codec.name=mycodec.py:Mine codec.m=3

    Example: fedmpdd run --resume runs/demo-001 rounds=300 --trust-imports
    """
    runs = training()
    from fedmpdd.runs.driver import TensorBoard, progress
    from fedmpdd.runs.settings import check_free

    if tensorboard:
        TensorBoard.check()
    if resume is not None:
        given = [] if config is None else [config, *(overrides or [])]
        if out is not None or "=" not in (config or "="):
            raise RunError(f"--resume {resume} goes on with the config of that run; give no CONFIG and no --out")
        trusted, settings = trust_and_settings(given, trust_imports)
        check_free(resume, settings)
        current = runs.Run.resume(resume, data_dir, trust_imports=trusted, **settings)
    elif trust_imports:
        raise ConfigError("--trust-imports is for --resume; the code that a config of yours names is yours to trust")
    elif config is None:
        raise ConfigError("name a config, like `fedmpdd run lenet-fmnist`, or a run to --resume")
    else:
        from fedmpdd.simulation import load_config

        current = runs.Run.create(out or runs.free_folder(config), load_config(config, overrides), data_dir)
    messages.print(f"run folder: {current.folder}")
    events = [TensorBoard(current.folder / "tensorboard")] if tensorboard else []
    how_to_go_on = f"stopped; go on with: fedmpdd run --resume {current.folder}"
    own_code = blame_user_code(current.config.model_dump(mode="json"))
    with round_display() as start, resume_hint(how_to_go_on), own_code:
        show = start(
            current.folder.name, current.config.rounds, current.federation.next_round, score=current.config.score
        )
        summary = current.train(callbacks=[progress(show), *events])
    if as_json:
        print_json(summary)
        return
    score, value = current.config.score.removeprefix("-"), summary["accuracy"]
    reached = "not evaluated" if value is None else f"{value:.2%}" if score == "accuracy" else f"{value:.4g}"
    print(f"{summary['rounds']} rounds, {score} {reached}, uplink {readable_bytes(summary['uplink_bytes'])}")
    print(f"model sha256 {summary['model_sha256']}")
