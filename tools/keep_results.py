"""Copy what `fedmpdd reproduce` measured into docs/results: `python tools/keep_results.py OUT`.

Tables as JSON and Markdown, curves and recovered images as pictures, and docs/results/goals.md, one line per table.
A table may be measured in parts, on several machines: rows that OUT does not have stay as they were kept before, and
the curves of those that it has go into a picture of their own, TABLE-more.png.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from fedmpdd import BareSession
from fedmpdd.documents import write_json, write_text
from fedmpdd.pages.audits import judged
from fedmpdd.simulation import codec_config
from fedmpdd.uplink.plan import MODELS
from fedmpdd_paper.catalogue import all_names
from fedmpdd_paper.figures import figure_names
from fedmpdd_paper.table_text import FLOAT32, FULL, GOAL_FLOAT32, GOAL_OURS, OURS, goal_numbers, markdown, three_digits
from fedmpdd_paper.tables import Table, load_table, table_names

DOCS = Path(__file__).parent.parent / "docs" / "results"
GOALS = (GOAL_FLOAT32, *3 * (GOAL_OURS,), GOAL_FLOAT32 * GOAL_OURS)  # of the columns, in their order


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


def in_bare_frames(results: dict[str, Any], table: Table) -> dict[str, Any]:
    """Return the rows that goals compare with the bytes of bare frames, summed round by round, in the place of others.

    In these trainings every client that was asked has answered. "sizes" are the frames from the first round to the last
    that any seed took.
    """
    rows = []
    for row in results["rows"]:
        if not re.fullmatch(f"{FULL}|{FLOAT32}|{OURS}", row["codec"]):
            continue
        codec = codec_config(table.config, row["codec"]).codec.build()
        session = BareSession(codec, MODELS[table.config.model], seed=0)
        lengths = [session.frame_bytes(k) for k in range(table.config.rounds)]
        ours = dict(row["ours"])
        for key in ("target", "harder"):
            rounds = [count for run in row["runs"] if (count := run[f"rounds_to_{key}"]) is not None]
            spent = [table.config.per_round * sum(lengths[:count]) for count in rounds]
            bare = {"mean": sum(spent) / len(spent), "sizes": sorted({*lengths[: max(rounds)]})} if spent else {}
            ours[f"bytes_to_{key}"] = {**ours[f"bytes_to_{key}"], **bare}
        rows.append({**row, "ours": ours})
    return {**results, "rows": rows}


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copyfile(source, target)


def _goals() -> str:
    lines = [
        "# Bytes to the target, table by table",
        "",
        "How many times fewer bytes clients send to the server, at the paper's target and at a harder one.",
        "FedMPDD is the best one as the paper has it: rademacher directions, float32.",
        "",
        "| column | what is compared | goal |",
        "| --- | --- | --- |",
        "| FedMPDD / FedSGD | that FedMPDD with FedSGD, in bytes as the paper counts: scale and scalars | 20 |",
        "| ours / FedMPDD | our best codec with that FedMPDD, counted so | 100 |",
        "| kept | the same, of codecs of which no seed diverged or was below the target again when it ended | 100 |",
        "| in frames | our best codec in whole compact frames: eight bytes of session and checksum an update | 100 |",
        "| bare | our best codec in [bare frames](../wire-format.md#bare-frame), and the bytes of one | 100 |",
        "| ours / FedSGD | our best codec with FedSGD, in bytes as the paper counts | 2,000 |",
        "",
        "A dash: not every seed of either got there. Bold: fewer than the goal. A table says why where it",
        "misses one in bytes as the paper counts.",
        "",
        "**Bare frames are what the paper counts, to the byte.** The column is summed from their lengths,",
        "round by round, and comes out equal in every row that is compared. Scale, packed bits and padding",
        "are counted in both. Seeds are in neither: they follow from the session. Compact frames have eight",
        "bytes more, as many as the smallest updates have themselves. What bare frames leave to the",
        "transport stands [in the specification](../wire-format.md#bare-frame).",
        "",
        "| table | seeds | rows | target | FedMPDD / FedSGD | ours / FedMPDD | kept | in frames | bare | ours / FedSGD "
        "| harder | FedMPDD / FedSGD | ours / FedMPDD | kept | in frames | bare | ours / FedSGD |",
        "| " + "--- | " * 16 + "--- |",
    ]
    for name in table_names():
        path = DOCS / "tables" / f"{name}.json"
        if name == "m-sweep" or not path.is_file():
            continue
        results = json.loads(path.read_text(encoding="utf-8"))
        table, seeds = load_table(name), min(len(row["runs"]) for row in results["rows"])
        bare = in_bare_frames(results, table)
        line = f"| [{name}](tables/{name}.md) | {seeds} | {len(results['rows'])} of {len(table.methods)} "
        for key in ("target", "harder"):
            numbers = goal_numbers(results, key)
            told = [_times(value, goal) for value, goal in zip(numbers, GOALS, strict=True)]
            told.insert(4, f"{_times(goal_numbers(bare, key)[1], GOAL_OURS)}{_sizes(bare['rows'], key)}")
            line += f"| {results[key]:.0%} | " + " | ".join(told) + " "
        lines.append(line + "|")
    return "\n".join(lines) + "\n"


def _sizes(rows: list[dict[str, Any]], key: str) -> str:
    """The bytes of the frames of our best row: " (9 B)", or " (9 to 60 B)" where they grow."""
    there = [row["ours"][f"bytes_to_{key}"] for row in rows if re.fullmatch(OURS, row["codec"])]
    there = [value for value in there if value["reached"] == value["runs"]]
    sizes = min(there, key=lambda value: float(value["mean"]))["sizes"] if there else []
    return f" ({' to '.join(str(size) for size in sorted({*sizes[:1], *sizes[-1:]}))} B)" if sizes else ""


def _times(value: float | None, goal: int) -> str:
    if value is None:
        return "–"
    return three_digits(value) if value >= goal else f"**{three_digits(value)}**"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
