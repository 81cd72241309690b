"""`python -m benchmarks`: words on the command line to calls."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.mqtt.commands import app as mqtt_app
from fedmpdd.cli.shared import Json, output, print_json, training
from fedmpdd.display import messages, readable_bytes, table
from fedmpdd.errors import FedmpddError, InputError

app = typer.Typer(help="Side-by-side timings, each rival in the same process.", no_args_is_help=True)
app.add_typer(mqtt_app, name="mqtt")
Device = Annotated[str, typer.Option(help="cpu, or cuda: the kernels and the engine of a GPU.")]


def _bench_device(device: str) -> str:
    if device == "cuda":
        from fedmpdd.directions import why_no_gpu

        if problem := why_no_gpu():
            raise InputError(f"--device cuda: {problem}")
    elif device != "cpu":
        raise InputError(f"--device {device!r} is unknown: expected cpu or cuda")
    return device


@app.command("codec")
def bench_codec(
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads, ours and the rivals'.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.01, max=60, help="Time per line; medians are taken.")] = 0.5,
    memory: Annotated[bool, typer.Option(help="Measure peak memory at d = 10 million too (on the CPU).")] = True,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Time encode and decode against PyTorch and NumPy, with ratios."""
    from benchmarks import codec as bench

    on_gpu = _bench_device(device) == "cuda"
    if not bench.has_torch():
        messages.print("torch is not installed: its rivals are left out (pip install torch)")
    columns = {"what": "left", "impl": "left", "ms": "right", "goal": "right", "times ours": "right"}
    title = f"codec, {threads} thread{'s' if threads > 1 else ''}, medians"
    measured = bench.run(threads=threads, seconds=seconds) if not on_gpu else None
    if measured is None:
        from benchmarks import cuda as gpu_bench

        title, columns["on the clock"] = "codec, device time, medians", "right"
        measured = gpu_bench.run(seconds=seconds)
    result = table(title, columns)
    rows, ours = [], 0.0
    for row in measured:
        ours = row.median_ms if row.impl == "fedmpdd" else ours
        rows.append(row)
        clients = f"×{row.clients}" if row.clients > 1 else ""
        what = f"{row.op} {row.family}/{row.bits} {row.d:,}×{row.m}{clients}"
        messages.print(f"{what}, {row.impl}: {row.median_ms:.4f} ms")
        goal = "" if row.goal_ms is None else f"≤ {row.goal_ms:.3g}"
        ratio = "" if row.impl == "fedmpdd" else f"{row.median_ms / ours:,.0f}×"
        clock = [] if row.wall_ms is None else [f"{row.wall_ms:.4f}"]
        result.add_row(what, row.impl, f"{row.median_ms:.4f}", goal, ratio, *clock)
    peaks = [
        {"family": family, "op": op, "d": 10_000_000, "peak_bytes": peak}
        for family, op, peak in (bench.peak_memory() if memory and not on_gpu else ())
    ]
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows], "peak_memory": peaks})
        return
    console = output(False)
    console.print(result)
    for peak in peaks:
        what = f"{peak['family']} {peak['op']} at d = 10 million"
        console.print(f"{what}: {peak['peak_bytes']:,} bytes at the peak beyond input and output")


@app.command("rounds")
def bench_rounds(
    batch: Annotated[int, typer.Option(min=1, max=40, help="Examples per client and round.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, max=120, help="Time per codec; medians are taken.")] = 3.0,
    device: Device = "cpu",
    tf32: Annotated[bool, typer.Option(help="On a GPU: let matrix units round inputs to ten bits.")] = False,
    as_json: Json = False,
) -> None:
    """Time whole rounds of the local engine: LeNet, 50 of 100 clients; on a GPU the CIFAR-10 CNN, 100 clients."""
    training()
    from benchmarks import rounds as bench

    if _bench_device(device) == "cuda":
        rows = list(bench.run_on_gpu(seconds, tf32=tf32))
    else:
        rows = list(bench.run(batch, seconds))
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows]})
        return
    columns = {"engine": "left", "codec": "left", "clients": "right", "batch": "right", "rounds/s": "right"}
    result = table("whole rounds, medians", {**columns, "of PyTorch's": "right", "in the codec": "right"})
    for row in rows:
        share = "" if row.codec_share is None else f"{row.codec_share:.1%}"
        of_plain = "" if row.of_plain is None else f"{row.of_plain:.2f}"
        numbers = (str(row.clients_per_round), str(row.batch), f"{row.rounds_per_s:.1f}", of_plain, share)
        result.add_row(row.engine, row.codec, *numbers)
    output(False).print(result)


@app.command("forward")
def bench_forward(
    networks: Annotated[str, typer.Option(help="Comma-separated: lenet,mlp-8,transformer-2,…; default: all.")] = "",
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Examples of the client.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.01, max=120, help="Time per line; medians are taken.")] = 1.0,
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    as_json: Json = False,
) -> None:
    """Time a client's update by forward-mode differentiation against backpropagation, and measure peak memory."""
    training()
    from benchmarks import forward as bench

    chosen = [name.strip() for name in networks.split(",") if name.strip()] or list(bench.NETWORKS)
    rows = []
    columns = {"network": "left", "d": "right", "m": "right", "client": "left", "ms": "right", "times": "right"}
    title = f"one update, batch {batch}, one thread, medians; forward ×n: n directions at once"
    result = table(title, {**columns, "peak": "right", "share": "right"})
    for row in bench.run(chosen, batch=batch, seconds=seconds, memory=memory):
        rows.append(row)
        how = f"{row.client} ×{row.at_once}" if row.at_once else row.client
        messages.print(f"{row.network}, m = {row.m}, {how}: {row.median_ms:.2f} ms")
        peak = "" if row.peak_bytes is None else readable_bytes(row.peak_bytes)
        share = "" if row.memory_ratio is None else f"{row.memory_ratio:.2f}×"
        numbers = (f"{row.median_ms:,.2f}", f"{row.time_ratio:.1f}×", peak, share)
        result.add_row(row.network, f"{row.d:,}", f"{row.m:,}", how, *numbers)
    errors = list(bench.errors())
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows], "errors": [error.as_dict() for error in errors]})
        return
    console = output(False)
    console.print(result)
    for error in errors:
        console.print(f"{error.network}, scalars by {error.method}: off by {error.error:.1e} of their length")


@app.command("tasks")
def bench_tasks(
    tasks: Annotated[str, typer.Option(help="Comma-separated: regression,digits,text.")] = "regression,digits,text",
    repetitions: Annotated[int, typer.Option(min=1, max=100, help="Trainings of each; medians are taken.")] = 3,
    rounds: Annotated[int | None, typer.Option(min=5, max=10_000, help="Of a training; default: the task's.")] = None,
    as_json: Json = False,
) -> None:
    """Time one regression, digits and text task as written for this package, Flower and pfl-research.

    Example: python -m benchmarks tasks --tasks digits --repetitions 5
    """
    from statistics import median

    training()
    from benchmarks.tasks import measure as bench

    chosen = [name.strip() for name in tasks.split(",") if name.strip()]
    columns = {"task": "left", "program": "left", "lines": "right", "rounds/s": "right", "of ours": "right"}
    columns |= {
        "core ms": "right",
        "seconds": "right",
        "loss": "right",
        "score": "right",
        "update": "right",
        "check": "right",
    }
    result, rows = table("one training each in turns, medians", columns), []

    def say(line: str) -> None:
        messages.print(line, soft_wrap=True)

    for row in bench.run(chosen, repetitions=repetitions, rounds=rounds, say=say):
        rows.append(row)
        name, lines = row.implementation, str(row.lines)
        if row.reason is not None or row.loss is None or row.score is None:
            say(f"{row.task}, {name}: left out, {row.reason}")
            result.add_row(row.task, name, lines)
            continue
        cores = f"{median(row.core_ms):.0f}" if row.core_ms else ""
        numbers = (f"{median(row.rounds_per_s):.1f}", f"{median(row.ratios):.2f}", cores, f"{median(row.seconds):.1f}")
        update = "" if row.update_bytes is None else f"{row.update_bytes:,.0f} B"
        check = "" if row.difference is None else f"{row.difference:.0e}"
        result.add_row(row.task, name, lines, *numbers, f"{row.loss:.4f}", f"{row.score:.3f}", update, check)
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows], "versions": bench.versions()})
        return
    output(False).print(result)


@app.command("versions")
def bench_versions(
    python: Annotated[str, typer.Argument(help="The Python of the other checkout, like ../other/.venv/bin/python.")],
    source: Annotated[Path | None, typer.Option(help="Where that Python imports the package from.")] = None,
    turns: Annotated[int, typer.Option(min=1, max=1000, help="Turns of both versions; medians are taken.")] = 7,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Time all codecs against those of another checkout, in turns."""
    from statistics import median

    from benchmarks import versions as bench

    columns = {"what": "left", "ours, ms": "right", "other, ms": "right", "ratio": "right"}
    result, rows = table("codecs of two versions, medians of turns", columns), []
    for row in bench.run(python, source, device=_bench_device(device), turns=turns):
        rows.append(row)
        what = f"{row.op} {row.codec}, d = {row.d:,}, {row.clients} client(s)"
        messages.print(f"{what}: {row.ratio:.2f}", soft_wrap=True)
        result.add_row(what, f"{row.ours_ms:.4f}", f"{row.other_ms:.4f}", f"{row.ratio:.2f}")
    typical = median(row.ratio for row in rows)
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows], "median_ratio": typical})
        return
    output(False).print(result)
    output(False).print(f"median ratio: {typical:.3f}")


def main() -> None:
    """Run the command line, and say in one line what is wrong with its input."""
    try:
        app()
    except FedmpddError as error:
        messages.print(f"error: {error}", soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
