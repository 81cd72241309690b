"""Clients that die, are late or lie, and a server that is killed: all of them real processes."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
if os.name != "posix":
    pytest.skip("process groups are needed", allow_module_level=True)

from tests.flower.deployment import Deployment, Run, deployment, free_port
from tests.flower.repeater import repeater

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "faulty_app"
RECEIVED = "Received successfully"  # in a node's log, once a message
LIES = {
    "another-round": "its update is for round",
    "another-d": "session tag",
    "damaged": "checksum",
    "version": "version 9",
    "nan": "nan",
    "huge": "above max_value",
}


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("faults"), nodes=2, secure=False) as one:
        yield one


def contributed(run: Run) -> list[tuple[int, int]]:
    """Per round, how many contributed, and how many updates were dropped."""
    found = re.findall(r"round \d+: (\d) of 2 nodes contributed, (\d) updates dropped", run.log)
    return [(int(there), int(dropped)) for there, dropped in found]


def largest(run: Run) -> float:
    (value,) = re.findall(r"largest coordinate ([\d.]+)", run.log)
    return float(value)


def test_lies_are_dropped_and_told(loopback: Deployment) -> None:
    faults = ",".join(LIES)
    run = loopback.run(APP, f'num-server-rounds={len(LIES)} faults="{faults}"', timeout=240)
    assert run.status == "finished:completed"
    assert contributed(run) == [(1, 1)] * len(LIES)
    for number, reason in enumerate(LIES.values(), 1):
        told = re.findall(rf"round {number}: dropped the update of node \d+: (.*)", run.log)
        assert len(told) == 1
        assert reason in told[0]
    assert 0 < largest(run) < 10


def test_the_round_goes_on_without_who_is_late(loopback: Deployment) -> None:
    run = loopback.run(APP, 'num-server-rounds=4 timeout=25.0 faults="late"', timeout=240)
    assert run.status == "finished:completed"
    rounds = contributed(run)
    assert len(rounds) == 4
    assert rounds[0] == (1, 0)
    assert rounds[3] == (2, 0)  # back again; in the round in between it may still be asleep
    assert 0 < largest(run) < 10


def test_a_server_that_was_killed_goes_on_from_its_checkpoint(loopback: Deployment, tmp_path: Path) -> None:
    """Nodes that are still fetching a message when the server dies wait for it until Flower gives its run up.

    That takes a minute, which the rounds of the second run have to outlast, and this test avoids.
    """
    file = tmp_path / "server.safetensors"
    config = f'num-server-rounds=5 timeout=150.0 checkpoint="{file}"'
    received = {node.name: loopback.log_of(node.name).count(RECEIVED) for node in loopback.nodes}
    loopback.flwr("run", str(APP), "test", "--run-config", config)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        in_round_2 = all(loopback.log_of(name).count(RECEIVED) >= before + 2 for name, before in received.items())
        if in_round_2 and file.exists():
            break
        time.sleep(0.2)
    servers = [pid for pid in loopback.living() if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(servers) == 1
    os.kill(servers[0], signal.SIGKILL)
    run = loopback.run(APP, config, timeout=240)
    assert run.status == "finished:completed"
    (done,) = re.findall(r"holds (\d) rounds; going on from there", run.log)
    assert contributed(run) == [(2, 0)] * (5 - int(done))
    assert f"round {int(done) + 1}: 2 of 2" in run.log


def test_who_answers_twice_counts_once(tmp_path: Path) -> None:
    with deployment(tmp_path, nodes=1, secure=False) as one, repeater(free_port(), one.port) as twice:
        one.add_node("partition-id=1 num-partitions=2", through=twice.port)
        run = one.run(APP, "num-server-rounds=2", timeout=240)
    assert run.status == "finished:completed"
    assert twice.repeated >= 2
    assert contributed(run) == [(2, 0), (2, 0)]


def test_the_round_goes_on_without_who_dies(loopback: Deployment) -> None:
    """The last of these tests: Flower takes a minute to see that a client's process is gone."""
    run = loopback.run(APP, 'num-server-rounds=2 timeout=25.0 faults="die"', timeout=240)
    assert run.status == "finished:completed"
    assert contributed(run) == [(1, 0), (1, 0)]
    assert 0 < largest(run) < 10
