"""Bytes on the socket, by a proxy per client: whole models against one-bit updates, up and down."""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
if os.name != "posix":
    pytest.skip("process groups are needed", allow_module_level=True)

from fedmpdd.flower.socket_counter import SocketCounter, serve
from tests.flower.deployment import Deployment, deployment, free_port

pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "examples" / "flower-mnist"
ANY_SIZE = Path(__file__).parent / "downlink_app"


@contextmanager
def metered(meter: SocketCounter, ports: list[int], target: int) -> Iterator[None]:
    """Run the meter in a thread of its own."""
    loop = asyncio.new_event_loop()
    ready = asyncio.Event()
    task = loop.create_task(serve(meter, ports, ("127.0.0.1", target), ready))

    def work() -> None:
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, SocketCounter]]:
    meter, ports = SocketCounter(), [free_port(), free_port()]
    with deployment(tmp_path_factory.mktemp("bytes"), nodes=0, secure=False) as one, metered(meter, ports, one.port):
        for number, port in enumerate(ports):
            one.add_node(f"partition-id={number} num-partitions=2", through=port)
        yield one, meter


def per_reply(counted: tuple[Deployment, SocketCounter], strategy: str, model: str) -> float:
    """Bytes from a client to the SuperLink for one reply: all requests that it takes, headers included."""
    one, meter = counted
    meter.requests.clear()
    codec = "mpdd:m=400:bits=1:family=hadamard"
    config = f'num-server-rounds=1 strategy="{strategy}" model="{model}" codec="{codec}" local-steps=1'
    run = one.run(APP, config, timeout=240)
    assert run.status == "finished:completed"
    found = [row["up_per_reply"] for row in meter.summary().values()]
    assert [row["replies"] for row in meter.summary().values()] == [1, 1]
    return float(sum(found) / len(found))


@pytest.mark.parametrize(("model", "share"), [("small", 10), ("cnn", 100)])
def test_one_bit_takes_a_fraction_of_the_bytes_on_the_socket(
    counted: tuple[Deployment, SocketCounter], model: str, share: int
) -> None:
    whole, one_bit = (per_reply(counted, strategy, model) for strategy in ("fedsgd", "fedmpdd"))
    print(f"{model}: {whole:,.0f} bytes a reply with FedSGD, {one_bit:,.0f} with FedMPDD, m = 400, one bit")
    assert one_bit <= whole / share


def per_message(counted: tuple[Deployment, SocketCounter], d: int, downlink: str) -> tuple[float, str]:
    """Bytes from the SuperLink to a client for a message of the last of three rounds, and the model they led to."""
    one, meter = counted
    meter.requests.clear()
    run = one.run(ANY_SIZE, f'num-server-rounds=3 d={d} downlink="{downlink}" downlink-bits=4', timeout=240)
    assert run.status == "finished:completed"
    assert run.log.count("2 of 2 nodes contributed, 0 updates dropped, 0 failed") == 3
    found = [row["down"] for row in meter.messages() if row["message"] == 3]
    assert len(found) == 2
    (model,) = re.findall(r"model ([0-9a-f]{64})", run.log)
    return sum(found) / len(found), model


@pytest.mark.parametrize(("d", "share"), [(13_426, 20), (319_242, 500)])
def test_what_rounds_added_takes_a_fraction_of_the_bytes_of_the_model(
    counted: tuple[Deployment, SocketCounter], d: int, share: int
) -> None:
    (whole, model), (rounds, same) = (per_message(counted, d, downlink) for downlink in ("model", "replay"))
    print(
        f"d = {d:,}: {whole:,.0f} bytes down a message with models, {rounds:,.0f} with replay: 1/{whole / rounds:.0f}"
    )
    assert same == model
    assert rounds <= whole / share
