"""The page: one file that needs no network, from what was collected."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import fedmpdd
from fedmpdd.errors import RunError
from fedmpdd.report import words
from fedmpdd.report.collect import AuditRecord, Collection, RunRecord
from fedmpdd.report.configs import differences, flatten
from fedmpdd.report.gallery import gallery_of
from fedmpdd.report.numbers import Task, check_wishes, rows_of, tasks_of
from fedmpdd.report.plots import curves_of, widest_window
from fedmpdd.runs.folders import write_text

# Verdicts from the strongest on, as an audit ranks them; a word that is not here gets the last colour.
_VERDICT_COLOURS = {
    "reconstructed": "bad",
    "partly": "middling",
    "nothing beyond the class mean": "good",
    "inconclusive": "open",
}


def write_report(path: Path, found: Collection, targets: Sequence[float] = (), budgets: Sequence[int] = ()) -> None:
    """Write the page in one step; a file that is there is replaced."""
    text = render(found, targets, budgets)
    try:
        write_text(path, text)
    except OSError as error:
        raise RunError(f"--out {path} cannot be written: {error}; choose another place") from None


def render(found: Collection, targets: Sequence[float] = (), budgets: Sequence[int] = ()) -> str:
    """Return the page; the same folders give the same page."""
    from plotly.offline import get_plotlyjs

    check_wishes(targets, budgets)
    tasks = tasks_of(found.runs)
    # Whatever comes from folders is text: the template escapes all of it.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    for name in ("share", "size", "count", "ratio", "points", "plain_bytes", "percent", "breakable"):
        environment.filters[name] = getattr(words, name)
    curves = [curves_of(task) for task in tasks]
    return environment.from_string(_own("page.html.jinja")).render(
        title=_title(tasks, found),
        version=fedmpdd.__version__,
        style=Markup(_own("page.css")),
        script=Markup(_own("page.js")),
        plotly=Markup(get_plotlyjs() if tasks else ""),
        data=_as_script({"tasks": curves, "targets": list(targets), "budgets": list(budgets)}),
        found=found,
        tasks=[
            {"task": task, "rows": rows_of(task, targets, budgets), "window": widest_window(task.groups)}
            for task in tasks
        ],
        targets=list(targets),
        budgets=list(budgets),
        audits=[_audit(audit) for audit in found.audits],
        configs=_configs(tasks),
        machines=_machines(found.runs),
        verdict_colours=_VERDICT_COLOURS,
    )


def _own(name: str) -> str:
    return (files("fedmpdd.report") / name).read_text(encoding="utf-8")


def _title(tasks: list[Task], found: Collection) -> str:
    names = [f"{task.model} on {task.dataset}" for task in tasks]
    if not names:
        return "What an attacker gets"
    return ", ".join(names) + (", and what an attacker gets" if found.audits else "")


def _as_script(document: Any) -> Markup:
    """JSON that cannot end the script element it stands in, nor begin another."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _configs(tasks: list[Task]) -> dict[str, Any]:
    """The settings of all groups: what they share, then one line per group."""
    groups = [(task, group) for task in tasks for group in task.groups]
    split = differences([group.runs[0].config.model_dump(mode="json", exclude={"seed"}) for _, group in groups])
    lines = [
        {"name": group.name, "seeds": [run.seed for run in group.runs], "settings": values}
        for (_, group), values in zip(groups, split.rows, strict=True)
    ]
    return {"common": split.common, "differing": split.keys, "lines": lines}


def _machines(runs: list[RunRecord]) -> dict[str, Any]:
    """Versions and machines: what all starts share, then one line per kind of start."""
    kinds: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for run in runs:
        for start in run.starts:
            table = {key: value for key, value in start.items() if key != "from_round"}
            kind = kinds.setdefault(json.dumps(table, sort_keys=True), (table, []))
            kind[1].append(run.folder.name)
    split = differences([table for table, _ in kinds.values()])
    lines = [
        {"runs": list(dict.fromkeys(names)), "settings": values}
        for (_, names), values in zip(kinds.values(), split.rows, strict=True)
    ]
    unknown = [run.folder.name for run in runs if not run.starts]
    return {"common": split.common, "differing": split.keys, "lines": lines, "unknown": unknown}


def _audit(audit: AuditRecord) -> dict[str, Any]:
    """An audit by model: verdicts, reconstructions, numbers."""
    sections = []
    rows = audit.results["rows"] if audit.results is not None else []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        strongest = [
            min((row for row in own if row["codec"] == codec), key=_weakness)
            for codec in dict.fromkeys(row["codec"] for row in own)
        ]
        sections.append({"model": model, "rows": own, "strongest": strongest, "gallery": gallery_of(audit, model, own)})
    return {"record": audit, "sections": sections, "settings": flatten(audit.config)}


def _weakness(row: dict[str, Any]) -> tuple[int, float]:
    ranks = list(_VERDICT_COLOURS)
    if row["verdict"] == ranks[-1] and (row.get("truth_fits_better") or 0) > 0.5:
        return ranks.index("nothing beyond the class mean"), -2.0  # stuck: before an attack that found nothing
    rank = ranks.index(row["verdict"]) if row["verdict"] in ranks else len(ranks)
    return rank, -float(row["ssim"])
