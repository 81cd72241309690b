"""`fedmpdd compare`: the same federation once per codec."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedmpdd.cli.shared import Config, DataDir, Json, Overrides, output, print_json, training
from fedmpdd.display import readable_bytes, round_display, table


def compare(
    config: Config,
    overrides: Overrides = None,
    codecs: Annotated[str, typer.Option(help="Comma-separated, parameters with colons: fedsgd,mpdd:m=400:bits=1")] = "",
    target: Annotated[float | None, typer.Option(min=0, max=1, help="Accuracy to reach, from 0 to 1.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Uplink bytes, of all clients together.")] = None,
    stop_at_target: Annotated[bool, typer.Option("--stop-at-target", help="End each training at its target.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the page of `fedmpdd report`.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train the same federation once per codec, and tabulate accuracy, rounds and bytes.

    Example: fedmpdd compare demo rounds=200 --codecs fedsgd,mpdd:m=400:bits=1 --target 0.8
    """
    chosen = [text.strip() for text in codecs.split(",") if text.strip()]
    goals = {"target": target, "budget": budget}
    rows = side_by_side(config, overrides, chosen, out, goals, stop_at_target=stop_at_target, data_dir=data_dir)
    if as_json:
        print_json({"rows": [row.as_dict() for row in rows]})
    else:
        output(as_json).print(comparison_table(rows, target, budget))
    if out is not None:
        output(as_json).print(f"page: {out.resolve().as_uri()}", soft_wrap=True)


def side_by_side(
    config: str,
    overrides: list[str] | None,
    codecs: list[str],
    page: Path | None,
    goals: dict[str, Any],
    **options: Any,
) -> list[Any]:
    """Train once per codec while showing how far it is; write the report of it where a page is wanted."""
    training()
    from fedmpdd.pages.builder import check_page
    from fedmpdd.report import Collection, Goals, write_report
    from fedmpdd.runs.compare import compare as trained
    from fedmpdd.simulation import load_config

    asked = Goals()
    if page is not None:
        check_page(page)
        given = {name: [value] for name, value in goals.items() if value is not None}
        asked = Goals(given.get("target", []), given.get("budget", []))  # refuses what a page cannot show
    loaded = load_config(config, overrides)
    with round_display() as start:
        shown: dict[str, Any] = {}

        def on_round(text: str, *state: Any) -> None:
            shown.setdefault(text, None)
            shown[text] = shown[text] or start(text, loaded.rounds)
            shown[text](*state)

        rows = list(trained(loaded, codecs, **goals, **options, on_round=on_round))
    if page is not None:
        write_report(page, Collection([row.run for row in rows]), asked)
    return rows


def comparison_table(comparisons: list[Any], target: float | None, budget: int | None) -> Table:
    """Return codecs side by side: what they reached, in how many rounds, with how many bytes."""
    columns = {"codec": "left", "trained": "right", "accuracy": "right"}
    title = ""
    if target is not None:
        title = f"rounds and uplink to {target:.0%} test accuracy, and uplink against the first codec"
        columns |= {"rounds": "right", "uplink": "right", "against": "right"}
    if budget is not None:
        columns |= {f"at {readable_bytes(budget)}": "right"}
    rows = [comparison.as_dict() for comparison in comparisons]
    first = rows[0]["bytes_to_target"] if rows else None
    lines: list[list[str]] = []
    for row in rows:
        cells = [row["codec"], str(row["rounds"]), _share(row["final_accuracy"])]
        if target is not None:
            sent = row["bytes_to_target"]
            cells += ["–", "–"] if sent is None else [str(row["rounds_to_target"]), readable_bytes(sent)]
            cells.append(f"1/{first / sent:,.1f}" if sent and first else "–")
        if budget is not None:
            cells.append(_share(row["accuracy_at_budget"]))
        lines.append([*cells, f"{row['seconds']:.1f}"])
        if row["error"] is not None:
            lines.append([f"  stopped: {row['error']}"])
    return table(title, {**columns, "seconds": "right"}, lines)


def _share(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.1%}"
