"""Print which functions of the package one round goes through, file by file, in the order of their first call.

python tools/walk_round.py [CONFIG] [key=value …]
"""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import fedmpdd
from fedmpdd.simulation import load_config, make_federation

PACKAGE = Path(fedmpdd.__file__).parent


def main() -> None:
    """Run a first round unseen, so that nothing is imported any more, and print what the second one calls."""
    config, *overrides = sys.argv[1:] or ["demo"]
    federation = make_federation(load_config(config, overrides))
    federation.run_round()
    federation.close()  # so that its threads start again, and are watched
    calls: dict[str, dict[str, int]] = {}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and PACKAGE in path.parents and "<" not in name.rpartition(".")[2]:
            functions = calls.setdefault(str(path.relative_to(PACKAGE)), {})
            functions[name] = functions.get(name, 0) + 1

    threading.setprofile(watch)
    sys.setprofile(watch)
    federation.run_round()
    sys.setprofile(None)
    threading.setprofile(None)
    federation.close()
    for file, functions in calls.items():
        print(file, *(f"  {count:4} {name}" for name, count in functions.items()), sep="\n")
    functions = [count for file in calls.values() for count in file.values()]
    print(f"{len(calls)} files, {len(functions)} functions, {sum(functions)} calls")


if __name__ == "__main__":
    main()
