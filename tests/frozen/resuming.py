"""Run folders as they were written when the record was made: how they are made, read, replayed and gone on with."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedmpdd.runs.folders import Run
from fedmpdd.simulation import load_config
from fedmpdd.simulation.replay import replay

HERE = Path(__file__).parent / "folders"
ROUNDS, STOP_AFTER = 6, 3
COMMON = (
    "clients=3",
    "clients_per_round=2",
    f"rounds={ROUNDS}",
    "evaluate_every=2",
    "checkpoint_every=2",
    "device=cpu",
)
FOLDERS: dict[str, tuple[str, ...]] = {
    "journaled": (*COMMON, "codec.bits=1", "codec.family=hadamard", "codec.keys=partitioned", "downlink=replay"),
    "checkpointed": (
        *COMMON,
        "codec.name=topk",
        "codec.k=50",
        "codec.error_feedback=true",
        "server.optimiser=momentum",
    ),
}


def make(folder: Path, name: str) -> None:
    """Train a run half of its rounds and stop it, as somebody would who presses Ctrl-C."""
    run = Run.create(folder, load_config("demo", list(FOLDERS[name])))
    run.train(stopped=lambda: run.federation.next_round == STOP_AFTER)


def outcome(folder: Path, name: str) -> dict[str, Any]:
    """Return what a folder leads to: its model as it is, by replay, and after the rounds that are left."""
    found: dict[str, Any] = {}
    if name == "journaled":
        replayed = replay(folder)
        found["replayed"] = {"sha256": replayed.as_dict()["sha256"], "matches": replayed.matches}
    run = Run.resume(folder)
    found["stopped"] = run.summary()["model_sha256"]
    found["finished"] = run.train()["model_sha256"]
    found["uplink_bytes"] = run.summary()["uplink_bytes"]
    found["downlink_bytes"] = run.summary()["downlink_bytes"]
    return found


def outcomes() -> dict[str, Any]:
    """Return what the folders of the record lead to, from copies of them."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name in FOLDERS:
            copy = Path(place) / name
            shutil.copytree(HERE / name, copy)
            found[name] = outcome(copy, name)
    return found


def main(path: str, make_anew: str = "") -> None:
    """Write what the folders lead to as JSON; with a second argument, make them anew before."""
    for name in FOLDERS if make_anew else ():
        shutil.rmtree(HERE / name, ignore_errors=True)
        HERE.mkdir(exist_ok=True)
        make(HERE / name, name)
        (HERE / name / ".lock").unlink(missing_ok=True)
    Path(path).write_text(json.dumps(outcomes()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
