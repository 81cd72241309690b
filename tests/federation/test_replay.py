"""A model rebuilt from its journal has the bits of the one that was trained; a crash loses nothing that was said."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.directions import using
from fedmpdd.errors import ConfigError, JournalError
from fedmpdd.federation import parse_config
from fedmpdd.federation.journal import JOURNAL, JournalReader
from fedmpdd.federation.replay import replay, write_model
from fedmpdd.federation.runs import Run, read_metrics
from tests.federation.test_engine import BASE

ONE_BIT = {"name": "mpdd", "m": 64, "bits": 1, "family": "hadamard"}
ROUNDS = 12


def config(**changes: Any) -> Any:
    values = {**BASE, "rounds": ROUNDS, "evaluate_every": 4, "checkpoint_every": 5, "journal": True}
    return parse_config({**values, **changes})


CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "partitioned": {"codec": {**ONE_BIT, "keys": "partitioned"}, "dropout": 0.5},
    "derived": {"codec": {**ONE_BIT, "keys": "derived"}, "weighting": "examples"},
    "shared mean": {"codec": {**ONE_BIT, "keys": "shared"}, "downlink": "replay", "downlink_bits": 4},
    "momentum": {"server": {"optimiser": "momentum"}},
    "adam": {"server": {"optimiser": "adam"}, "downlink": "replay"},
    "control": {
        "codec": {**ONE_BIT, "keys": "shared"},
        "downlink": "replay",
        "downlink_bits": 8,
        "server": {"control": 0.1, "optimiser": "momentum"},
    },
    "qsgd": {"codec": {"name": "qsgd", "bits": 8}},
    "fedsgd": {"codec": {"name": "fedsgd"}},
    "sa-fedlora": {"codec": {"name": "sa-fedlora"}},
    "peaks that grow": {"codec": {"name": "peaks", "m": 2, "grows_to": 7, "grows_after": 3, "keys": "derived"}},
    "decomfl": {"codec": {"name": "decomfl", "m": 4, "keys": "shared"}, "downlink": "replay"},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_the_rebuilt_model_has_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = Run.create(tmp_path / "run", config(**changes)).train()
    found = replay(tmp_path / "run")
    assert found.as_dict() == {
        "rounds": ROUNDS,
        "sha256": summary["model_sha256"],
        "matches": True,
        "first_difference": None,
        "torn_bytes": 0,
    }


def test_kernels_do_not_change_it(tmp_path: Path, isa: str) -> None:
    with using(isa="plain"):
        summary = Run.create(tmp_path / "run", config(**CASES["partitioned"])).train()
    with using(isa=isa):
        assert replay(tmp_path / "run").as_dict()["sha256"] == summary["model_sha256"]


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_a_gpu_does_not_change_it_either(tmp_path: Path, gpu: str, changes: dict[str, Any]) -> None:
    for trained, replayed in (("cpu", gpu), (gpu, "cpu")):
        summary = Run.create(tmp_path / trained, config(**changes, device=trained)).train()
        assert replay(tmp_path / trained, device=replayed).as_dict()["sha256"] == summary["model_sha256"]


def test_any_past_model_can_be_had(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config())
    hashes = []
    run.train(lambda metrics, state: hashes.append(state.summary()["model_sha256"]))
    for k in (1, 7, ROUNDS):
        found = replay(tmp_path / "run", until=k)
        assert (found.rounds, found.as_dict()["sha256"], found.matches) == (k, hashes[k - 1], True)
    first = replay(tmp_path / "run", until=0)
    assert first.rounds == 0
    with pytest.raises(JournalError, match="--until 13 is more"):
        replay(tmp_path / "run", until=ROUNDS + 1)
    from safetensors.torch import load_file

    write_model(tmp_path / "m.safetensors", first)
    assert load_file(tmp_path / "m.safetensors")["model"].numpy().tobytes() == first.flat.numpy().tobytes()


def test_another_server_step_is_noticed(tmp_path: Path) -> None:
    """Only the config of the header counts; one that was changed leads elsewhere, and replay says from where on."""
    folder = tmp_path / "run"
    Run.create(folder, config()).train()
    whole = (folder / JOURNAL).read_bytes()
    with JournalReader(folder / JOURNAL) as reader:
        header = reader.header
        start = reader.end
    changed = header._replace(config={**header.config, "lr": 0.3})
    (folder / JOURNAL).write_bytes(changed.pack() + whole[start:])
    found = replay(folder)
    assert (found.matches, found.first_difference) == (False, 0)
    with pytest.raises(JournalError, match="another run"):
        Run.resume(folder)


@pytest.mark.parametrize("stop", [1, 5, 7, 11])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_goes_on_where_its_journal_ends(tmp_path: Path, stop: int, checkpoint: bool) -> None:
    chosen = config(**CASES["shared mean"])
    whole = Run.create(tmp_path / "whole", chosen).train()

    def interrupt(metrics: Any, run: Any) -> None:
        if metrics.round + 1 == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "cut", chosen).train(interrupt)
    if not checkpoint:
        (tmp_path / "cut" / "checkpoint.safetensors").unlink(missing_ok=True)
    (tmp_path / "cut" / "metrics.jsonl").write_text("", encoding="utf-8")  # the journal has them
    resumed = Run.resume(tmp_path / "cut")
    assert resumed.federation.next_round == stop
    assert {**resumed.train(), "run": ""} == {**whole, "run": ""}
    assert [row["round"] for row in read_metrics(tmp_path / "cut")] == list(range(ROUNDS))
    keep = ("loss", "accuracy", "uplink_bytes", "downlink_bytes")
    for mine, theirs in zip(read_metrics(tmp_path / "cut"), read_metrics(tmp_path / "whole"), strict=True):
        assert {name: mine[name] for name in keep} == {name: theirs[name] for name in keep}
    assert replay(tmp_path / "cut").as_dict()["sha256"] == whole["model_sha256"]


def test_a_run_goes_on_with_a_version_that_has_more_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = Run.create(folder, config()).train()
    data = (folder / JOURNAL).read_bytes()
    with JournalReader(folder / JOURNAL) as reader:
        header = reader.header
    earlier = header._replace(config={k: v for k, v in header.config.items() if k != "evaluate_mean"})
    (folder / JOURNAL).write_bytes(earlier.pack() + data[len(header.pack()) :])
    (folder / "summary.json").unlink()
    assert Run.resume(folder).train()["model_sha256"] == whole["model_sha256"]
    assert replay(folder).matches


def test_a_journal_that_lost_rounds_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run.create(folder, config()).train()
    with JournalReader(folder / JOURNAL) as reader:
        for record in reader:
            if record.round == 3:
                break
        end = reader.end
    os.truncate(folder / JOURNAL, end)
    with pytest.raises(JournalError, match=r"ends after round 4.*checkpoint is of round 12"):
        Run.resume(folder)
    (folder / "checkpoint.safetensors").unlink()
    assert Run.resume(folder).federation.next_round == 4
    (folder / JOURNAL).unlink()
    with pytest.raises(JournalError, match="cannot be read"):
        replay(folder)


def test_what_does_not_fit_a_journal_is_refused() -> None:
    with pytest.raises(ConfigError, match="memories of clients"):
        config(codec={"name": "topk", "k": 5, "error_feedback": True})
    with pytest.raises(ConfigError, match="journal = false"):
        config(downlink="replay", journal=False)
    with pytest.raises(ConfigError, match='keys = "shared"'):
        config(downlink_bits=8)


CHILD = """
import json, os, random, select, signal, sys, time
from pathlib import Path
from fedmpdd.data import load
from fedmpdd.federation import federation_of, parse_config, runs
from fedmpdd.federation.runs import Run
dataset = load("mnist-5k")
runs.make_federation = lambda config, data_dir: federation_of(config, dataset)  # the data once, for all children
folder, chosen, kills = Path(sys.argv[1]), parse_config(json.loads(sys.argv[2])), int(sys.argv[3])
dice = random.Random(4)

def train(acknowledged):
    def on_round(metrics, run):
        os.write(acknowledged, metrics.round.to_bytes(4, "little"))
    run = Run.resume(folder) if folder.exists() else Run.create(folder, chosen)
    run.train(on_round)

done = 0
for kill in range(kills):
    inside, outside = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inside)
        train(outside)
        os._exit(0)
    os.close(outside)
    if kill % 2 == 0:  # while it trains; else at any moment, perhaps while it starts
        select.select([inside], [], [], 60)
    time.sleep(dice.uniform(0, 0.2 if kill % 2 == 0 else 1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = b""
    while part := os.read(inside, 65536):
        said += part
    os.close(inside)
    rounds = [int.from_bytes(said[i:i + 4], "little") for i in range(0, len(said), 4)]
    # One that was on the disk when the kill came need not have been said any more; it must not come again either.
    if rounds:
        assert rounds == list(range(rounds[0], rounds[0] + len(rounds))), rounds
        assert rounds[0] in (done, done + 1), (done, rounds)
        done = rounds[-1] + 1
    print(done, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are killed and started again by fork")
def test_fifty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chosen = config(**CASES["shared mean"], rounds=100_000, evaluate_every=50, checkpoint_every=20)
    folder = tmp_path / "run"
    command = [sys.executable, "-c", CHILD, str(folder), json.dumps(chosen.model_dump(mode="json")), "50"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "FEDMPDD_THREADS": "1"}, check=False
    )
    assert result.returncode == 0, result.stderr
    acknowledged = int(result.stdout.split()[-1])
    assert acknowledged >= 50  # or nothing was tried
    found = replay(folder)
    assert found.matches
    assert found.rounds in (acknowledged, acknowledged + 1)
    whole = Run.create(tmp_path / "whole", chosen.model_copy(update={"rounds": found.rounds})).train()
    assert found.as_dict()["sha256"] == whole["model_sha256"]
