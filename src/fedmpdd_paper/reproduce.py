"""`fedmpdd reproduce`: run what a table needs and is not there yet, and put the paper's numbers beside ours.

OUT/TABLE/CODEC/lr-LR-seed-SEED/    run folders; resumed if they are not done
OUT/audits/DATASET-MODEL/           the audit of its codecs, where one was asked for
OUT/TABLE/results.json, table.md    what was read off them
OUT/TABLE/curves.png, report.html   loss and accuracy against rounds and bytes, as a picture and as a page
"""

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from fedmpdd.errors import InputError, RunError
from fedmpdd.privacy.audit import METERED_SETTINGS, is_attacked, run_audit
from fedmpdd.privacy.config import Audit, AuditConfig
from fedmpdd.report.collect import collect
from fedmpdd.report.page import write_report
from fedmpdd.runs.folders import write_json, write_text
from fedmpdd.simulation.config import parse_config
from fedmpdd_paper.estimate import done_methods
from fedmpdd_paper.jobs import run_trainings
from fedmpdd_paper.pictures import draw_curves
from fedmpdd_paper.reading import Reading, summarise
from fedmpdd_paper.table_text import markdown
from fedmpdd_paper.tables import SEEDS, Method, Table
from fedmpdd_paper.trainings import OnRound, Place, Training


def choose_methods(tables: Sequence[Table], wanted: Sequence[str] | None) -> list[tuple[Table, list[Method]]]:
    """Return the tables with the methods that were asked for, by codec or by name; all of them if none was named."""
    if wanted is None:
        return [(table, list(table.methods)) for table in tables]
    methods = [method for table in tables for method in table.methods]
    for text in wanted:
        if not any(text in (method.codec, method.name) for method in methods):
            codecs = ", ".join(dict.fromkeys(method.codec for method in methods))
            raise InputError(f"no row {text!r} in {', '.join(table.name for table in tables)}; rows are {codecs}")
    chosen = [(table, [own for own in table.methods if own.codec in wanted or own.name in wanted]) for table in tables]
    return [(table, own) for table, own in chosen if own]


def reproduce(
    table: Table,
    place: Place,
    *,
    seeds: int = len(SEEDS),
    methods: Sequence[Method] | None = None,
    jobs: int = 1,
    audited: bool = False,
    on_round: OnRound | None = None,
    on_attack: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Run what is missing of a table, or of some of its methods, write its results, and return them.

    Methods that are done already are rows too, so that a table never loses any.
    audited: attack the codecs too, with the paper's attack and the adaptive one; what was attacked earlier is shown
    either way.
    """
    wanted = methods or table.methods
    done = done_methods(table, [own for own in table.methods if own not in wanted], seeds, place)
    methods = [own for own in table.methods if own in wanted or own in done]
    readings = run_trainings(table, methods, seeds, place, jobs, on_round)
    rows = [_row(method, own, table.target) for method, own in zip(methods, readings, strict=True)]
    folder = place.out / table.name
    to_attack = {own.codec for own in wanted} if audited else set()
    attacked = _add_audit(table, rows, place, on_attack, jobs, to_attack)
    results = {
        "table": table.name,
        "target": table.target,
        "harder": table.harder,
        "budget": table.budget,
        "missed": table.missed,
        "rows": rows,
    }
    write_json(folder / "results.json", results)
    write_text(folder / "table.md", markdown(results))
    folders = [
        [Training(table, method, reading.seed, reading.lr).folder(place.out) for reading in own]
        for method, own in zip(methods, readings, strict=True)
    ]
    draw_curves(folder / "curves.png", table.name, rows, folders)
    pages = [run for own in folders for run in own] + ([audit_folder(table, place.out)] if attacked else [])
    # Without the budget: a page knows no round after which it is not waited for, and would say other numbers.
    write_report(folder / "report.html", collect(pages), [table.target, table.harder])
    return results


def audit_folder(table: Table, out: Path) -> Path:
    """Where the attacks on a table's model are; tables that differ in their split alone share them."""
    return out / "audits" / f"{table.config.dataset}-{table.config.model}"


def _add_audit(
    table: Table,
    rows: list[dict[str, Any]],
    place: Place,
    on_attack: Callable[[str, float], None] | None,
    jobs: int,
    to_attack: Set[str],
) -> bool:
    """Attack some codecs of the rows, one image a batch, the model at its start; write what came out into the rows.

    Of the others what an earlier call attacked is read. Returns whether there is anything to show.
    """
    # What an attack on the initial model depends on, and what its meter counts.
    values = table.config.model_dump(
        mode="json", include={"dataset", "pixels", "model", "init", "seed", *METERED_SETTINGS}
    )
    folder = audit_folder(table, place.out)

    def audit_of(codecs: Sequence[str]) -> Audit:
        own = AuditConfig(attacks=(table.attack, "adaptive"), codecs=tuple(codecs), images=table.images, batch=1)
        return Audit(config=parse_config(values), audit=own)

    codecs = [row["codec"] for row in rows]
    codecs = [codec for codec in codecs if codec in to_attack or is_attacked(audit_of([codec]), folder)]
    if not codecs:
        return False
    try:
        found = run_audit(audit_of(codecs), folder, place.data_dir, on_attack, jobs)
    except RunError:
        if to_attack:
            raise
        return False  # an audit with other settings, which nobody asked for now
    for row in rows:
        if row["codec"] not in codecs:
            continue
        cells = {cell["attack"]: cell for cell in found["rows"] if cell["codec"] == row["codec"]}
        row["audit"] = {
            "attack": table.attack,
            "ssim": cells[table.attack]["ssim"],
            "adaptive_ssim": cells["adaptive"]["ssim"],
            "verdict": next(codec["verdict"] for codec in found["codecs"] if codec["codec"] == row["codec"]),
        }
    return True


def _row(method: Method, readings: list[Reading], target: float) -> dict[str, Any]:
    def is_lost(reading: Reading) -> bool:
        return reading.diverged or (reading.rounds_to_target is not None and (reading.final_accuracy or 0.0) < target)

    def over_seeds(name: str) -> dict[str, Any]:
        return summarise([getattr(reading, name) for reading in readings]).__dict__

    names = ("accuracy_at_budget", "bytes_to_target", "rounds_to_target", "bytes_to_harder", "rounds_to_harder")
    return {
        "method": method.name,
        "codec": method.codec,
        "lr": readings[0].lr,
        "paper": method.paper,
        "ours": {name: over_seeds(name) for name in (*names, "final_accuracy", "frames_to_target", "frames_to_harder")},
        "diverged": sum(reading.diverged for reading in readings),
        "lost": sum(is_lost(reading) for reading in readings),
        "runs": [reading.as_dict() for reading in readings],
    }
