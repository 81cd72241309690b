"""Copy what `fedmpdd reproduce` measured into docs/results: `python tools/keep_results.py OUT`.

Tables as JSON and Markdown, curves and recovered images as pictures, and docs/results/goals.md, one line per table.
"""

import json
import shutil
import sys
from pathlib import Path

from fedmpdd.experiments.catalogue import all_names
from fedmpdd.experiments.figures import figure_names
from fedmpdd.experiments.table_text import goal_numbers, three_digits
from fedmpdd.experiments.tables import load_table, table_names

DOCS = Path(__file__).parent.parent / "docs" / "results"
KEPT = {"results.json": "tables/{}.json", "table.md": "tables/{}.md", "curves.png": "curves/{}.png"}


def main(out: Path) -> None:
    """Copy everything that is there."""
    for name in all_names():
        for source, target in KEPT.items():
            path = out / name / source
            if path.is_file():
                kept = DOCS / target.format(name)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)
    for name in figure_names():
        for picture in sorted((out / name).glob("*.png")):
            (DOCS / "recovered").mkdir(exist_ok=True)
            shutil.copyfile(picture, DOCS / "recovered" / f"{name}.png")
    (DOCS / "goals.md").write_text(_goals(), encoding="utf-8")


def _goals() -> str:
    lines = [
        "# Bytes to the target, table by table",
        "",
        "How many times fewer bytes from clients to server: the best FedMPDD as the paper has it (rademacher, float32) "
        "against FedSGD (goal: 20 times), and the best codec of ours against that FedMPDD (goal: 100 times), at the "
        "paper's target and at a harder one; kept: the best of those of which no seed was lost, that is, diverged or "
        "was below the paper's target again when it ended. Bytes as the paper counts, scale and scalars; in frames: "
        "what a socket sees, with eight bytes of session and checksum an update, as much as the smallest updates have "
        "themselves. A dash: not every seed of either got there.",
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
            line += f"| {results[key]:.0%} | " + " | ".join(_times(value) for value in numbers) + " "
        lines.append(line + "|")
    return "\n".join(lines) + "\n"


def _times(value: float | None) -> str:
    return "–" if value is None else three_digits(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
