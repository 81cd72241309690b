"""What may be said of a config, and what must not."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import PrivacyError
from fedmpdd.guarantees.accounting import FixedSize, epsilon
from fedmpdd.guarantees.guarantees import Guarantee, guarantees, noise_for
from fedmpdd.simulation import RunConfig, parse_config

ROOT = Path(__file__).parents[2]
CODEC: dict[str, Any] = {"name": "mpdd", "m": 50, "keys": "shared", "clip": 1.0, "noise_multiplier": 0.4}


def config(codec: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    base = {"clients": 1_000, "clients_per_round": 100, "rounds": 40}
    return parse_config({**base, **changes, "codec": {**CODEC, **(codec or {})}})


def stated(codec: dict[str, Any] | None = None, **changes: Any) -> dict[str, Guarantee]:
    return {row.model: row for row in guarantees(config(codec, **changes), 1e-5)}


def test_nothing_is_said_without_clipping() -> None:
    for codec in ({"clip": None, "noise_multiplier": 0.0}, {"clip": None, "noise_multiplier": 0.0, "bits": 1}):
        with pytest.raises(PrivacyError, match="nothing is clipped"):
            stated(codec)
        with pytest.raises(PrivacyError, match="nothing is clipped"):
            noise_for(config(codec), 1.0, 1e-5)
    with pytest.raises(PrivacyError, match="nothing is clipped"):
        guarantees(parse_config({"codec": {"name": "gaussian", "noise": 1.0}}), 1e-5)


def test_nothing_is_said_where_statistics_of_batch_norm_go_without_noise() -> None:
    with pytest.raises(PrivacyError, match=r'batch_norm = "averaged" sends .* without noise'):
        stated(batch_norm="averaged")
    assert stated(batch_norm="local")["local"].epsilon == stated()["local"].epsilon


def test_without_noise_there_is_none_and_no_number_says_otherwise() -> None:
    rows = stated({"noise_multiplier": 0.0}, journal=True)
    assert "loss of a round's clients" in rows.pop("run folder").statement
    assert set(rows) == {"local", "aggregate", "central", "clients", "journal"}
    for row in rows.values():
        assert row.epsilon == math.inf
        assert row.statement == "no ε at all: there is no noise, or next to none"
        assert row.as_dict()["epsilon"] is None
        assert row.example.epsilon is None


def test_the_three_models_of_trust() -> None:
    """Replacing a client moves scalars by twice the bound: every multiplier is halved."""
    rows = stated()
    taken = rows["local"].releases
    assert 4 <= taken <= 16  # of 40 rounds at 10 %, the busiest of 1,000 clients
    assert rows["local"].epsilon == epsilon(0.4 / 2, taken, 1e-5).epsilon
    assert rows["aggregate"].epsilon == epsilon(0.4 * 10 / 2, taken, 1e-5).epsilon
    assert rows["central"].epsilon == epsilon(2.0, 40, 1e-5, sampling=FixedSize(100, 1_000)).epsilon
    assert rows["central"].epsilon < rows["aggregate"].epsilon < rows["local"].epsilon
    assert rows["central"].noise_multiplier == pytest.approx(2.0)
    assert "ε = " in rows["central"].statement


@pytest.mark.parametrize(
    ("codec", "changes", "why"),
    [
        ({"keys": "sent"}, {}, "other directions"),
        ({"keys": "partitioned"}, {}, "other directions"),
        ({"bits": 8}, {}, "rounded one by one"),
        ({"bits": 1}, {}, "rounded one by one"),
        ({}, {"dropout": 0.1}, "dropout"),
        ({}, {"weighting": "examples"}, "weights"),
    ],
)
def test_noise_of_others_is_counted_only_where_it_adds_up(
    codec: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    rows = stated(codec, **changes)
    assert rows["aggregate"].epsilon == rows["local"].epsilon
    assert any(why in assumption for assumption in rows["aggregate"].assumptions)


def test_a_row_says_why_it_holds_for_whom_it_names() -> None:
    """With replay, "central" is for outsiders alone, and other clients have the ε of single updates."""
    rows = stated(downlink="replay")
    assert rows["clients"].epsilon == rows["journal"].epsilon == rows["local"].epsilon
    assert "each client by themselves" in rows["clients"].sees
    assert rows["central"].against.startswith("outsiders who see nothing but models")
    assert any("the server and all clients can be trusted" in text for text in rows["central"].assumptions)
    assert any("header" in text for text in rows["clients"].assumptions)
    assert rows["run folder"].as_dict()["epsilon"] is None
    assert "without noise" in rows["run folder"].as_dict()["none_because"]


def test_who_took_part_is_no_secret_where_weights_tell_it() -> None:
    rows = stated(weighting="examples")
    assert rows["central"].sampling == "not counted on"
    assert rows["central"].epsilon == rows["local"].epsilon
    assert any("is not hidden: weights tell it" in text for text in rows["central"].assumptions)


def test_every_client_in_league_takes_off_its_noise() -> None:
    alone, five = (
        {row.model: row for row in guarantees(config(), 1e-5, colluding=colluding)}["clients"] for colluding in (1, 5)
    )
    assert alone.epsilon < five.epsilon
    assert five.epsilon == epsilon(0.4 * math.sqrt(95) / 2, 40, 1e-5, sampling=FixedSize(100, 995)).epsilon
    assert any("that of 5 of a round's clients is taken off, and 95 are left" in text for text in five.assumptions)


def test_noise_for_a_view_that_no_noise_helps_is_left_out() -> None:
    everybody = config(clients=100, downlink="replay")
    needed = noise_for(everybody, 6.0, 1e-5, colluding=5)
    assert set(needed) == {"local", "aggregate", "central", "clients", "journal"}
    assert needed["clients"] == needed["journal"] == needed["local"] > needed["central"]


@pytest.mark.parametrize(
    ("changes", "smaller", "reason"),
    [
        ({"clients": 4_000, "batch": 1}, False, "who holds one"),
        ({"clients": 100, "clients_per_round": 10, "batch": 1}, True, "1 of 40 examples"),
        ({"clients": 100, "clients_per_round": 10, "batch": 40}, False, "is not counted on"),
        ({"clients": 100, "clients_per_round": 10, "local_steps": 2, "local_lr": 0.1}, False, "is not counted on"),
        ({"clients": 100, "clients_per_round": 10, "local_epochs": 1, "local_lr": 0.1}, False, "is not counted on"),
        ({"clients": 100, "clients_per_round": 10, "batch": 30}, False, "no smaller bound"),
        ({"clients": 1_000, "dataset": "python-docs", "pixels": "raw"}, False, "if no other client holds"),
    ],
)
def test_epsilon_of_an_example(changes: dict[str, Any], smaller: bool, reason: str) -> None:
    row = stated({"noise_multiplier": 2.0}, **changes)["local"]
    assert row.unit == "client"
    assert reason in row.example.reason
    assert row.example.epsilon is not None
    assert (row.example.epsilon < row.epsilon) is smaller
    assert row.as_dict()["example"]["epsilon"] == row.example.epsilon


def test_batches_are_no_secret_from_who_has_the_seed() -> None:
    """The header of a journal holds the seed, and which examples are in a batch follows from it."""
    changes = {"clients": 100, "clients_per_round": 100, "batch": 1}
    rows = stated({"noise_multiplier": 2.0}, **changes, downlink="replay")
    for model in ("clients", "journal"):
        assert rows[model].example.epsilon == rows[model].epsilon
        assert "seed" in rows[model].example.reason
    others = stated({"noise_multiplier": 2.0}, **changes)
    for row in (others["local"], others["clients"], rows["central"]):
        assert row.example.epsilon is not None
        assert row.example.epsilon < row.epsilon
        assert "if clients draw it themselves" in row.example.reason


def test_noise_beyond_what_accountants_take() -> None:
    for noise in (1e9, 1e15, 1e300):
        assert all(
            row.epsilon < 1 for model, row in stated({"noise_multiplier": noise}).items() if model != "run folder"
        )


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.0, math.nan])
def test_a_delta_that_is_none_is_named_as_what_is_wrong(delta: float) -> None:
    with pytest.raises(PrivacyError, match="expected a probability"):
        guarantees(config(), delta)


def test_clients_that_share_examples_have_none_for_an_example() -> None:
    row = stated(clients=5_000)["central"]
    assert row.example.epsilon is None
    assert row.example.statement.startswith("no ε: clients outnumber examples")


def test_directions_of_their_own_give_away_who_took_part() -> None:
    rows = stated({"keys": "derived"})
    assert rows["central"].sampling == "not counted on"
    assert rows["central"].epsilon == rows["local"].epsilon


def test_sampling_is_counted_only_where_it_helps() -> None:
    """The bound for fixed sizes is worse than none where half of the clients take part."""
    rows = stated(clients=100, clients_per_round=50)
    assert rows["central"].sampling == "not counted on"
    assert rows["central"].epsilon == rows["aggregate"].epsilon


def test_everybody_in_every_round() -> None:
    rows = stated(clients=100, clients_per_round=100)
    assert {row.releases for row in rows.values()} == {40}
    assert rows["clients"].epsilon == epsilon(0.4 * math.sqrt(99) / 2, 40, 1e-5).epsilon > rows["central"].epsilon


def test_a_delta_that_gives_a_client_away_is_pointed_out() -> None:
    row = guarantees(config(), 0.01)[0]
    assert any("lower it" in assumption for assumption in row.assumptions)
    assert not any("lower it" in assumption for assumption in stated()["local"].assumptions)


def test_noise_for_an_epsilon_is_what_gives_it() -> None:
    needed = noise_for(config(), 6.0, 1e-5)
    assert needed["central"] < needed["aggregate"] < needed["local"]
    for model in ("local", "central"):
        assert 5.98 < stated({"noise_multiplier": needed[model]})[model].epsilon <= 6.0


def secure(downlink: str = "model", **changes: Any) -> dict[str, Guarantee]:
    sizes = {"clients": 1_000, "clients_per_round": 100, "rounds": 40, "downlink": downlink}
    values: dict[str, Any] = {**sizes, "codec": {**CODEC, "clip": None}}
    values["codec"].pop("noise_multiplier")
    section = {"clip": 1.0, "noise_multiplier": 0.4, "dropouts": 0.19, **changes}
    return {row.model: row for row in guarantees(parse_config({**values, "secure": section}), 1e-5)}


def test_a_secure_sum_counts_the_noise_of_those_who_must_stay() -> None:
    rows = secure()
    taken = rows["aggregate"].releases
    assert rows["aggregate"].epsilon == epsilon(0.4 * 9 / 2, taken, 1e-5).epsilon  # 81 of 100
    assert rows["central"].epsilon == epsilon(1.8, 40, 1e-5, sampling=FixedSize(100, 1_000)).epsilon
    assert any("81 of 100" in text for text in rows["aggregate"].assumptions)


def test_noise_that_the_server_may_know_hides_nobody() -> None:
    rows = secure(colluding=0.17)
    assert rows["aggregate"].epsilon == epsilon(0.4 * 8 / 2, rows["aggregate"].releases, 1e-5).epsilon  # 64 of 100
    assert any("that of 17 of them, and 64 are left" in text for text in rows["aggregate"].assumptions)
    assert rows["central"].epsilon == secure()["central"].epsilon  # who trusts the server does not mind its friends


def test_other_clients_of_a_secure_sum_know_their_noise_and_who_took_part() -> None:
    rows = secure(downlink="replay")
    assert rows["clients"].epsilon == epsilon(0.4 * math.sqrt(80) / 2, rows["clients"].releases, 1e-5).epsilon
    assert rows["journal"].epsilon == rows["aggregate"].epsilon
    assert any("no client is in league" in text for text in rows["aggregate"].assumptions)
    friends = secure(colluding=0.17)
    assert friends["clients"].epsilon == friends["aggregate"].epsilon
    assert any("each other's keys" in text for text in friends["clients"].assumptions)
    assert "nobody does while the secure sum holds" in rows["local"].against


def test_the_example_of_the_page_is_what_the_command_says() -> None:
    """docs/protection.md, "An example": each number of the table, to the digits that it has there."""
    codec = {"name": "mpdd", "m": 400, "family": "hadamard", "keys": "shared", "clip": 2.0, "noise_multiplier": 0.5}
    unprotected = {"name": "mpdd", "m": 400, "family": "hadamard", "keys": "shared"}
    sizes = {"clients": 4_000, "clients_per_round": 400, "batch": 1, "rounds": 50}
    columns: list[dict[str, Any]] = [
        {"codec": codec},
        {"codec": codec, "downlink": "replay"},
        {"codec": codec, "downlink": "replay", "downlink_bits": 4},
        {"codec": unprotected, "secure": {"clip": 2.0, "noise_multiplier": 0.5}},
        {"codec": {**codec, "keys": "partitioned"}},
    ]
    table = (ROOT / "docs" / "protection.md").read_text(encoding="utf-8").partition("### An example")[2]
    for column, changes in enumerate(columns):
        parsed = parse_config({**sizes, **changes})
        for name, colluding in (
            ("local", None),
            ("aggregate", None),
            ("clients", 1),
            ("clients", 40),
            ("central", None),
        ):
            row = {row.model: row for row in guarantees(parsed, 1e-5, colluding)}[name]
            words = {1: "one alone", 40: "40 in league"}.get(colluding or 0, "")
            (line,) = re.findall(rf"^\| `{name}`{', ' + words if words else ''} \|(.*)$", table, re.MULTILINE)
            (printed,) = re.findall(r"\d+(?:\.\d+)?", line.split("|")[column])[:1]
            digits = len(printed.partition(".")[2])
            assert f"{row.epsilon:.{digits}f}" == printed


def test_what_neighbours_may_fail_by_is_in_delta() -> None:
    few = secure(neighbours=80)["aggregate"]
    expected = epsilon(0.4 * 9 / 2, few.releases, 1e-5 - 40 * 2.0**-40).epsilon
    assert (few.epsilon, few.delta) == (expected, 1e-5)
    assert any("does not depend on the order" in text for text in few.assumptions)
    config = parse_config(
        {
            "clients": 1_000,
            "clients_per_round": 100,
            "rounds": 40,
            "codec": {"name": "mpdd", "m": 16, "family": "hadamard", "keys": "shared"},
            "secure": {"clip": 1.0, "noise_multiplier": 0.4, "neighbours": 80},
        }
    )
    with pytest.raises(PrivacyError, match="may hide less"):
        guarantees(config, 1e-12)


def test_noise_of_a_few_steps_is_not_counted_as_one() -> None:
    with pytest.raises(PrivacyError, match="too narrow"):
        secure(ring_bits=16, noise_multiplier=0.005)
    assert secure(ring_bits=24, noise_multiplier=0.005)["aggregate"].epsilon < math.inf
