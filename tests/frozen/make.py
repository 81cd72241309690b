"""Write the record of what must not change. It is made once; a row is only ever added.

python -m tests.frozen.make            # adds what is new, and refuses to change a row
python -m tests.frozen.make --anew     # run folders too: only where a format has a new version on purpose
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.frozen.documents import exported_names, measured
from tests.frozen.portable import run_portably

RECORD = Path(__file__).parent / "record.json"
MODULES = ("fedmpdd", "fedmpdd.flower")


def current(*, anew: bool = False) -> dict[str, Any]:
    """Return everything that the record holds, as this code has it."""
    with tempfile.TemporaryDirectory() as folder:
        documents = measured(Path(folder))
    return {
        **json.loads(run_portably("tests.frozen.trainings")),
        **json.loads(run_portably("tests.frozen.formats")),
        "folders": json.loads(run_portably("tests.frozen.resuming", *(["anew"] if anew else []))),
        "documents": documents,
        "names": {module: exported_names(module) for module in MODULES},
    }


def main() -> None:
    """Write the record."""
    if not os.environ.get("FEDMPDD_DATA"):
        sys.exit("set FEDMPDD_DATA: shipped configs are recorded on their own datasets too")
    before = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    now = current(anew="--anew" in sys.argv)
    for part, rows in before.items():
        for name, row in rows.items():
            kept = set(row) <= set(now[part][name]) if isinstance(row, list) else row == now[part].get(name)
            if not kept and "--anew" not in sys.argv:
                sys.exit(f"{part}, {name}: was {row}, is {now[part].get(name)}; the record is not changed")
    RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
