"""Who sees what: every combination of downlink, keys, bits, sums and journal, against rules written out here."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import MPDD
from fedmpdd.directions import Key
from fedmpdd.errors import ConfigError, PrivacyError
from fedmpdd.guarantees.views import TRAINING_EXAMPLES, Holdings, View, holdings, views
from fedmpdd.simulation import RunConfig, make_federation, parse_config
from fedmpdd.tasks.data import DATASETS
from fedmpdd.uplink import Uplink

KEYS = ("sent", "derived", "partitioned", "shared")
SECURE: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"colluding": 0.1},
    {"neighbours": 44},
)  # neighbours: enough for a fifth of 60 gone
PROTECTED = {"clip": 1.0, "noise_multiplier": 0.5}
COMBINATIONS = itertools.product(
    ("model", "replay"), (None, 4), KEYS, (32, 8), SECURE, (None, True), ("equal", "examples"), (0.0, 0.1), (1, 2)
)


def config_of(
    downlink: str,
    downlink_bits: int | None,
    keys: str,
    bits: int,
    secure: dict[str, Any] | None,
    journal: bool | None,
    weighting: str,
    dropout: float,
    local_steps: int,
) -> RunConfig | None:
    """The config of a combination, or None where it is refused."""
    codec = {"name": "mpdd", "m": 16, "keys": keys, "bits": bits, **(PROTECTED if secure is None else {})}
    values = {
        "clients": 600,
        "clients_per_round": 60,
        "downlink": downlink,
        "downlink_bits": downlink_bits,
        "journal": journal,
        "weighting": weighting,
        "dropout": dropout,
        "local_steps": local_steps,
        "local_lr": 0.1 if local_steps > 1 else None,
        "codec": codec,
        "secure": None if secure is None else {**PROTECTED, "dropouts": 0.2, **secure},
    }
    try:
        return parse_config(values)
    except ConfigError:
        return None


def by_model(config: RunConfig, colluding: int | None = None) -> dict[str, View]:
    return {view.model: view for view in views(config, colluding)}


def test_every_combination() -> None:
    """Each number of hiding clients, and each secret sample, follows from five short rules."""
    seen = 0
    for combination in COMBINATIONS:
        config = config_of(*combination)
        downlink, downlink_bits, keys, bits, secure, journal, weighting, dropout, _ = combination
        if config is None:  # secure sums and rounded means want shared directions, and more
            assert keys != "shared" or secure is not None
            continue
        seen += 1
        rows = by_model(config)
        # 1. Noise adds up in a mean of equally weighted float32 scalars along shared directions, and in a secure sum.
        plain = keys == "shared" and bits == 32 and weighting == "equal" and dropout == 0
        in_mean = 48 if secure is not None else 60 if plain else 1
        # 2. A bundle is the mean where it is rounded or was never seen in parts; else it is all single updates.
        in_bundle = in_mean if downlink_bits or secure is not None else 1
        friends = 6 if secure and "colluding" in secure else 0
        # 3. Who takes part in a round knows its own noise.
        to_clients = in_bundle if downlink == "replay" else in_mean
        assert rows["local"].noises == 1
        assert rows["aggregate"].noises == max(1, in_mean - friends)
        assert rows["central"].noises == in_mean
        assert rows["clients"].noises == max(1, to_clients - max(1, friends))
        assert rows["run folder"].noises == 0
        # 4. A journal shows its bundles.
        assert ("journal" in rows) == (downlink == "replay" or bool(journal))
        if "journal" in rows:
            assert rows["journal"].noises == in_bundle
        # 5. A sample stays secret from who sees models alone, along shared directions and with equal weights.
        alike = keys == "shared" and weighting == "equal"
        secret = {model for model, row in rows.items() if not row.sample_is_known_because}
        to_others = {"clients"} if downlink == "model" and secure is None else set()
        assert secret == ({"central", *to_others} if alike else set())
    assert seen == 128 + 192 + 96  # shared keys, other keys, secure sums


def test_refused_beside_protection() -> None:
    """What would need a row of its own is no config: memories, and codecs that cannot be clipped."""
    with pytest.raises(ConfigError, match="error_feedback takes back"):
        parse_config({"codec": {"name": "mpdd", "m": 16, **PROTECTED, "error_feedback": True}})
    for codec in ({"name": "topk", "k": 5}, {"name": "gaussian", "noise": 1.0}, {"name": "eden", "bits": 1}):
        with pytest.raises(ConfigError, match="has no scalars along directions"):
            parse_config({"codec": {**codec, **PROTECTED}})


def test_a_control_is_made_of_what_everybody_saw() -> None:
    """Clients subtract a mean of earlier bundles before they clip: nothing more is shown."""
    codec = {"name": "mpdd", "m": 16, "keys": "shared", **PROTECTED}
    plain = {"clients": 60, "downlink": "replay", "codec": codec}
    assert views(parse_config({**plain, "server": {"control": 0.1}})) == views(parse_config(plain))


def test_clients_in_league() -> None:
    config = config_of("model", None, "shared", 32, None, None, "equal", 0.0, 1)
    assert config is not None
    assert [by_model(config, c)["clients"].noises for c in (1, 2, 59, 60, 599)] == [59, 58, 1, 1, 1]
    assert by_model(config, 5)["central"] == by_model(config)["central"]
    for wrong in (0, -1, 600):
        with pytest.raises(PrivacyError, match="from 1 to all but one"):
            views(config, wrong)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"clients": 4_000}, Holdings(1, False)),
        ({"clients": 300}, Holdings(13, False)),
        ({"clients": 4_001}, Holdings(None, True)),
        ({"clients": 100, "partition": {"kind": "classes"}}, Holdings(None, False)),
        ({"clients": 300, "partition": {"kind": "dirichlet"}}, Holdings(13, False)),
        ({"clients": 100, "dataset": "python-docs", "pixels": "raw"}, Holdings(None, None)),
    ],
)
def test_examples_of_clients(changes: dict[str, Any], expected: Holdings) -> None:
    config = parse_config(changes)
    assert holdings(config) == expected
    if expected.fewest is not None:
        federation = make_federation(config)
        sizes = [federation.partition.examples_of(client).size for client in range(config.clients)]
        assert min(sizes) == expected.fewest


def test_numbers_of_examples() -> None:
    assert set(TRAINING_EXAMPLES) < set(DATASETS)
    assert {name: TRAINING_EXAMPLES[name] for name in ("mnist-5k", "mnist", "cifar-10")} == {
        "mnist-5k": 4_000,
        "mnist": 60_000,
        "cifar-10": 50_000,
    }


@pytest.mark.parametrize(
    ("changes", "updates"),
    [({}, 6), ({"downlink_bits": 4}, 1), ({"secure": {"clip": 1.0, "noise_multiplier": 0.5}}, 1)],
)
def test_bundles_of_the_engine_hold_what_the_table_says(changes: dict[str, Any], updates: int) -> None:
    """Six single updates, or one that is their mean."""
    from fedmpdd.wire.bundle import unpack_bundle

    codec = {"name": "mpdd", "m": 16, "keys": "shared", **({} if "secure" in changes else PROTECTED)}
    values = {"model": "logistic", "pixels": "unit", "clients": 12, "clients_per_round": 6, "downlink": "replay"}
    config = parse_config({**values, **changes, "codec": codec})
    federation = make_federation(config)
    federation.run_round()
    federation.close()
    bundle = unpack_bundle(federation.bundle, config.bundle_codec(federation.codec, 0), federation.model.d)
    assert len(bundle.updates) == updates
    assert (by_model(config)["clients"].exposure.noises > 1) == (updates == 1)
    assert federation.journal_header.config["seed"] == config.seed  # which samples follow from


def test_weights_by_examples_tell_who_took_part() -> None:
    """With a client of 1,000 examples among nine of one, the mean has the noise of one client instead of ten.

    The norm of 64 normal numbers is off by a half with a probability below 1e-6, in any of the 40 means.
    """
    config = config_of("model", None, "shared", 32, None, None, "examples", 0.0, 1)
    assert config is not None
    codec, d = MPDD(64, family="hadamard"), 256
    private = parse_config({"codec": {"name": "mpdd", "m": 64, "family": "hadamard", **PROTECTED}}).codec.protection()
    assert private is not None
    uplink = Uplink(codec, d, "shared", protection=private)
    widths: dict[float, list[float]] = {1.0: [], 1_000.0: []}
    for weight, seed in itertools.product(widths, range(20)):
        keys = [Key(seed)] * 10
        noise = [np.random.default_rng([seed, int(weight), client]) for client in range(10)]
        uploads = uplink.encode(0, np.zeros((10, d), np.float32), keys, range(10), noise)
        mean = uplink.mean(uploads, [weight, *[1.0] * 9])
        widths[weight].append(float(np.linalg.norm(mean.estimate())))
    assert max(widths[1.0]) < min(widths[1_000.0])
    assert "wider or narrower" in by_model(config)["central"].sample_is_known_because


def test_a_robust_mean_adds_no_noise_of_others() -> None:
    """Its weights follow from each update: how much noise of the others is in it, a client or liar can choose."""
    values: dict[str, Any] = {"clients": 100, "clients_per_round": 20, "codec": {"m": 8, "keys": "shared", **PROTECTED}}
    for robust, noises, sampled in ((None, 20, True), ({}, 1, False)):
        rows = by_model(parse_config({**values, "robust": robust}))
        assert rows["central"].exposure.noises == noises
        assert (rows["central"].sample_is_known_because == "") == sampled
        assert rows["clients"].noises == max(1, noises - 1)
