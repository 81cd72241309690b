"""Secure sums of ten real processes over loopback, two of which are killed in the middle of a round."""

import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
if os.name != "posix":
    pytest.skip("process groups are needed", allow_module_level=True)

from fedmpdd.codecs import MPDD
from fedmpdd.directions import Key, round_seed
from fedmpdd.flower.socket_counter import SocketCounter
from tests.flower.deployment import Deployment, deployment, free_port
from tests.flower.test_bytes import metered

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "secure_app"
NODES, D, M, CLIP = 10, 13_426, 400, 20.0
WAITS, ANSWERED = 8, 9  # nodes that are killed: one before it sent its masked vector, one just after
SENT = "Sent successfully"  # in a node's log, once an answer
LONGEST = 300.0  # seconds for anything that is waited for


@dataclass
class Evidence:
    """What rounds left: one in which two nodes were killed, and without them one more, one signed, one without sums."""

    sums: dict[int, dict[str, Any]]  # by round
    node_ids: list[int]
    signed_sum: dict[str, Any]
    secure: SocketCounter
    signed: SocketCounter
    plain: SocketCounter
    survivors: set[str]  # ports


def wait_for(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONGEST
    while not done():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.1)


def kill_two(one: Deployment, folder: Path) -> None:
    """End a node that computes its gradient, and one that has sent its masked vector."""
    wait_for(lambda: (folder / f"train-1-{WAITS}").exists(), "training on the node that waits")
    wait_for(lambda: one.log_of(one.nodes[ANSWERED].name).count(SENT) == 3, "the third answer of the other one")
    for number in (WAITS, ANSWERED):
        os.killpg(one.nodes[number].process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    folder = tmp_path_factory.mktemp("sums")
    meter, ports = SocketCounter(), [free_port() for _ in range(NODES)]
    with (
        deployment(tmp_path_factory.mktemp("deployment"), nodes=0, secure=False) as one,
        metered(meter, ports, one.port),
    ):
        for number, port in enumerate(ports):
            one.add_node(f"partition-id={number} num-partitions={NODES}", through=port)
        wait_for(lambda: len(one.listed_nodes()) == NODES, "that all nodes are known")
        one.flwr("run", str(APP), "test", "--run-config", f'folder="{folder}" num-server-rounds=2 waiting={WAITS}')
        kill_two(one, folder)
        wait_for(lambda: one.runs()[0]["status"] == "finished:completed", "the end of the run")
        secure = SocketCounter(list(meter.requests))
        sums = {number: json.loads((folder / f"sum-{number}.json").read_text()) for number in (1, 2)}
        node_ids = [int((folder / f"train-1-{number}").read_text()) for number in range(NODES)]
        meter.requests.clear()
        assert one.run(APP, f'folder="{folder}" signed=true', timeout=LONGEST).status == "finished:completed"
        signed, signed_sum = SocketCounter(list(meter.requests)), json.loads((folder / "sum-1.json").read_text())
        meter.requests.clear()
        assert one.run(APP, f'folder="{folder}" secure=false', timeout=LONGEST).status == "finished:completed"
    survivors = {str(port) for number, port in enumerate(ports) if number not in (WAITS, ANSWERED)}
    return Evidence(sums, node_ids, signed_sum, secure, signed, meter, survivors)


def integers_of(node: int, number: int, asked: int) -> list[int]:
    """What a node adds to the sum of a round: its scalars in steps, by Python's own rounding."""
    gradient = np.cos((node + 1) * np.arange(D) / D).astype(np.float32) / np.float32(100)
    key = Key(round_seed(1, number - 1))
    (update,) = MPDD(M, family="hadamard").encode(gradient[np.newaxis], [key])
    step = CLIP * M**0.5 / ((2**31 - 1) / (asked + 1))
    return [round(float(scalar) / step) for scalar in update.arrays[0]]


@pytest.mark.parametrize(("number", "missing"), [(1, {WAITS}), (2, {WAITS, ANSWERED})])
def test_the_sum_is_exact_though_two_were_killed(evidence: Evidence, number: int, missing: set[int]) -> None:
    """Whose masked vector had come is in the sum, though it was gone when the masks were lifted."""
    nodes = [node for node in range(NODES) if node not in missing]
    assert sorted(evidence.sums[number]["included"]) == sorted(evidence.node_ids[node] for node in nodes)
    rows = [integers_of(node, number, NODES if number == 1 else NODES - 2) for node in nodes]
    assert evidence.sums[number]["total"] == [sum(column) % 2**32 for column in zip(*rows, strict=True)]


def test_nodes_that_sign_give_the_sum_too(evidence: Evidence) -> None:
    """Those of the roster that are gone count as drop-outs."""
    nodes = [node for node in range(NODES) if node not in (WAITS, ANSWERED)]
    assert sorted(evidence.signed_sum["included"]) == sorted(evidence.node_ids[node] for node in nodes)
    rows = [integers_of(node, 1, NODES) for node in nodes]
    assert evidence.signed_sum["total"] == [sum(column) % 2**32 for column in zip(*rows, strict=True)]


def per_message(rows: list[dict[str, Any]], number: str, bytes_of: str, count: int) -> list[float]:
    """The median bytes of the first so many messages of each node."""
    found = [[row[bytes_of] for row in rows if row[number] == k] for k in range(1, count + 1)]
    assert [len(column) for column in found] == [NODES - 2] * count
    return [statistics.median(column) for column in found]


def test_the_bytes_on_the_socket(evidence: Evidence) -> None:
    """What -s prints: medians of a node's answers and of what it is sent, envelopes and headers included."""
    medians = {}
    for name, meter, count in (
        ("secure", evidence.secure, 4),
        ("signed", evidence.signed, 5),
        ("plain", evidence.plain, 1),
    ):
        up = [row for row in meter.replies() if row["client"] in evidence.survivors]
        down = [row for row in meter.messages() if row["client"] in evidence.survivors]
        medians[name] = per_message(up, "reply", "up", count), per_message(down, "message", "down", count)
        print(f"{name}: up {medians[name][0]}, down {medians[name][1]}")
    print("seconds:", {number: round(one["seconds"]) for number, one in evidence.sums.items()})
    protocol = (80, 894, 1_616, 346)  # of ten clients: docs/secure-sum.md
    envelope = medians["plain"][0][0] - 4 * M
    with_signatures = (144, 894 - 2 * 94, 1_616, 80, 346 - 2 * 33)  # of the eight that are left
    for name, contents in (("secure", protocol), ("signed", with_signatures)):
        for content, measured in zip(contents, medians[name][0], strict=True):
            assert content < measured < content + 1.1 * envelope
