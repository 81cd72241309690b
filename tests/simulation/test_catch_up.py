"""A late client comes to the model of the others, by bundles or by a model; the bytes are those that are counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd.errors import ContentError, FedmpddError, WireError
from fedmpdd.runs.folders import Run
from fedmpdd.server.journal import JOURNAL, JournalReader, Record
from fedmpdd.simulation.catch_up import CatchUp, message_bytes, unpack_catch_up
from fedmpdd.simulation.replay import JournalReplica, replay
from tests.simulation.test_replay import CASES, ROUNDS, config


@pytest.fixture(params=["shared mean", "adam", "partitioned"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    Run.create(tmp_path / "run", config(**CASES[request.param])).train()
    return tmp_path / "run"


def records(folder: Path) -> tuple[Any, list[Record]]:
    with JournalReader(folder / JOURNAL) as reader:
        return reader.header, list(reader)


def test_a_client_that_was_never_there_needs_header_and_bundles(journal: Path) -> None:
    header, rounds = records(journal)
    bundles = tuple(record.bundle for record in rounds)
    data = CatchUp(0, bundles, header=header).pack()
    assert len(data) == message_bytes([len(b) for b in bundles], header=len(header.pack()))
    message = unpack_catch_up(data)
    assert message.header is not None
    late = JournalReplica(message.header)
    late.catch_up(message)
    assert (late.next_round, late.sha256) == (ROUNDS, rounds[-1].model_sha256)


def test_a_client_that_missed_rounds_needs_those(journal: Path) -> None:
    header, rounds = records(journal)
    client = JournalReplica(header)
    for first, last in ((0, 1), (1, 7), (7, 7), (7, ROUNDS)):
        data = CatchUp(first, tuple(record.bundle for record in rounds[first:last])).pack()
        client.catch_up(unpack_catch_up(data))
    assert client.sha256 == rounds[-1].model_sha256
    with pytest.raises(ContentError, match=f"model here is that of round {ROUNDS}"):
        client.catch_up(CatchUp(3, (rounds[3].bundle,)))


def test_a_model_does_as_well(journal: Path) -> None:
    """With what the optimiser keeps: otherwise the next step would be another one."""
    header, rounds = records(journal)
    server = JournalReplica(header)
    for record in rounds[:6]:
        server.apply(record.bundle)
    data = CatchUp(6, vectors=server.vectors()).pack()
    assert len(data) == message_bytes(vectors=4 * header.d * len(server.vectors()))
    late = JournalReplica(header)
    late.catch_up(unpack_catch_up(data, header.d))
    for record in rounds[6:]:
        late.apply(record.bundle)
    assert late.sha256 == replay(journal).as_dict()["sha256"]
    with pytest.raises(ContentError, match="vectors came"):
        late.catch_up(CatchUp(6, vectors=(*server.vectors(), server.vectors()[0])))


def test_damage_is_noticed() -> None:
    data = CatchUp(3, (b"abc", b""), vectors=()).pack()
    assert unpack_catch_up(data) == CatchUp(3, (b"abc", b""))
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(WireError):
            unpack_catch_up(bytes(changed))
        with pytest.raises(WireError):
            unpack_catch_up(data[:at])
    bad = CatchUp(0, vectors=(np.array([1, np.nan], np.float32),)).pack()
    with pytest.raises(ContentError, match="NaN"):
        unpack_catch_up(bad, 2)


@given(st.binary(max_size=100))
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(FedmpddError):
        unpack_catch_up(data)
