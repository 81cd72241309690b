"""`fedmpdd plan`: family, m and bits for a number of bytes or an error."""

from typing import Annotated

import typer

from fedmpdd.cli.shared import Json, output, print_json
from fedmpdd.display import readable_bytes, table


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
    columns = {"directions": "left"} | dict.fromkeys(("m", "bits", "frame", "round", "error", "reveals"), "right")
    cells = [
        [
            f"{row.family}, partitioned" if row.partitioned else row.family,
            f"{row.m:,}",
            str(row.bits),
            f"{row.frame_bytes:,} B",
            readable_bytes(row.round_bytes),
            f"{row.error:.4g}",
            f"{row.revealed_bits:,} bits",
        ]
        for row in rows
    ]
    shown = table(f"d = {size:,}, {clients} clients a round", columns, cells)
    console = output(False)
    console.print(shown if rows else "nothing fits: raise the budget or the error")
    console.print("error = E‖decoded mean − mean gradient‖² / mean ‖gradient‖²; reveals is a count, not a guarantee")
