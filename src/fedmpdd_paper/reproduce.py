"""`fedmpdd reproduce`: run what a table needs and is not there yet, and put the paper's numbers beside ours.

OUT/TABLE/CODEC/lr-LR-seed-SEED/    run folders; resumed if they are not done
OUT/audits/DATASET-MODEL/           the audit of its codecs, where one was asked for
OUT/TABLE/results.json, table.md    what was read off them
OUT/TABLE/curves.png, report.html   loss and accuracy against rounds and bytes, as a picture and as a page
"""

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from fedmpdd.documents import write_json, write_text
from fedmpdd.errors import InputError, RunError
from fedmpdd.privacy.audit import METERED_SETTINGS, is_attacked, run_audit
from fedmpdd.privacy.config import Audit, AuditConfig
from fedmpdd.report import Goals, collect, write_report
from fedmpdd.simulation import parse_config
from fedmpdd_paper.estimate import done_methods
from fedmpdd_paper.jobs import run_trainings
from fedmpdd_paper.pictures import draw_curves
from fedmpdd_paper.summaries import RunSummary, over_seeds
from fedmpdd_paper.table_text import markdown
from fedmpdd_paper.tables import SEEDS, Method, Table
from fedmpdd_paper.trainings import OnRound, Training, Workspace


def choose_methods(tables: Sequence[Table], wanted: Sequence[str] | None) -> list[tuple[Table, list[Method]]]:
    """Return the tables with the methods that were asked for, by codec or by name; all of them if none was named."""
    if wanted is None:
        return [(table, list(table.methods)) for table in tables]
    methods = [method for table in tables for method in table.methods]
    for text in wanted:
        if not any(text in (method.codec, method.name) for method in methods):
            codecs = ", ".join(dict.fromkeys(method.codec for method in methods))
            raise InputError(f"no row {text!r} in {', '.join(table.name for table in tables)}; rows are {codecs}")
    chosen = [
        (table, [method for method in table.methods if method.codec in wanted or method.name in wanted])
        for table in tables
    ]
    return [(table, rows) for table, rows in chosen if rows]


def reproduce(
    table: Table,
    workspace: Workspace,
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
    done = done_methods(table, [method for method in table.methods if method not in wanted], seeds, workspace)
    methods = [method for method in table.methods if method in wanted or method in done]
    runs = run_trainings(table, methods, seeds, workspace, jobs, on_round)
    rows = [_row(method, seeds_of) for method, seeds_of in zip(methods, runs, strict=True)]
    folder = workspace.out / table.name
    to_attack = {method.codec for method in wanted} if audited else set()
    attacked = _add_audit(table, rows, workspace, on_attack, jobs, to_attack)
    results = {
        "table": table.name,
        "target": table.target,
        "harder": table.second_target,
        "budget": table.budget,
        "missed": table.missed,
        "rows": rows,
    }
    write_json(folder / "results.json", results)
    write_text(folder / "table.md", markdown(results))
    folders = [
        [Training(table, method, run.seed, run.lr).folder(workspace.out) for run in seeds_of]
        for method, seeds_of in zip(methods, runs, strict=True)
    ]
    draw_curves(folder / "curves.png", table.name, rows, folders)
    pages = [path for paths in folders for path in paths] + ([audit_folder(table, workspace.out)] if attacked else [])
    goals = Goals([table.target, table.second_target], [table.budget], table.round_cap)
    write_report(folder / "report.html", collect(pages), goals)
    return results


def audit_folder(table: Table, out: Path) -> Path:
    """Where the attacks on a table's model are; tables that differ in their split alone share them."""
    return out / "audits" / f"{table.config.dataset}-{table.config.model}"


def _add_audit(
    table: Table,
    rows: list[dict[str, Any]],
    workspace: Workspace,
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
    folder = audit_folder(table, workspace.out)

    def audit_of(codecs: Sequence[str]) -> Audit:
        asked = AuditConfig(
            attacks=(table.attack, "adaptive"),
            codecs=tuple(codecs),
            images=table.images,
            batch=1,
            optimiser=table.optimiser,
        )
        return Audit(config=parse_config(values), audit=asked)

    codecs = [row["codec"] for row in rows]
    codecs = [codec for codec in codecs if codec in to_attack or is_attacked(audit_of([codec]), folder)]
    if not codecs:
        return False
    try:
        attacks = run_audit(audit_of(codecs), folder, workspace.data_dir, on_attack, jobs)
    except RunError:
        if to_attack:
            raise
        return False  # an audit with other settings, which nobody asked for now
    for row in rows:
        if row["codec"] not in codecs:
            continue
        of_codec = {each["attack"]: each for each in attacks["rows"] if each["codec"] == row["codec"]}
        row["audit"] = {
            "attack": table.attack,
            "ssim": of_codec[table.attack]["ssim"],
            "adaptive_ssim": of_codec["adaptive"]["ssim"],
            "linkage": of_codec["adaptive"]["linkage"],
            "verdict": next(codec["verdict"] for codec in attacks["codecs"] if codec["codec"] == row["codec"]),
        }
    return True


def _row(method: Method, runs: list[RunSummary]) -> dict[str, Any]:
    documents = [run.as_dict() for run in runs]
    names = [name for name in documents[0] if name not in ("seed", "lr", "rounds", "diverged")]
    return {
        "method": method.name,
        "codec": method.codec,
        "lr": runs[0].lr,
        "paper": method.paper,
        "ours": {name: over_seeds([document[name] for document in documents]) for name in names},
        "diverged": sum(run.diverged for run in runs),
        "lost": sum(run.fell_back for run in runs),
        "runs": documents,
    }
