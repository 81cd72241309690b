"""Rounds by secure sums: the estimate of a plain round, up to the steps of integers; noise that is counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmpdd.errors import ConfigError
from fedmpdd.runs.folders import Run
from fedmpdd.secure_sum import Terms, bytes_up, secure_sum
from fedmpdd.simulation import Federation, make_federation, parse_config
from fedmpdd.simulation.clients import Work, answered
from fedmpdd.simulation.replay import replay
from fedmpdd.simulation.secure import SummedUplink
from tests.simulation.test_engine import BASE

SHARED = {"name": "mpdd", "m": 64, "family": "hadamard", "keys": "shared"}


def federation(**changes: Any) -> Federation:
    return make_federation(parse_config({**BASE, "codec": SHARED, **changes}))


@pytest.mark.parametrize("codec", [SHARED, {"name": "fedsgd"}], ids=["mpdd", "fedsgd"])
def test_the_estimate_is_that_of_a_plain_round_up_to_steps(codec: dict[str, Any]) -> None:
    plain = federation(codec=codec)
    secure = federation(codec=codec, secure={"clip": 100.0})  # so wide that nothing is clipped
    start = plain.flat.clone()
    plain.run_round()
    secure.run_round()
    moved, same = (plain.flat - start).norm(), (plain.flat - secure.flat).norm()
    assert 0 < same < 1e-3 * moved


def test_what_is_added_up_is_what_the_protocol_adds_up() -> None:
    """The engine leaves the masks out; with them the sum is the same."""
    fed = federation(secure={"clip": 1.0, "noise_multiplier": 0.1})
    seen: list[Any] = []
    encode = fed._uplink.encode

    def spy(*arguments: Any) -> Any:
        seen.append(encode(*arguments))
        return seen[-1]

    fed._uplink.encode = spy
    metrics = fed.run_round()
    elements = seen[0].elements & np.uint64(2**32 - 1)
    found = secure_sum(elements, fed._fewest)
    assert (found.total == (elements.sum(axis=0) & np.uint64(2**32 - 1))).all()
    assert found.up.sum() == metrics.uplink_bytes


def test_with_neighbours_the_sum_is_the_same_and_takes_fewer_bytes() -> None:
    alone = {"clip": 1.0, "noise_multiplier": 0.1, "dropouts": 0.0}
    everybody, some = federation(secure=alone), federation(secure={**alone, "neighbours": 6})
    many, few = everybody.run_round(), some.run_round()
    assert (everybody.flat == some.flat).all()
    assert many.uplink_bytes - few.uplink_bytes == 10 * 3 * (94 + 33)  # ten clients, three fewer to share with
    assert few.payload_bytes == many.payload_bytes


def test_clipping_bounds_what_a_client_adds_whatever_rounding_does() -> None:
    fed = federation(secure={"clip": 1e-3, "ring_bits": 24})
    uplink = fed._uplink
    assert isinstance(uplink, SummedUplink)
    plan = fed._plan_of(0)
    gradients = fed._client_step(fed.flat, Work(0, plan.present, plan.batches)).rows
    uploads = uplink.encode(0, gradients.numpy(), fed._plan_of(0).keys, fed._plan_of(0).present.tolist())
    spare = np.uint64(40)
    whole = (uploads.elements << spare).view(np.int64) >> np.int64(40)
    lengths = np.linalg.norm(whole * uplink.sums.step, axis=1)
    assert (lengths <= uplink.sums.bound).all()
    assert lengths.max() > 0.99 * uplink.sums.bound


def test_noise_has_the_deviation_that_is_counted() -> None:
    """64 scalars of 10 clients in 20 rounds, 1,280 means: their deviation within 12 %, six deviations of it."""
    quiet, noisy = federation(secure={"clip": 1.0}), federation(secure={"clip": 1.0, "noise_multiplier": 0.5})
    differences = []
    for k in range(20):  # all at the initial model
        rows = []
        for fed in (quiet, noisy):
            plan = fed._plan_of(k)
            uploads = fed._encode(answered(fed._compute(plan)).rows, plan)
            (update,) = fed._uplink.mean(uploads).batch
            rows.append(update.arrays[0])
        differences.append(rows[1] - rows[0])
    expected = 0.5 * np.sqrt(64) / np.sqrt(10)
    assert np.std(differences) == pytest.approx(expected, rel=0.12)


def test_too_many_drop_outs_stop_the_round_and_cost_bytes() -> None:
    fed = federation(dropout=0.9, secure={"clip": 1.0, "dropouts": 0.2}, rounds=3)
    before = fed.flat.clone()
    metrics = fed.run_round()
    assert (metrics.clients, metrics.loss, metrics.payload_bytes) == (0, None, 0)
    assert (fed.flat == before).all()
    answered = len(fed._plan_of(0).keys)
    terms = Terms(bytes(16), 0, 10, 64, fed._fewest)
    assert metrics.uplink_bytes == answered * sum(bytes_up(terms)[:3])
    some = federation(dropout=0.2, secure={"clip": 1.0, "dropouts": 0.4}, rounds=3)
    assert some.run_round().clients > 5


def test_a_journal_holds_the_sums(tmp_path: Path) -> None:
    values = {**BASE, "codec": SHARED, "rounds": 5, "secure": {"clip": 1.0, "noise_multiplier": 0.1}}
    chosen = parse_config({**values, "downlink": "replay", "downlink_bits": 8, "dropout": 0.3})
    summary = Run.create(tmp_path / "run", chosen).train()
    assert replay(tmp_path / "run").as_dict()["sha256"] == summary["model_sha256"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codec": {**SHARED, "keys": "sent"}}, "keys=shared"),
        ({"codec": {**SHARED, "bits": 1}}, "32 bits"),
        ({"codec": {"name": "topk", "k": 3}}, "fedsgd"),
        ({"codec": {**SHARED, "clip": 1.0}}, "secure sums clip and add noise themselves"),
        ({"weighting": "examples"}, "nobody may see how much a client has"),
        ({"clients_per_round": 1, "participation": None}, "no sum"),
        (
            {"secure": {"clip": 1.0, "noise_multiplier": 50.0, "ring_bits": 16}, "codec": {"name": "fedsgd"}},
            "too coarse",
        ),
        ({"secure": {}}, "secure.clip"),
        ({"secure": {"clip": 1.0, "neighbours": 8, "dropouts": 0.45}}, "need 0, everybody"),
        ({"secure": {"clip": 1.0, "neighbours": 3}}, "secure.neighbours"),
        ({"secure": {"clip": 1.0, "neighbours": 4}}, "need 8 or more, below 9"),
        (
            {
                "secure": {"clip": 1.0, "colluding": 0.45, "dropouts": 0.45},
                "clients_per_round": 5,
                "participation": None,
            },
            "a sum of one hides nothing",
        ),
    ],
)
def test_what_cannot_be_added_up_unseen_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        federation(**{"secure": {"clip": 1.0}, **changes})
