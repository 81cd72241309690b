"""The paper's figures of attacks: shipped audits, some of them of a model while it is trained.

OUT/FIGURE/                        the audit
OUT/FIGURE/training/               where a figure has stages: the training,
OUT/FIGURE/round-K/                the audit after K rounds of it,
OUT/FIGURE/results.json            and the numbers of all of them
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedmpdd as fm
from fedmpdd.documents import write_json, write_text
from fedmpdd.errors import RunError
from fedmpdd.privacy.audit import is_attacked, run_audit
from fedmpdd.privacy.config import Audit, AuditConfig
from fedmpdd.runs.history import read_history
from fedmpdd.simulation import parse_config
from fedmpdd_paper.tables import read_shipped, shipped_names
from fedmpdd_paper.trainings import OnRound, Workspace, show_rounds, train_in

RESULTS, TABLE = "results.json", "table.md"
OnAttack = Callable[[str, float], None]


def figure_names() -> list[str]:
    """Return the names of all figures of attacks."""
    return shipped_names("figure")


def load_figure(name: str) -> tuple[Audit, tuple[int, ...]]:
    """Return a figure's audit, and the rounds after which it is made; none if it is of the initial model alone."""
    values = read_shipped("figure", name)
    asked, stages = values.pop("audit"), tuple(values.pop("stages", ()))
    if stages:
        values["rounds"] = max(stages)
    return Audit(config=parse_config(values), audit=AuditConfig.model_validate(asked)), stages


def reproduce_figure(
    name: str,
    workspace: Workspace,
    *,
    jobs: int = 1,
    on_round: OnRound | None = None,
    on_attack: OnAttack | None = None,
) -> dict[str, Any]:
    """Run what is missing of a figure, and return its numbers."""
    audit, stages = load_figure(name)
    folder = workspace.out / name
    if not stages:
        attacks = run_audit(audit, folder, workspace.data_dir, on_attack, jobs)
        results = {"figure": name, "rows": [_short(row) for row in attacks["rows"]]}
        write_text(folder / TABLE, figure_text(results))
        return results
    training = folder / "training"
    rows = []
    for number, stage in enumerate(sorted(stages)):

        def share(part: str, done: float, number: int = number) -> None:
            if on_attack is not None:
                on_attack(part, (number + done) / len(stages))

        after = folder / f"round-{stage}"
        asked = audit.audit.model_copy(update={"run": str(training) if stage > 0 else None})
        staged = audit.model_copy(update={"audit": asked})
        if not is_attacked(staged, after) and stage > 0:
            _train_until(stage, audit, training, name, workspace, on_round)
        attacks = run_audit(staged, after, workspace.data_dir, share, jobs)
        rows += [{"round": stage, **_short(row)} for row in attacks["rows"]]
    results = {"figure": name, "rows": rows}
    write_json(folder / RESULTS, results)
    write_text(folder / TABLE, figure_text(results))
    return results


def figure_is_done(name: str, workspace: Workspace) -> bool:
    """Return whether all attacks of a figure were made."""
    audit, stages = load_figure(name)
    folder = workspace.out / name
    return all(is_attacked(audit, each) for each in ([folder / f"round-{stage}" for stage in stages] or [folder]))


def _train_until(
    stage: int, audit: Audit, folder: Path, name: str, workspace: Workspace, on_round: OnRound | None
) -> None:
    """Train up to a round. It is attacked before the training goes on, so that its checkpoint is that of the stage."""
    done = read_history(folder)[0].last.rounds
    if done > stage:
        raise RunError(
            f"{folder} has gone on to round {done}, and attacks on round {stage} are missing; delete {folder.parent} "
            "to make the figure again"
        )
    if done < stage:
        stop = fm.callbacks.StopWhen(lambda history: "the stage is reached" if history.last.rounds >= stage else None)
        train_in(
            folder, audit.config, workspace, [show_rounds(f"{name}, training", audit.config.rounds, on_round), stop]
        )


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("model", "codec", "attack", "ssim", "control_ssim", "class_mean_ssim", "verdict", "ssim_each")
    return {name: row[name] for name in names}


def figure_text(results: dict[str, Any]) -> str:
    """The figure's numbers as a table for people."""
    staged = any("round" in row for row in results["rows"])
    first = "| after round | codec" if staged else "| codec"
    lines = [
        f"# {results['figure']}",
        "",
        "SSIM, median over images; in the last column, of guessing the class mean.",
        "",
    ]
    lines += [f"{first} | attack | SSIM | class mean |", "| --- " * (5 if staged else 4) + "|"]
    for row in results["rows"]:
        start = f"| {row['round']} " if staged else ""
        lines.append(f"{start}| {row['codec']} | {row['attack']} | {row['ssim']:.2f} | {row['class_mean_ssim']:.2f} |")
    return "\n".join(lines) + "\n"
