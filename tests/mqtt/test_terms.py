"""Terms: what was published is read, and a document that is none is one error."""

import json
from typing import Any

import pytest

from fedmpdd.errors import FedmpddError, OrderError
from fedmpdd.mqtt.terms import Terms
from fedmpdd.server.step import Schedule, StepRule
from fedmpdd.simulation import parse_config, sampling
from fedmpdd.uplink.arrivals import Arrivals
from tests.mqtt.trainings import SIGNS, make_terms

GOOD = [
    make_terms(),
    make_terms(
        keys="partitioned",
        codec=SIGNS,
        server=StepRule("adam", beta2=0.9),
        schedule=Schedule("cosine", 20, 3, 0.1),
        protection={"clip": 1.0, "noise_multiplier": 2.0},
    ),
    make_terms(keys="shared", codec={**SIGNS, "bits": 32}, mean_bits=8),
    make_terms(codec={"name": "topk", "k": 20}, error_feedback=True, arrivals=Arrivals(3, 2.5, 4, 0.25)),
]


@pytest.mark.parametrize("terms", GOOD)
def test_terms_are_read_as_they_were_published(terms: Terms) -> None:
    read = Terms.unpack(terms.pack())
    assert read == terms
    assert read.pack() == terms.pack()
    assert read.tag == terms.tag
    assert read.differences(terms) == []
    assert read.session.seed == terms.seed


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(GOOD[0].pack()), **values}).encode()


def table(name: str, **values: Any) -> bytes:
    return changed(**{name: {**json.loads(GOOD[0].pack())[name], **values}})


WRONG: dict[str, list[Any]] = {
    "seed": ["1", None, 1.5, -1, True, 2**64],
    "clients": ["6", None, 0, -1, 2**40, 3.0],
    "per_round": [0, 7, "4", None],
    "sampling_seed": ["1", -1, None, 0.5],
    "rounds": ["1", -1, None, 2.5, 2**40],
    "shapes": [None, 3, [], [3], [[3.5]], [["3"]], [[0]], [[-3]], [[2**40, 2**40]], "10", [[True]]],
    "keys": ["sent", None, 1, ["shared"], {}],
    "lr": ["0.1", None, True, [], float("nan"), float("inf"), -1.0, 10**400],
    "mean_bits": ["8", 3, 1.5, True, [], 0],
    "error_feedback": [1, "true", None],
    "model_sha256": [5, None, "xyz", "ab" * 31, "AB" * 32, ["00"]],
    "codec": [
        None,
        "peaks",
        {},
        {"m": 4},
        {"name": 5},
        {"name": ["peaks"]},
        {"name": "os:system"},
        {"name": "peaks"},
        {"name": "peaks", "m": "x"},
        {"name": "peaks", "m": 4, "shapes": []},
    ],
    "protection": [None, 1, {"clip": "x"}, {"clip": -1.0}, {"clap": 1.0}, {"codec": 1}],
    "server": [None, "sgd", {"optimiser": "torch.optim:Adam"}, {"optimiser": []}],
    "schedule": [None, {"kind": "os:system"}, {"kind": 5}],
    "arrivals": [
        None,
        {"enough": 0},
        {"enough": "x"},
        {"max_age": 256},
        {"max_age": 1.5},
        {"wait": -1.0},
        {"wait": "x"},
        {"decay": 0.0},
        {"decay": 2.0},
        {"sooner": 1},
    ],
}
MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"fedmpdd": "\xff"}',
    "brackets": b"[" * 100_000,
    "too long": b'{"fedmpdd": 1, "x": "' + b"x" * 2**20 + b'"}',
    "a list": b"[1]",
    "a number": b"1",
    "somebody else's": b'{"temperature": 21}',
    "of another version": changed(fedmpdd=2),
    "a version of another type": changed(fedmpdd=[1]),
    "one key too few": json.dumps({k: v for k, v in json.loads(GOOD[0].pack()).items() if k != "lr"}).encode(),
    "one key too many": changed(more=1),
    **{f"{name} = {value!r:.20}": changed(**{name: value}) for name, wrong in WRONG.items() for value in wrong},
    "a rule with a value too many": table("server", more=1),
    "momentum that is text": table("server", optimiser="momentum", momentum="0.9"),
    "a schedule over text": table("schedule", kind="cosine", rounds="20"),
    "late updates without a key of their own": changed(keys="shared", arrivals={"max_age": 2}),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_terms_that_nobody_can_keep_are_one_line(data: bytes) -> None:
    with pytest.raises(OrderError) as caught:
        Terms.unpack(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_the_message_says_what_to_do_about_another_version() -> None:
    with pytest.raises(OrderError, match=r"have version 2, this client's 1: install one release"):
        Terms.unpack(changed(fedmpdd=2))
    with pytest.raises(OrderError, match="none of fedmpdd; name another training"):
        Terms.unpack(b'{"temperature": 21}')


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"per_round": 7}, "expected 1 to all of them"),
        ({"server": StepRule("torch.optim:Adam")}, "clients cannot follow"),
        ({"schedule": Schedule("mysteps.py:factor")}, "no client imports"),
        ({"arrivals": Arrivals(max_age=1), "keys": "partitioned"}, "a key of its own"),
        ({"mean_bits": 8}, "a mean of 8 bits"),
        ({"clients": 2**33}, "expected at most"),
        ({"clients": 2**21, "per_round": 2**21}, "expected at most"),
        ({"lr": float("nan")}, "lr = nan"),
    ],
)
def test_arguments_that_do_not_go_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmpddError, match=words):
        make_terms(**changes)


def test_those_are_asked_whom_the_local_engine_asks() -> None:
    config = parse_config(
        {"dataset": "mnist-5k", "model": "logistic", "clients": 30, "clients_per_round": 7, "seed": 5, "rounds": 9,
         "batch": 4, "lr": 0.1, "codec": {"name": "mpdd", "m": 8}}
    )  # fmt: skip
    terms = make_terms(clients=30, per_round=7, sampling_seed=5)
    for number in range(9):
        assert terms.sample(number).tolist() == sampling.sample_clients(config, number).tolist()
