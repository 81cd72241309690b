"""`fedmpdd plan`: which codec for a number of bytes or an error."""

from typing import Annotated, Any

import typer

from fedmpdd.cli.shared import Json, output, print_json, training
from fedmpdd.display import readable_bytes, table
from fedmpdd.imports import is_import_path


def plan(
    d: Annotated[int | None, typer.Option("--d", min=1, help="Number of parameters.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A model instead: logistic, lenet, …, or one of your own: mynet.py:Net.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients per round.")] = 50,
    budget: Annotated[int | None, typer.Option(min=1, help="Bytes per client and round, frames as a whole.")] = None,
    error: Annotated[float | None, typer.Option(min=0, help="Error of the mean gradient to stay below.")] = None,
    alignment: Annotated[float | None, typer.Option(min=0, max=1, help="‖mean gradient‖² / mean ‖gradient‖².")] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="A codec beside them, like qsgd:bits=4 or mycodec.py:Mine(m=3); may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose codec, family, m and bits for a number of bytes or an error.

    Example: fedmpdd plan --model lenet --clients 50 --budget 64 --codec qsgd:bits=4
    """
    from fedmpdd.uplink.plan import HOW_TO_READ, dimension, plan_of, plans, why_nothing_fits

    if model is not None and is_import_path(model):
        training()
        from fedmpdd.tasks.models import build

        d, model = build(model, None, 1, init="default", seed=0)[0].d, None
    size = dimension(d, model)
    beside = [plan_of(size, clients, text, alignment) for text in codec or ()]
    goals: dict[str, Any] = {"frame_budget": budget, "error": error, "alignment": alignment}
    rows = plans(size, clients, **goals) if budget is not None or error is not None or not beside else []
    if not rows and not beside:
        raise why_nothing_fits(size, clients, **goals)
    rows += beside
    if as_json:
        print_json({"d": size, "clients": clients, "rows": [row.as_dict() for row in rows]})
        return
    columns = {"codec": "left"} | dict.fromkeys(
        ("m", "bits", "frame", "bare", "round", "error", "step", "reveals"), "right"
    )
    cells = [
        [
            row.label,
            "–" if row.m is None else f"{row.m:,}",
            "–" if row.bits is None else str(row.bits),
            f"{row.frame_bytes:,} B",
            f"{row.bare_bytes:,} B",
            readable_bytes(row.round_bytes),
            "–" if row.error is None else f"{row.error:.3g}",
            "–" if row.step_share is None else f"{row.step_share:.1%}",
            f"{row.revealed_bits:,} bits",
        ]
        for row in rows
    ]
    console = output(False)
    console.print(table(f"d = {size:,}, {clients} clients a round", columns, cells))
    console.print(HOW_TO_READ)
