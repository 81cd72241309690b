"""Copy what `fedmpdd reproduce` measured into docs/results: `python tools/keep_results.py OUT`.

Tables as JSON and Markdown, curves and recovered images as pictures, and docs/results/goals.md, one line per table.
A table may be measured in parts, on several machines: rows that OUT does not have stay as they were kept before, and
the curves of those that it has go into a picture of their own, TABLE-more.png.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from fedmpdd.documents import write_json, write_text
from fedmpdd.pages.audits import judged
from fedmpdd_paper.catalogue import all_names
from fedmpdd_paper.figures import figure_names
from fedmpdd_paper.table_text import GOAL_FLOAT32, GOAL_OURS, goal_numbers, markdown, three_digits
from fedmpdd_paper.tables import Table, load_table, table_names

DOCS = Path(__file__).parent.parent / "docs" / "results"
GOALS = (GOAL_FLOAT32, GOAL_OURS, GOAL_OURS, GOAL_OURS, GOAL_FLOAT32 * GOAL_OURS)  # of the columns, in their order


def main(out: Path) -> None:
    """Copy everything that is there."""
    for folder in ("tables", "curves", "recovered"):
        (DOCS / folder).mkdir(parents=True, exist_ok=True)
    for name in all_names():
        if not (out / name / "results.json").is_file():
            continue
        picture = f"{name}.png"
        if name in table_names():
            if _keep_table(load_table(name), out / name):
                picture = f"{name}-more.png"
        else:
            _copy(out / name / "results.json", DOCS / "tables" / f"{name}.json")
            _copy(out / name / "table.md", DOCS / "tables" / f"{name}.md")
        _copy(out / name / "curves.png", DOCS / "curves" / picture)
    for name in figure_names():
        for picture in sorted((out / name).glob("*.png")):
            _copy(picture, DOCS / "recovered" / f"{name}.png")
    _write_tables()
    (DOCS / "goals.md").write_text(_goals(), encoding="utf-8")
    judge_again(DOCS)


def judge_again(folder: Path) -> None:
    """Give the attacks that are kept below a folder the verdicts that their numbers have today; no number changes."""
    for path in sorted(folder.rglob("*.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        rows = results.get("rows", []) if isinstance(results, dict) else []
        if rows and all({"verdict", "linkage", "ssim_each"} <= set(row) for row in rows):
            new = judged(results)
            if new != results:
                write_json(path, new)


def joined(table: Table, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the results of now, with the rows of before that they lack, in the table's order.

    Rows that were read off for other targets are of another table, and do not count. Attacks that were made before
    stay with a row: they are on the model at its start.
    """
    rows = {row["codec"]: row for row in now["rows"]}
    if all(before[key] == now[key] for key in ("target", "harder", "budget")):
        for row in before["rows"]:
            new = rows.setdefault(row["codec"], row)
            if "audit" in row:
                new.setdefault("audit", row["audit"])
    return {**now, "rows": [rows[method.codec] for method in table.methods if method.codec in rows]}


def _keep_table(table: Table, folder: Path) -> bool:
    """Keep a table's numbers, and return whether it has rows that are not in the folder."""
    now = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    kept = DOCS / "tables" / f"{table.name}.json"
    results = joined(table, json.loads(kept.read_text(encoding="utf-8")), now) if kept.is_file() else now
    write_json(kept, results)
    return len(results["rows"]) > len(now["rows"])


def _write_tables() -> None:
    """Write every table that is kept as text, as this code words it."""
    for name in table_names():
        kept = DOCS / "tables" / f"{name}.json"
        if kept.is_file():
            results = {**json.loads(kept.read_text(encoding="utf-8")), "missed": load_table(name).missed}
            write_text(kept.with_suffix(".md"), markdown(results))


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copyfile(source, target)


def _goals() -> str:
    lines = [
        "# Bytes to the target, table by table",
        "",
        "How many times fewer bytes from clients to server: the best FedMPDD as the paper has it (rademacher, float32) "
        "against FedSGD (goal: 20 times), and the best codec of ours against that FedMPDD (goal: 100 times), at the "
        "paper's target and at a harder one; kept: the best of those of which no seed was lost, that is, diverged or "
        "was below the paper's target again when it ended. Bytes as the paper counts, scale and scalars; in frames: "
        "what a socket sees, with eight bytes of session and checksum an update, as much as the smallest updates have "
        "themselves. A dash: not every seed of either got there. Bold: fewer than the goal, or "
        "than the product of both goals in the last column; a table says why where it misses one counted as the paper "
        "counts.",
        "",
        "| table | seeds | rows | target | FedMPDD / FedSGD | ours / FedMPDD | kept | in frames | ours / FedSGD "
        "| harder | FedMPDD / FedSGD | ours / FedMPDD | kept | in frames | ours / FedSGD |",
        "| " + "--- | " * 14 + "--- |",
    ]
    for name in table_names():
        path = DOCS / "tables" / f"{name}.json"
        if name == "m-sweep" or not path.is_file():
            continue
        results = json.loads(path.read_text(encoding="utf-8"))
        seeds = min(len(row["runs"]) for row in results["rows"])
        line = f"| [{name}](tables/{name}.md) | {seeds} | {len(results['rows'])} of {len(load_table(name).methods)} "
        for key in ("target", "harder"):
            numbers = goal_numbers(results, key)
            told = [_times(value, goal) for value, goal in zip(numbers, GOALS, strict=True)]
            line += f"| {results[key]:.0%} | " + " | ".join(told) + " "
        lines.append(line + "|")
    return "\n".join(lines) + "\n"


def _times(value: float | None, goal: int) -> str:
    if value is None:
        return "–"
    return three_digits(value) if value >= goal else f"**{three_digits(value)}**"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
