"""ε of each view, composed here from dp-accounting alone, and bounded from below by attacks that were played.

Nothing here asks fedmpdd.guarantees.accounting: the noise, the releases and the samples of each row are written out.
"""

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import dp_accounting
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from fedmpdd.codecs import MPDD
from fedmpdd.guarantees.guarantees import guarantees
from fedmpdd.simulation import RunConfig, parse_config, sampling
from fedmpdd.uplink import Uplink
from fedmpdd.uplink.protection import Protection
from fedmpdd.wire.bundle import unpack_bundle

CLIENTS, SELECTED, ROUNDS, DELTA, NOISE = 600, 60, 20, 1e-5, 0.5


def config_of(**changes: Any) -> RunConfig:
    codec = {"name": "mpdd", "m": 16, "keys": "shared", "clip": 1.0, "noise_multiplier": NOISE}
    values = {"clients": CLIENTS, "clients_per_round": SELECTED, "rounds": ROUNDS, **changes}
    if "secure" in changes:
        codec = {"name": "mpdd", "m": 16, "keys": "shared"}
    return parse_config({**values, "codec": {**codec, **changes.get("codec", {})}})


def busiest(config: RunConfig) -> int:
    counts = Counter(int(client) for k in range(config.rounds) for client in sampling.sample_clients(config, k))
    return max(counts.values())


@cache
def gaussian(hiding: int, releases: int, delta: float = DELTA, noise: float = NOISE) -> float:
    """By PLD, which adds up privacy losses numerically; replacing one vector moves a sum by twice the bound."""
    event = dp_accounting.GaussianDpEvent(noise * math.sqrt(hiding) / 2)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(dp_accounting.SelfComposedDpEvent(event, releases)).get_epsilon(delta))


@cache
def sampled(hiding: int, size: int, population: int, releases: int, noise: float = NOISE) -> float:
    event = dp_accounting.GaussianDpEvent(noise * math.sqrt(hiding) / 2)
    of_sample = dp_accounting.SampledWithoutReplacementDpEvent(population, size, event)
    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=replaced)
    return float(accountant.compose(dp_accounting.SelfComposedDpEvent(of_sample, releases)).get_epsilon(DELTA))


SECURE = {"clip": 1.0, "noise_multiplier": NOISE, "dropouts": 0.2}
# Whose noise hides a client, by row; a pair is of a secret sample: hiding clients, and out of how many they are drawn.
SETTINGS: list[tuple[dict[str, Any], dict[str, int | tuple[int, int]]]] = [
    ({}, {"local": 1, "aggregate": 60, "central": (60, 600), "clients": (59, 599)}),
    ({"journal": True}, {"local": 1, "central": (60, 600), "clients": (59, 599), "journal": 1}),
    ({"downlink": "replay"}, {"local": 1, "aggregate": 60, "central": (60, 600), "clients": 1, "journal": 1}),
    (
        {"downlink": "replay", "downlink_bits": 4},
        {"local": 1, "aggregate": 60, "central": (60, 600), "clients": 59, "journal": 60},
    ),
    ({"codec": {"keys": "partitioned"}}, {"local": 1, "aggregate": 1, "central": 1, "clients": 1}),
    ({"codec": {"keys": "sent"}, "downlink": "replay"}, {"local": 1, "central": 1, "clients": 1, "journal": 1}),
    ({"weighting": "examples"}, {"local": 1, "aggregate": 1, "central": 1, "clients": 1}),
    ({"secure": SECURE}, {"local": 1, "aggregate": 48, "central": (48, 600), "clients": 47}),
    ({"secure": {**SECURE, "colluding": 0.1}}, {"aggregate": 42, "central": (48, 600), "clients": 42}),
    ({"secure": SECURE, "downlink": "replay"}, {"aggregate": 48, "clients": 47, "journal": 48}),
]


@pytest.mark.parametrize(("changes", "expected"), SETTINGS)
def test_epsilon_is_that_of_dp_accounting_called_directly(
    changes: dict[str, Any], expected: dict[str, int | tuple[int, int]]
) -> None:
    config = config_of(**changes)
    rows = {row.model: row for row in guarantees(config, DELTA)}
    for model, part in expected.items():
        row = rows[model]
        if isinstance(part, int):
            assert row.epsilon == pytest.approx(gaussian(part, busiest(config)), rel=2e-3)
        else:
            hiding, population = part
            assert row.epsilon == pytest.approx(sampled(hiding, SELECTED, population, ROUNDS), rel=1e-9)
    assert rows["run folder"].epsilon == math.inf


def test_epsilon_with_neighbours_has_less_of_delta() -> None:
    config = config_of(secure={**SECURE, "neighbours": 44})
    (row,) = [row for row in guarantees(config, 1e-10) if row.model == "aggregate"]
    left = 1e-10 - ROUNDS * 2.0**-40
    exact = dp_accounting.get_epsilon_gaussian(NOISE * math.sqrt(48) / 2 / math.sqrt(busiest(config)), left)
    assert row.epsilon == pytest.approx(exact, rel=1e-9)
    assert left < 0.9 * 1e-10


def test_epsilon_of_an_example_is_that_of_a_sampled_batch() -> None:
    """100 clients hold 40 of the 4,000 digits each, and take one of them a round."""
    config = config_of(clients=100, clients_per_round=10, batch=1, codec={"noise_multiplier": 2.0})
    rows = {row.model: row for row in guarantees(config, DELTA)}
    for model, hiding in (("local", 1), ("aggregate", 10)):
        expected = sampled(hiding, 1, 40, busiest(config), noise=2.0)
        assert rows[model].example.epsilon == pytest.approx(expected, rel=1e-9)
        assert rows[model].epsilon == pytest.approx(gaussian(hiding, busiest(config), noise=2.0), rel=2e-3)


def test_discrete_noise_of_a_hundred_steps_counts_as_normal() -> None:
    """δ of one discrete Gaussian release, added up over all integers, at the ε of the normal one (docs: 1e-4)."""
    for deviation, shift in ((100, 200), (100, 100), (100, 33), (1_000, 333)):
        stated = dp_accounting.get_epsilon_gaussian(deviation / shift, DELTA)
        integers = np.arange(-20 * deviation, 20 * deviation + shift)
        here, there = (np.exp(-((integers - at) ** 2) / (2 * deviation**2)) for at in (0, shift))
        exact = np.maximum(there / there.sum() - math.exp(stated) * here / here.sum(), 0).sum()
        assert exact == pytest.approx(DELTA, rel=1e-4)


# ------------------------------------------------------------------------------------------------ attacks, played

ERROR = 5e-4  # of each of the two bounds on a rate: both hold with a probability of 99.9 %
D, M, VICTIM = 64, 16, 1
CODEC = MPDD(M, family="hadamard")


def lower_bound(hits: int, false_alarms: int, trials: int, delta: float) -> float:
    """ε that no (ε, δ) below it allows, from rates by Clopper and Pearson: P(hit) ≤ e^ε·P(false alarm) + δ."""
    least = beta.ppf(ERROR, hits, trials - hits + 1)
    most = beta.ppf(1 - ERROR, false_alarms + 1, trials - false_alarms)
    return math.log((least - delta) / most)


class Game:
    """A client holds one of two gradients that clipping brings to opposite ends; all the others hold zeros.

    Updates are encoded, framed, checked and put together as in a training, with noise of a seed that only the test has.
    """

    def __init__(self, config: RunConfig) -> None:
        private = config.codec.protection()
        assert private is not None
        self.config, self.private = config, private
        self.uplink = Uplink(CODEC, D, "shared", protection=private, mean_bits=config.downlink_bits)
        self.gradient = np.random.default_rng(0).standard_normal((1, D)).astype(np.float32) * 100

    def worst(self, key: Any) -> NDArray[np.float64]:
        """The clipped scalars of the gradient: who looks on knows what to look for."""
        (update,) = Protection(CODEC, clip=self.private.clip).encode(self.gradient, [key])
        return np.asarray(update.arrays[0], np.float64)

    def rounds(self, config: RunConfig, sign: int) -> Iterator[tuple[int, NDArray[np.int64], Any, Any]]:
        """Play the rounds that the victim takes part in: number, clients, key, what the server made of it."""
        for k in range(config.rounds):
            clients = sampling.sample_clients(config, k)
            if VICTIM not in clients:
                continue  # nothing of the victim is in it
            gradients = np.where(clients[:, None] == VICTIM, sign * self.gradient, np.float32(0))
            keys = sampling.round_keys(config, k, clients)
            noise = sampling.noise_sources(config, k, clients)
            uploads = self.uplink.encode(k, gradients, keys, clients.tolist(), noise)
            yield k, clients, keys[0], self.uplink.mean(self.uplink.through_frames(k, uploads))

    def log_odds(self, scalars: NDArray[np.float64], key: Any) -> float:
        """How much likelier such noisy scalars are with the one gradient than with the other."""
        return float(2 * scalars @ self.worst(key) / self.private.noise_deviation**2)


def measure(play: Any, threshold: float, trials: int, delta: float) -> float:
    hits = sum(play(trial, 1) > threshold for trial in range(trials))
    false_alarms = sum(play(trials + trial, -1) > threshold for trial in range(trials))
    return lower_bound(hits, false_alarms, trials, delta)


def test_a_client_that_is_sent_bundles_tells_more_than_models_would() -> None:
    """The ε of models, which was stated for replay too, is exceeded by a client that reads the bundles it is sent.

    2 × 2,000 trainings of two rounds; a bound above the true ε comes up with a probability below 0.1 %.
    """
    codec = {"name": "mpdd", "m": M, "family": "hadamard", "keys": "shared", "clip": 1.0, "noise_multiplier": 0.5}
    sizes = {"clients": 400, "clients_per_round": 40, "rounds": 2, "downlink": "replay"}
    game = Game(parse_config({**sizes, "codec": codec}))

    def play(seed: int, sign: int) -> float:
        """The seed stands in the journal's header, and says which update of a bundle is the victim's."""
        seeded, odds = game.config.model_copy(update={"seed": seed}), 0.0
        for _, clients, key, received in game.rounds(seeded, sign):
            bundle = unpack_bundle(received.bundle().pack(), CODEC, D)
            update = bundle.updates[int(np.flatnonzero(clients == VICTIM)[0])]
            odds += game.log_odds(update.arrays[0].astype(np.float64), key)
        return odds

    measured = measure(play, threshold=6.0, trials=2_000, delta=DELTA)
    stated = {row.model: row.epsilon for row in guarantees(game.config, DELTA)}
    of_models = sampled(40, 40, 400, 2)
    assert stated["central"] == pytest.approx(of_models, rel=1e-9) == pytest.approx(1.15, abs=0.01)
    assert of_models < 3 < measured < stated["clients"]


def test_a_client_takes_its_own_noise_off_the_mean() -> None:
    """Of two clients in a round the one sees the other's update in the model, whatever noise it added itself.

    2 × 4,000 trainings of one round, at a δ that makes the bounds tight; a bound above the true ε comes up with a
    probability below 0.1 %.
    """
    delta = 0.05
    codec = {"name": "mpdd", "m": M, "family": "hadamard", "keys": "shared", "clip": 1.0, "noise_multiplier": 1.0}
    game = Game(parse_config({"clients": 2, "rounds": 1, "codec": codec}))

    def play(seed: int, sign: int) -> float:
        seeded, odds = game.config.model_copy(update={"seed": seed}), 0.0
        for k, clients, key, received in game.rounds(seeded, sign):
            # Directions are orthogonal: the mean of the scalars is read off the step of the model.
            (along,) = CODEC.encode(received.estimate()[np.newaxis], [key])
            total = along.arrays[0].astype(np.float64) * M / D * len(clients)
            (source,) = sampling.noise_sources(seeded, k, clients[clients != VICTIM])
            odds += game.log_odds(total - game.private.noise_deviation * source.standard_normal(M), key)
        return odds

    measured = measure(play, threshold=3.5, trials=4_000, delta=delta)
    stated = {row.model: row.epsilon for row in guarantees(game.config, delta)}
    of_models = gaussian(2, 1, delta, noise=1.0)
    assert stated["central"] == pytest.approx(of_models, rel=2e-3) == pytest.approx(2.68, abs=0.01)
    assert of_models < measured < stated["clients"]
    assert stated["clients"] == pytest.approx(gaussian(1, 1, delta, noise=1.0), rel=2e-3)
