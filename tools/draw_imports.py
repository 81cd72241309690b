"""Draw which room imports which, and the modules of each: `python tools/draw_imports.py` writes docs/imports.svg.

Rooms stand in their order, so that every arrow goes up. A line is as wide as there are imports.
"""

import ast
import html
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedmpdd"
PICTURE = ROOT / "docs" / "imports.svg"
TABLE = ROOT / "CONTRIBUTING.md"
WIDTH, ROOM_WIDTH, LINE, PER_LINE = 1180, 760, 15, 7


def rooms() -> list[str]:
    """Return the rooms in the order of the table in the contributor's page."""
    rows = [
        line.split("|")[1].strip() for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    return [row.strip("`/") for row in rows if row.endswith("/`")]


def modules(room: str) -> list[str]:
    """Return the names of a room's modules, `__init__` left out."""
    names = (path.relative_to(SOURCE / room).with_suffix("").as_posix() for path in (SOURCE / room).rglob("*.py"))
    return sorted(name for name in names if not name.endswith("__init__"))


def imports() -> Counter[tuple[str, str]]:
    """Count the import statements from one room to another."""
    counts: Counter[tuple[str, str]] = Counter()
    known = rooms()
    for room in known:
        for path in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for name in names:
                    parts = name.split(".")
                    if parts[0] == "fedmpdd" and len(parts) > 1 and parts[1] in known and parts[1] != room:
                        counts[room, parts[1]] += 1
    return counts


def picture() -> str:
    """Return the picture as SVG."""
    top, boxes, middles = 10, [], {}
    for room in rooms():
        names = modules(room)
        lines = [", ".join(names[i : i + PER_LINE]) for i in range(0, len(names), PER_LINE)]
        height = 28 + LINE * len(lines)
        boxes.append(
            f'<rect x="10" y="{top}" width="{ROOM_WIDTH}" height="{height}" rx="6" fill="#f1f3f5" stroke="#adb5bd"/>'
        )
        boxes.append(f'<text x="22" y="{top + 19}" font-weight="bold">{room}/</text>')
        boxes += [
            f'<text x="22" y="{top + 37 + LINE * i}" font-size="11" fill="#495057">{html.escape(line)}</text>'
            for i, line in enumerate(lines)
        ]
        middles[room] = top + height / 2
        top += height + 10
    arrows = []
    for (room, other), count in sorted(imports().items()):
        start, end = middles[room], middles[other]
        reach = ROOM_WIDTH + 30 + 0.42 * abs(start - end)
        arrows.append(
            f'<path d="M {ROOM_WIDTH + 10} {start} C {reach:.0f} {start}, {reach:.0f} {end}, {ROOM_WIDTH + 14} {end}" '
            f'fill="none" stroke="#1f6feb" stroke-opacity="0.45" stroke-width="{1 + min(count, 20) / 5:.1f}" '
            f'marker-end="url(#tip)"><title>{room} imports {other}, {count} times</title></path>'
        )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" '
        'font-family="sans-serif" font-size="14"><rect width="100%" height="100%" fill="white"/>'
        '<defs><marker id="tip" markerWidth="6" markerHeight="6" refX="5" refY="3" orient="auto" '
        'markerUnits="userSpaceOnUse"><path d="M 0 0 L 6 3 L 0 6 z" fill="#1f6feb"/></marker></defs>'
    )
    return "\n".join([head, *arrows, *boxes, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}\n")
