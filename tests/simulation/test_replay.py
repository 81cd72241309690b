"""A model rebuilt from its journal has the bits of the one that was trained; a crash loses nothing that was said."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmpdd.directions import using
from fedmpdd.errors import JournalError, RunError
from fedmpdd.runs.folders import Run, read_metrics
from fedmpdd.server.journal import BARE, JOURNAL, WITH_MODEL, JournalReader
from fedmpdd.simulation import parse_config
from fedmpdd.simulation.replay import JournalReplica, replay, write_model
from tests.simulation.test_engine import BASE

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
    "momentum, mean": {
        "codec": {**ONE_BIT, "keys": "shared"},
        "downlink": "replay",
        "downlink_bits": 8,
        "server": {"optimiser": "momentum"},
    },
    "qsgd": {"codec": {"name": "qsgd", "bits": 8}},
    "fedsgd": {"codec": {"name": "fedsgd"}},
    "sa-fedlora": {"codec": {"name": "sa-fedlora"}},
    "peaks that grow": {"codec": {"name": "peaks", "m": 2, "grows_to": 7, "grows_after": 3, "keys": "derived"}},
    "decomfl": {"codec": {"name": "decomfl", "m": 4, "keys": "shared"}, "downlink": "replay"},
    "fedkseed": {
        "codec": {"name": "fedkseed", "m": 4, "keys": "derived"},
        "downlink": "replay",
        "local_steps": 4,
        "local_lr": 0.01,
    },
    "fedkseed, mean": {
        "codec": {"name": "fedkseed", "m": 4, "keys": "shared"},
        "downlink": "replay",
        "downlink_bits": 4,
    },
    "ferret": {"codec": {"name": "ferret", "m": 20}, "local_steps": 2, "local_lr": 0.1},
    "feedsign": {"codec": {"name": "feedsign", "m": 4, "keys": "shared"}, "downlink": "replay"},
    "feedsign, a bit down": {
        "codec": {"name": "feedsign", "keys": "shared"},
        "downlink": "replay",
        "downlink_bits": 1,
    },
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
    with pytest.raises(RunError, match="cannot be written"):
        write_model(tmp_path / "missing" / "m.safetensors", first)
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
    earlier = header._replace(config={k: v for k, v in header.config.items() if k != "robust"})
    (folder / JOURNAL).write_bytes(earlier.pack(WITH_MODEL) + data[len(header.pack()) :])
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


def make_bare(folder: Path) -> None:
    """Turn a run's journal into one of version 1, without the initial model, as earlier versions wrote them."""
    path = folder / JOURNAL
    data = path.read_bytes()
    with JournalReader(path) as reader:
        path.write_bytes(reader.header.pack(BARE) + data[reader.end :])


def test_a_journal_of_version_1_is_replayed_and_gone_on_with(tmp_path: Path) -> None:
    whole = Run.create(tmp_path / "whole", config()).train()

    def interrupt(metrics: Any, run: Any) -> None:
        if metrics.round == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "cut", config()).train(interrupt)
    make_bare(tmp_path / "cut")
    assert replay(tmp_path / "cut").matches
    assert {**Run.resume(tmp_path / "cut").train(), "run": ""} == {**whole, "run": ""}
    with JournalReader(tmp_path / "cut" / JOURNAL) as reader:
        assert reader.version == BARE
        assert len(list(reader)) == ROUNDS
    assert replay(tmp_path / "cut").as_dict()["sha256"] == whole["model_sha256"]


def test_downlink_bytes_do_not_count_the_initial_model(tmp_path: Path) -> None:
    """Clients make it from the header of version 1, as ever; only the file holds it."""
    run = Run.create(tmp_path / "run", config(**CASES["shared mean"]))
    header = run.federation.journal_header
    run.train()
    first = next(iter(read_metrics(tmp_path / "run")))
    assert first["downlink_bytes"] == first["clients"] * (20 + len(header.pack()))
    assert (tmp_path / "run" / JOURNAL).stat().st_size > 4 * header.d


REPLAYED = """
import sys
from pathlib import Path
import torch
from fedmpdd.simulation.replay import replay
from fedmpdd.runs.folders import Run
folder, what = Path(sys.argv[1]), sys.argv[2]
print(torch.backends.cpu.get_cpu_capability())
print(replay(folder).as_dict()["sha256"] if what == "replay" else Run.resume(folder).train()["rounds"])
"""


def elsewhere(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Do it on a CPU without vector instructions, or what passes for one."""
    return subprocess.run(
        [sys.executable, "-c", REPLAYED, str(folder), what],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        check=False,
    )


@pytest.mark.slow
def test_another_kind_of_cpu_replays_and_goes_on(tmp_path: Path) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this CPU is of the plainest kind: there is no other one to compare with")
    folder = tmp_path / "run"
    summary = Run.create(folder, config()).train()
    result = elsewhere(folder, "replay")
    assert result.stdout.split() == ["DEFAULT", summary["model_sha256"]], result.stderr
    (folder / "checkpoint.safetensors").unlink()
    result = elsewhere(folder, "resume")
    assert result.stdout.split() == ["DEFAULT", str(ROUNDS)], result.stderr
    assert "cpu_capability was" in result.stderr
    assert "is 'DEFAULT'" in result.stderr
    make_bare(folder)
    for what in ("replay", "resume"):
        result = elsewhere(folder, what)
        if result.returncode == 0:
            pytest.skip("PyTorch makes the same initial model on both kinds of CPU here")
        assert "another kind of CPU" in result.stderr
        assert "ATEN_CPU_CAPABILITY" in result.stderr


BAD_NOTES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no round": {"clients": 1, "uplink_bytes": 1, "payload_bytes": 1, "downlink_bytes": 1, "accuracy": None},
    "words": {"round": 0, "clients": "x", "uplink_bytes": 1, "payload_bytes": 1, "downlink_bytes": 1, "accuracy": None},
}


@pytest.mark.parametrize("note", BAD_NOTES.values(), ids=BAD_NOTES.keys())
def test_a_note_without_its_keys_is_an_error_of_ours(tmp_path: Path, note: dict[str, Any]) -> None:
    folder = tmp_path / "run"
    Run.create(folder, config(rounds=1)).train()
    data = (folder / JOURNAL).read_bytes()
    with JournalReader(folder / JOURNAL) as reader:
        start = reader.end
        (record,) = reader
    (folder / JOURNAL).write_bytes(data[:start] + dataclasses.replace(record, note=note).pack())
    with pytest.raises(JournalError, match="the note of round 0 cannot be used: "):
        Run.resume(folder)


def test_a_journal_with_more_rounds_than_its_config_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run.create(folder, config(rounds=2)).train()
    with JournalReader(folder / JOURNAL) as reader:
        records = list(reader)
    with (folder / JOURNAL).open("ab") as file:
        file.write(dataclasses.replace(records[-1], round=2).pack())
    with pytest.raises(JournalError, match="more rounds than the 2 of its config"):
        Run.resume(folder)


def test_a_header_that_lies_about_the_model_takes_no_memory(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", config(rounds=1)).train()
    with JournalReader(tmp_path / "run" / JOURNAL) as reader:
        header = reader.header
    for wrong in (header._replace(shape=(1, 2**16, 2**16)), header._replace(classes=2**16), header._replace(d=10)):
        with pytest.raises(JournalError, match="it was changed"):
            JournalReplica(wrong)


# ------------------------------------------------------------------------------------------- whose code it is

IMPORTED = "untrusted_model_for_tests"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose model is code of its own, which leaves a mark when it is imported."""
    mark = tmp_path / "imported"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nfrom tests.tasks.test_models import Tiny\n"
    (tmp_path / f"{IMPORTED}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    Run.create(tmp_path / "run", config(model=f"{IMPORTED}:Tiny", rounds=2)).train()
    mark.unlink()
    del sys.modules[IMPORTED]
    return tmp_path / "run"


def test_a_folder_imports_nothing_unless_it_is_trusted(foreign: Path) -> None:
    mark = foreign.parent / "imported"
    with JournalReader(foreign / JOURNAL) as reader:
        header, initial = reader.header, reader.initial_model()
    for trust in (False, "tests.tasks.test_models:Tiny", "lenet"):
        for opened in (
            lambda trust=trust: Run.resume(foreign, trust_imports=trust),
            lambda trust=trust: replay(foreign, trust_imports=trust),
            lambda trust=trust: JournalReplica(header, initial=initial, trust_imports=trust),
        ):
            with pytest.raises(RunError, match=rf"{IMPORTED}:Tiny.*--trust-imports, or with model={IMPORTED}:Tiny"):
                opened()
    assert not mark.exists()
    assert replay(foreign, trust_imports=f"{IMPORTED}:Tiny").matches
    assert mark.exists()
    assert Run.resume(foreign, trust_imports=True).train()["rounds"] == 2


def test_models_of_this_package_need_no_trust(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", config(rounds=1)).train()
    assert replay(tmp_path / "run").matches
    assert Run.resume(tmp_path / "run").federation.next_round == 1


CHILD = """
import json, os, random, select, signal, sys, time
from pathlib import Path
from fedmpdd.tasks.data import load
from fedmpdd.runs import folders as runs
from fedmpdd.simulation import federation_of, parse_config
from fedmpdd.runs.folders import Run
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
