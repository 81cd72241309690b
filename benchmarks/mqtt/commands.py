"""`python -m benchmarks mqtt`: words on the command line to calls."""

import os
from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import Json, output, print_json
from fedmpdd.display import table

app = typer.Typer(help="The engine over MQTT, with a mosquitto of its own on loopback.", no_args_is_help=True)
CodecText = Annotated[str, typer.Option("--codec", help="Of the updates, as in a config: name:parameter=value.")]


def _machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def _show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"rows": rows, "machine": _machine()})
        return
    result = table(title, dict.fromkeys(rows[0], "right"))
    for row in rows:
        result.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    output(False).print(result)


@app.command("bytes")
def bench_bytes(
    codec: CodecText = "peaks:m=14",
    clients: Annotated[int, typer.Option(min=1, max=10_000, help="Of the training.")] = 50,
    rounds: Annotated[int, typer.Option(min=8, max=10_000, help="Of which the second half counts.")] = 40,
    as_json: Json = False,
) -> None:
    """Count the bytes on a client's socket by a proxy: an update, its acknowledgement, a round, without and with TLS.

    Example: python -m benchmarks mqtt bytes --codec peaks:m=7
    """
    from benchmarks.mqtt import sockets

    rows = [row.as_dict() for row in sockets.run(codec, clients=clients, rounds=rounds)]
    _show("bytes on one client's socket, medians of rounds", rows, as_json)


@app.command("rounds")
def bench_rounds(
    codec: CodecText = "peaks:m=14",
    clients: Annotated[int, typer.Option(min=2, max=1000, help="Connections.")] = 50,
    processes: Annotated[int, typer.Option(min=1, max=16, help="That the clients are in.")] = 2,
    rounds: Annotated[int, typer.Option(min=2, max=100_000, help="That count.")] = 200,
    as_json: Json = False,
) -> None:
    """Time synchronous rounds, with gradients that are there already, and with LeNet's.

    Example: python -m benchmarks mqtt rounds --rounds 50
    """
    from benchmarks.mqtt import rounds as bench

    kinds = (False, True)
    rows = [
        bench.measure(codec, clients=clients, processes=processes, rounds=rounds, is_real=real).as_dict()
        for real in kinds
    ]
    _show("a synchronous round, milliseconds", rows, as_json)


@app.command("clients")
def bench_clients(
    clients: Annotated[int, typer.Option(min=10, max=15_000, help="Connected at once.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="About so long.")] = 12.0,
    with_loss: Annotated[bool, typer.Option("--loss", help="All at once instead, with 9,000: what gets lost.")] = False,
    as_json: Json = False,
) -> None:
    """Count updates a second through to the server's step, with the server's reader and with aiomqtt.

    Example: python -m benchmarks mqtt clients --loss
    """
    from benchmarks.mqtt import load

    if with_loss:
        rows = load.loss(min(clients, 9000))
    else:
        rows = [load.through_to_the_step(clients, seconds, reader) for reader in ("aiomqtt", "lean")]
    _show("updates through to the step", [row.as_dict() for row in rows], as_json)


@app.command("memory")
def bench_memory(
    clients: Annotated[int, typer.Option(min=200, max=15_000, help="Connected at once.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=3, max=10_000, help="After which the server is looked at.")] = 70,
    as_json: Json = False,
) -> None:
    """Measure the server's resident memory a client.

    Example: python -m benchmarks mqtt memory --clients 1000
    """
    from benchmarks.mqtt import load

    rows = load.memory(clients, rounds)
    if as_json:
        print_json({"rows": rows, "machine": _machine()})
        return
    for row in rows:
        output(False).print(", ".join(f"{name} {value}" for name, value in row.items()))


@app.command("training")
def bench_training(
    clients: Annotated[int, typer.Option(min=1, max=1000, help="All of whom are asked in every round.")] = 50,
    dataset: Annotated[str, typer.Option(help="mnist, from FEDMPDD_DATA, or the bundled mnist-5k.")] = "mnist",
    codecs: Annotated[str, typer.Option(help="Comma-separated numbers of those in benchmarks/mqtt/training.py.")] = "",
) -> None:
    """Count all bytes of all clients of LeNet's training to 80 %, both ways; results as JSON.

    Example: FEDMPDD_DATA=../shared/data python -m benchmarks mqtt training
    """
    from benchmarks.mqtt import training as bench

    names = list(bench.CODECS)
    chosen = [names[int(one)] for one in codecs.split(",")] if codecs else names
    print_json({"rows": [bench.measure(codec, clients, dataset) for codec in chosen], "machine": _machine()})
