"""Words on the command line to calls: no logic here.

Exit status: 0 done, 1 failed, 2 the input was bad, 130 stopped with Ctrl-C or SIGTERM. With --json, one JSON document
on standard output and everything else on standard error.
"""

import signal
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import fedmpdd
from fedmpdd.cli import data
from fedmpdd.cli.shared import DataDir, Json, check_page, output, print_json, said_how_to_go_on, training
from fedmpdd.display import (
    comparison_table,
    messages,
    readable_bytes,
    round_display,
    share_display,
    table,
)
from fedmpdd.errors import ConfigError, FedmpddError, InputError, RunError

app = typer.Typer(
    help="Federated learning for scarce uplinks: a gradient as a few random projections and a seed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")

Config = Annotated[str, typer.Argument(help="A TOML file, or a shipped name such as demo or lenet-fmnist.")]
TrustImports = Annotated[
    bool,
    typer.Option("--trust-imports", help="Import and call the model that the folder names, like package.module:Net."),
]
ModelGiven = Annotated[
    list[str] | None,
    typer.Argument(metavar="[model=PATH]", help="The import path that the folder must name; then it is trusted."),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes, like codec.m=400.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(fedmpdd.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("fedmpdd-demo.html"),
    as_json: Json = False,
) -> None:
    """Train on real digits with FedSGD, FedMPDD and one-bit hadamard: under two minutes, no download."""
    training()
    from fedmpdd.cli import showcase as show

    check_page(out)
    rows = _compare(show.CONFIG, None, list(show.CODECS), show.TARGET, None, False, None, names=show.CODECS)
    output(as_json).print(comparison_table(rows, show.TARGET, None, names=show.CODECS))
    show.write_page(rows, out)
    output(as_json).print(f"page: {out.resolve().as_uri()}")
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows], "page": str(out)})


@app.command()
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
    """Train once, into a run folder that can be killed and resumed at any moment."""
    runs = training()
    if tensorboard:
        runs.check_tensorboard()
    if resume is not None:
        given = [] if config is None else [config, *(overrides or [])]
        problem = f"--resume {resume} goes on with the config of that run; give no CONFIG, changes or --out"
        if out is not None:
            raise RunError(problem)
        current = runs.Run.resume(resume, data_dir, trust_imports=_trusted(given, trust_imports, problem))
    elif trust_imports:
        raise ConfigError("--trust-imports is for --resume; the model of a config that you name is yours to trust")
    elif config is None:
        raise ConfigError("name a config, like `fedmpdd run lenet-fmnist`, or a run to --resume")
    else:
        from fedmpdd.simulation import load_config

        current = runs.Run.create(out or runs.free_folder(config), load_config(config, overrides), data_dir)
    sink = runs.tensorboard_sink(current.folder) if tensorboard else None
    messages.print(f"run folder: {current.folder}")
    full = 4 * current.federation.model.d
    with round_display() as start:
        show = start(current.folder.name, current.config.rounds, current.federation.next_round)

        def on_round(metrics: Any, state: Any) -> None:
            show(metrics.round + 1, metrics.accuracy, state.uplink_bytes, full * state.updates)
            if sink is not None:
                sink(metrics)

        with said_how_to_go_on(f"stopped; go on with: fedmpdd run --resume {current.folder}"):
            summary = current.train(on_round)
    if as_json:
        print_json(summary)
        return
    accuracy = "not evaluated" if summary["accuracy"] is None else f"{summary['accuracy']:.2%}"
    print(f"{summary['rounds']} rounds, accuracy {accuracy}, uplink {readable_bytes(summary['uplink_bytes'])}")
    print(f"model sha256 {summary['model_sha256']}")


def _trusted(given: list[str], trust_imports: bool, problem: str) -> bool | str:
    """What may be imported: anything, the model that was given by its path, or nothing."""
    paths = {text.removeprefix("model=") for text in given if text.startswith("model=")}
    if len(paths) != len(given):
        raise RunError(problem)
    return trust_imports or (paths.pop() if paths else False)


@app.command()
def replay(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a journal.")],
    given: ModelGiven = None,
    until: Annotated[int | None, typer.Option(min=0, help="The model after so many rounds; default: all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; the model is the same.")] = "cpu",
    model: Annotated[Path | None, typer.Option(help="Also write the model to this .safetensors file.")] = None,
    trust_imports: TrustImports = False,
    as_json: Json = False,
) -> None:
    """Rebuild a model from its journal, bit for bit; exit status 1 if it is not the one that was trained."""
    training()
    from fedmpdd.simulation import replay as journal

    trusted = _trusted(given or [], trust_imports, "replay takes no changes: give at most model=PATH, to trust it")
    with share_display(f"replay of {run_folder}") as show:
        found = journal.replay(run_folder, until=until, device=device, on_progress=show, trust_imports=trusted)
    if model is not None:
        journal.write_model(model, found)
    document = found.as_dict()
    if as_json:
        print_json(document)
    else:
        verdict = "as trained" if found.matches else f"other than trained, from round {found.first_difference} on"
        print(f"{found.rounds} rounds, model sha256 {document['sha256']}: {verdict}")
    if not found.matches:
        raise typer.Exit(1)


def _compare(
    config: str,
    overrides: list[str] | None,
    codecs: list[str],
    target: float | None,
    budget: int | None,
    stop: bool,
    data_dir: Path | None,
    names: dict[str, str] | None = None,
) -> list[Any]:
    training()
    from fedmpdd.runs.compare import compare as run_all
    from fedmpdd.simulation import load_config

    loaded = load_config(config, overrides)
    rows: list[Any] = []
    with round_display() as start:
        shown: dict[str, Any] = {}

        def on_round(text: str, metrics: Any, uplink: int, full: int) -> None:
            if text not in shown:
                shown[text] = start((names or {}).get(text, text), loaded.rounds)
            shown[text](metrics.round + 1, metrics.accuracy, uplink, full)

        trained = run_all(
            loaded, codecs, target=target, budget=budget, stop_at_target=stop, data_dir=data_dir, on_round=on_round
        )
        rows.extend(trained)
    return rows


@app.command()
def compare(
    config: Config,
    overrides: Overrides = None,
    codecs: Annotated[str, typer.Option(help="Comma-separated, parameters with colons: fedsgd,mpdd:m=400:bits=1")] = "",
    target: Annotated[float | None, typer.Option(min=0, max=1, help="Accuracy to reach, from 0 to 1.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Uplink bytes, of all clients together.")] = None,
    stop_at_target: Annotated[bool, typer.Option("--stop-at-target", help="End each training at its target.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train the same federation once per codec, and tabulate accuracy, rounds and bytes."""
    chosen = [text.strip() for text in codecs.split(",") if text.strip()]
    rows = _compare(config, overrides, chosen, target, budget, stop_at_target, data_dir)
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows]})
    else:
        output(as_json).print(comparison_table(rows, target, budget))


@app.command()
def plan(
    d: Annotated[int | None, typer.Option("--d", min=1, help="Number of parameters.")] = None,
    model: Annotated[str | None, typer.Option(help="A model instead: logistic, lenet, cnn-lin2022, …")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients per round.")] = 50,
    budget: Annotated[int | None, typer.Option(min=1, help="Bytes per client and round, frames as a whole.")] = None,
    error: Annotated[float | None, typer.Option(min=0, help="Error of the mean gradient to stay below.")] = None,
    alignment: Annotated[float | None, typer.Option(min=0, max=1, help="‖mean gradient‖² / mean ‖gradient‖².")] = None,
    as_json: Json = False,
) -> None:
    """Choose family, m and bits for a number of bytes or an error."""
    from fedmpdd.uplink.plan import dimension, plans

    size = dimension(d, model)
    rows = plans(size, clients, frame_budget=budget, error=error, alignment=alignment)
    if as_json:
        print_json({"d": size, "clients": clients, "rows": [row.as_dict() for row in rows]})
        return
    columns = dict.fromkeys(("m", "bits", "frame", "round", "error", "reveals"), "right")
    result = table(f"d = {size:,}, {clients} clients a round", {"directions": "left", **columns})
    for row in rows:
        name = f"{row.family}, partitioned" if row.partitioned else row.family
        numbers = (f"{row.m:,}", str(row.bits), f"{row.frame_bytes:,} B", readable_bytes(row.round_bytes))
        result.add_row(name, *numbers, f"{row.error:.4g}", f"{row.revealed_bits:,} bits")
    console = output(False)
    console.print(result if rows else "nothing fits: raise the budget or the error")
    console.print("error = E‖decoded mean − mean gradient‖² / mean ‖gradient‖²; reveals is a count, not a guarantee")


@app.command()
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
    """Attack the updates of a config, and say what an attacker really gets."""
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
    columns = {"model": "left", "codec": "left", "attack": "left", "SSIM": "right", "control": "right"}
    columns |= {"labels": "right", "linkage": "right", "verdict": "left"}
    guesses = "; ".join(f"{model}: class mean {own['class mean']:.2f}" for model, own in results["guesses"].items())
    result = table(f"median SSIM, and that of the same attack on the whole gradient ({guesses})", columns)
    for row in results["rows"]:
        linked = "–" if row["linkage"] is None else f"{row['linkage']:.0%}"
        scores = (f"{row['ssim']:.2f}", f"{row['control_ssim']:.2f}", f"{row['labels_found']:.0%}", linked)
        result.add_row(row["model"], row["codec"], row["attack"], *scores, row["verdict"])
    console = output(False)
    console.print(result)
    for codec in results["codecs"]:
        console.print(f"{codec['model']}, {codec['codec']}: {codec['verdict']}", soft_wrap=True)
    console.print(f"the page: {folder / PAGE}", soft_wrap=True)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, audit folders, or folders that hold some.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; one that is there is replaced.")] = Path(
        "report.html"
    ),
    target: Annotated[list[float] | None, typer.Option(help="Accuracy to reach, like 0.6; may be repeated.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Uplink bytes to stay within; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Make one page of runs and audits: curves, tables, reconstructions, and what was run."""
    training()
    from fedmpdd.report import collect, tables, write_report

    check_page(out)
    found = collect(folders)
    document = tables(found, target or (), budget or ())
    write_report(out, found, target or (), budget or ())
    for text in found.left_out:
        messages.print(f"left out: {text}", soft_wrap=True)
    output(as_json).print(f"page: {out.resolve().as_uri()}", soft_wrap=True)
    if as_json:
        print_json({"page": str(out), **document})


@app.command()
def meter(
    superlink: Annotated[str, typer.Option(help="Where the SuperLink is, host:port.")] = "127.0.0.1:8000",
    ports: Annotated[
        list[int] | None, typer.Option("--port", min=1, max=65_535, help="A port on loopback per client; repeat it.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Where to write every request, as JSON lines.")] = None,
    as_json: Json = False,
) -> None:
    """Count what SuperNodes and SuperLink say to each other: point each node at a port here, stop with Ctrl-C."""
    import asyncio

    try:
        from fedmpdd.flower.meter import Meter, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}; install fedmpdd[train,flower]") from None
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"--superlink {superlink!r} is not host:port, like 127.0.0.1:8000")
    counted = Meter()
    own = ports or [9101]
    messages.print(f"counting between ports {', '.join(map(str, own))} and {superlink}; stop with Ctrl-C")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in the background there is no Ctrl-C
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(counted, own, (host, int(port))))
    if log is not None:
        counted.write(log)
    summary = counted.summary()
    if as_json:
        print_json({"clients": summary, "replies": counted.replies(), "messages": counted.messages()})
        return
    columns = ("replies", "up", "up_replies", "up_per_reply", "up_replies_headers", "up_polls", "down")
    shown = table("bytes on the socket", {"port": "right"} | {name.replace("_", " "): "right" for name in columns})
    for client, row in summary.items():
        shown.add_row(client, *("–" if row[name] is None else f"{row[name]:,.0f}" for name in columns))
    Console(highlight=False, markup=False).print(shown)


@app.command("epsilon")
def epsilon_command(
    config: Config,
    overrides: Overrides = None,
    delta: Annotated[float, typer.Option(help="The δ of (ε, δ): below one over the number of clients.")] = 1e-5,
    target: Annotated[float | None, typer.Option(help="An ε to reach: also say which noise it takes.")] = None,
    colluding: Annotated[
        int | None, typer.Option(help="How many clients put together what they see; default: 1, or as secure says.")
    ] = None,
    as_json: Json = False,
) -> None:
    """State the (ε, δ) of a config against everybody who can look on, with what it rests on.

    Example: fedmpdd epsilon demo codec.keys=shared codec.clip=2.0 codec.noise_multiplier=0.5 downlink=replay
    """
    training()
    from fedmpdd.guarantees.guarantees import NEIGHBOURS, PROTECTS, guarantees, noise_for
    from fedmpdd.simulation import load_config

    loaded = load_config(config, overrides)
    stated = guarantees(loaded, delta, colluding)
    needed = noise_for(loaded, target, delta, colluding) if target is not None else {}
    if as_json:
        print_json({"rows": [row.as_dict() for row in stated], "noise_multiplier_for_target": needed})
        return
    print(f"protects {PROTECTS}\nneighbours: {NEIGHBOURS}")
    section = "codec" if loaded.secure is None else "secure"
    for row in stated:
        print(f"\n{row.model}: {row.statement}\n  against {row.against}\n  sees {row.sees}")
        if row.assumptions:
            noise = f"noise multiplier {row.noise_multiplier:.4g}, {row.releases} releases"
            print(f"  {noise}, sampling {row.sampling}; by {row.accountant}")
            print(f"  of one example: {row.example.statement}")
        for assumption in row.assumptions:
            print(f"  - {assumption}")
        if row.model in needed:
            print(f"  ε = {target:g} takes {section}.noise_multiplier={needed[row.model]:.4g}")


def add_plugins() -> None:
    """Add the commands of packages that announce some: entry points of the group `fedmpdd.commands`."""
    for point in entry_points(group="fedmpdd.commands"):
        app.command(point.name)(point.load())


def main() -> None:
    """Run the command line, and turn what this package raises on purpose into one line and an exit status."""
    try:
        add_plugins()
        app()
    except FedmpddError as error:
        messages.print(f"error: {error}", soft_wrap=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except OSError as error:  # a full disk, a folder that went away
        messages.print(f"failed: {error}", soft_wrap=True)
        sys.exit(1)
