"""`fedmpdd meter`: what SuperNodes and SuperLink say to each other, counted."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedmpdd.cli.shared import Json, output, print_json
from fedmpdd.display import messages, table
from fedmpdd.errors import ConfigError


def meter(
    superlink: Annotated[str, typer.Option(help="Where the SuperLink is, host:port.")] = "127.0.0.1:8000",
    ports: Annotated[
        list[int] | None, typer.Option("--port", min=1, max=65_535, help="A port on loopback per client; repeat it.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Where to write every request, as JSON lines.")] = None,
    as_json: Json = False,
) -> None:
    """Count what SuperNodes and SuperLink say to each other: point each node at a port here, stop with Ctrl-C.

    Example: fedmpdd meter --superlink 127.0.0.1:9092 --port 9101 --port 9102
    """
    import asyncio

    try:
        from fedmpdd.flower.socket_counter import SocketCounter, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}; install fedmpdd[train,flower]") from None
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"--superlink {superlink!r} is not host:port, like 127.0.0.1:8000")
    counted = SocketCounter()
    counted_ports = ports or [9101]
    messages.print(f"counting between ports {', '.join(map(str, counted_ports))} and {superlink}; stop with Ctrl-C")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in the background there is no Ctrl-C
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(counted, counted_ports, (host, int(port))))
    if log is not None:
        counted.write(log)
    summary = counted.summary()
    if as_json:
        print_json({"clients": summary, "replies": counted.replies(), "messages": counted.messages()})
        return
    columns = ("replies", "up", "up_replies", "up_per_reply", "up_replies_headers", "up_polls", "down")
    cells = [
        [client, *("–" if row[name] is None else f"{row[name]:,.0f}" for name in columns)]
        for client, row in summary.items()
    ]
    titles = ["port", *(name.replace("_", " ") for name in columns)]
    output(False).print(table("bytes on the socket", dict.fromkeys(titles, "right"), cells))
