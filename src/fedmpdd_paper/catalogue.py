"""Everything that can be reproduced, by name: of the paper, and what was measured beyond it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedmpdd.errors import InputError
from fedmpdd_paper import latency
from fedmpdd_paper.figures import figure_names, load_figure
from fedmpdd_paper.finetuning import finetuning_names, load_finetuning
from fedmpdd_paper.studies import load_study, study_names
from fedmpdd_paper.tables import Table, load_table, table_names


@dataclass(frozen=True)
class Selection:
    """What was asked for, by what has to be done for it."""

    tables: list[Table]
    latency: bool
    figures: list[str]
    studies: list[str]
    finetunings: list[str]


def all_names() -> list[str]:
    """Return every name there is."""
    return [*table_names(), latency.NAME, *figure_names(), *study_names(), *finetuning_names()]


def choose(names: Sequence[str]) -> Selection:
    """Return what these names stand for."""
    wanted = list(dict.fromkeys(each for name in names for each in (all_names() if name == "all" else [name])))
    if unknown := [name for name in wanted if name not in all_names()]:
        raise InputError(f"{unknown[0]!r} is unknown: expected all, or some of {', '.join(all_names())}")
    return Selection(
        [load_table(name) for name in wanted if name in table_names()],
        latency.NAME in wanted,
        [name for name in wanted if name in figure_names()],
        [name for name in wanted if name in study_names()],
        [name for name in wanted if name in finetuning_names()],
    )


def described() -> list[str]:
    """Return a line on each."""
    lines = []
    for name in table_names():
        table = load_table(name)
        lines.append(
            f"{name}: {table.config.model} on {table.config.dataset}, {len(table.methods)} rows, and its curves"
        )
    lines.append(f"{latency.NAME}: milliseconds to encode one gradient")
    for name in figure_names():
        audit, stages = load_figure(name)
        when = f" after {len(stages)} stages of training" if stages else ""
        lines.append(f"{name}: {', '.join(audit.audit.attacks)} on {audit.config.model}, {audit.config.dataset}{when}")
    for name in study_names():
        study = load_study(name)
        lines.append(f"{name}: {study.title}, {len(study.variants)} rows")
    for name in finetuning_names():
        finetuning = load_finetuning(name)
        lines.append(f"{name}: {finetuning.title}, {len(finetuning.rows)} rows")
    return lines
