"""The page of runs and audits, from what was collected or just trained."""

import json
from pathlib import Path
from typing import Any

from fedmpdd.pages import builder
from fedmpdd.pages.audits import context_of
from fedmpdd.pages.words import named
from fedmpdd.report.collect import Collection
from fedmpdd.report.configs import differences
from fedmpdd.report.numbers import Goals, Task, rows_of, tasks_of
from fedmpdd.report.plots import curves_of, widest_window
from fedmpdd.runs.history import RunRecord

ASKED_NOTHING = Goals()


def write_report(path: Path, collection: Collection, goals: Goals = ASKED_NOTHING) -> None:
    """Write the page in one step; a file that is there is replaced."""
    builder.write_page(path, render(collection, goals))


def render(collection: Collection, goals: Goals = ASKED_NOTHING) -> str:
    """Return the page; the same folders give the same page."""
    tasks = tasks_of(collection.runs)
    targets, budgets = list(goals.targets), list(goals.budgets)
    return builder.render(
        "fedmpdd.report:page.html.jinja",
        title=_title(tasks, collection),
        kicker="fedmpdd report",
        data={
            "tasks": [curves_of(task) for task in tasks],
            "scores": [task.score for task in tasks],
            "targets": targets,
            "budgets": budgets,
        },
        collection=collection,
        tasks=[{"task": task, "rows": rows_of(task, goals), "window": widest_window(task.groups)} for task in tasks],
        targets=targets,
        budgets=budgets,
        round_cap=goals.round_cap,
        audits=[context_of(audit) for audit in collection.audits],
        configs=_configs(tasks),
        machines=_machines(collection.runs),
    )


def _title(tasks: list[Task], collection: Collection) -> str:
    names = [f"{named(task.model)} on {named(task.dataset)}" for task in tasks]
    if not names:
        return "What an attacker gets"
    return ", ".join(names) + (", and what an attacker gets" if collection.audits else "")


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
