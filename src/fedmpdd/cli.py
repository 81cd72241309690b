"""Words on the command line to calls: no logic here.

Exit status: 0 done, 1 failed, 2 the input was bad. With --json, one JSON document on standard output and everything
else on standard error.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import fedmpdd
from fedmpdd.errors import FedmpddError, InputError

app = typer.Typer(
    help="Federated learning for scarce uplinks: a gradient as a few random projections and a seed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(help="Side-by-side timings, each rival in the same process.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; everything else goes to standard error.")]

messages = Console(stderr=True, highlight=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(fedmpdd.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))


def _console(as_json: bool) -> Console:
    return messages if as_json else Console(highlight=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("fedmpdd-demo.html"),
    as_json: Json = False,
) -> None:
    """Show the codec on real gradients: bytes, error against theory, and a page with the curves."""
    from fedmpdd import demo as show

    if not out.resolve().parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist; make it first, or choose another place")
    console = _console(as_json)
    console.print(f"gradients of {show.CLIENTS} clients on real digits …")
    gradients = show.client_gradients()
    d = gradients.shape[1]
    table = Table(title=f"one round, {show.CLIENTS} clients, d = {d:,}: a float32 gradient is {4 * d:,} bytes")
    for column in ("codec", "bytes a client", "smaller", "error", "predicted"):
        table.add_column(column, justify="left" if column == "codec" else "right")
    rows = []
    for row in show.table(gradients):
        rows.append(row)
        table.add_row(
            row.codec, f"{row.uplink_bytes:,}", f"{row.times_smaller:,.1f}×", f"{row.error:.3f}", f"{row.predicted:.3f}"
        )
    console.print(table)
    console.print("error = ‖decoded mean − mean gradient‖² / mean ‖gradient‖²; predicted = the codec's own formula")
    points = []
    for point in show.curves(gradients):
        points.append(point)
        if len(points) % 8 == 0:
            console.print(f"curve {len(points) // 8} of 4: {point.curve}")
    show.write_page(points, rows, out)
    console.print(f"page: {out.resolve().as_uri()}")
    if as_json:
        _print_json({"rows": [row.as_dict() for row in rows], "page": str(out)})


@bench_app.command("codec")
def bench_codec(
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads, ours and the rivals'.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.01, max=60, help="Time per line; medians are taken.")] = 0.5,
    memory: Annotated[bool, typer.Option(help="Measure peak memory at d = 10 million too.")] = True,
    as_json: Json = False,
) -> None:
    """Time encode and decode against PyTorch and NumPy, with ratios."""
    from fedmpdd.bench import codec as bench

    console = _console(as_json)
    if not bench.has_torch():
        console.print("torch is not installed: its rivals are left out (pip install torch)")
    table = Table(title=f"codec, {threads} thread{'s' if threads > 1 else ''}, medians", box=None)
    for column in ("what", "impl", "ms", "goal", "times ours"):
        table.add_column(column, justify="left" if column in ("what", "impl") else "right", no_wrap=True)
    rows, ours = [], 0.0
    for row in bench.run(threads=threads, seconds=seconds):
        if row.impl == "fedmpdd":
            ours = row.median_ms
        rows.append(row)
        clients = f"×{row.clients}" if row.clients > 1 else ""
        what = f"{row.op} {row.family}/{row.bits} {row.d:,}×{row.m}{clients}"
        messages.print(f"{what}, {row.impl}: {row.median_ms:.4f} ms")
        goal = "" if row.goal_ms is None else f"≤ {row.goal_ms:g}"
        ratio = "" if row.impl == "fedmpdd" else f"{row.median_ms / ours:,.0f}×"
        table.add_row(what, row.impl, f"{row.median_ms:.4f}", goal, ratio)
    peaks = (
        [{"family": f, "op": op, "d": 10_000_000, "peak_bytes": peak} for f, op, peak in bench.peak_memory()]
        if memory
        else []
    )
    if as_json:
        _print_json({"rows": [row.as_dict() for row in rows], "peak_memory": peaks})
        return
    console.print(table)
    for peak in peaks:
        what = f"{peak['family']} {peak['op']} at d = 10 million"
        console.print(f"{what}: {peak['peak_bytes']:,} bytes at the peak beyond input and output")


def main() -> None:
    """Run the command line, and turn what this package raises on purpose into one line and an exit status."""
    try:
        app()
    except FedmpddError as error:
        messages.print(f"error: {error}", markup=False)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        messages.print("stopped")
        sys.exit(130)
