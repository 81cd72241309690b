"""What a config guarantees to whom: an (ε, δ) with neighbours, adversary and assumptions, or none at all."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedmpdd.codecs import MPDD
from fedmpdd.codecs.discrete_gaussian import NEGLIGIBLE, closeness
from fedmpdd.errors import PrivacyError
from fedmpdd.federation import RunConfig
from fedmpdd.federation.sampling import most_participations
from fedmpdd.federation.sections import SecureConfig
from fedmpdd.privacy.accounting import FixedSize, Spent, epsilon, noise_multiplier_for
from fedmpdd.secure_sum.neighbours import SECRECY

NEIGHBOURS = "all gradients of one client replaced by any others"
PROTECTS = "everything one client holds, and so any one example that no other client holds"
# Two clipped vectors differ by up to twice their bound.
REPLACEMENT = 2


@dataclass(frozen=True)
class Guarantee:
    """One line of what can be said: ε is infinite where nothing can."""

    model: str  # who is trusted: "local", "aggregate" or "central"
    against: str
    epsilon: float
    delta: float
    accountant: str
    noise_multiplier: float  # deviation of the noise that hides a client, divided by what a neighbour changes
    releases: int  # that were composed
    sampling: str
    assumptions: tuple[str, ...]
    neighbours: str = NEIGHBOURS
    protects: str = PROTECTS

    def as_dict(self) -> dict[str, Any]:
        """Return the guarantee as it stands in the JSON document, an infinite ε as null."""
        return {**asdict(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}

    @property
    def statement(self) -> str:
        """The ε in words."""
        if math.isinf(self.epsilon):
            return "no ε at all: there is no noise, or next to none"
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g}"


@dataclass(frozen=True)
class _Route:
    """One way to bound ε: noise of so many updates in what is seen, over so many releases."""

    updates: int
    releases: int
    sampling: FixedSize | None = None

    @property
    def gain(self) -> float:
        """What turns a noise multiplier of the config into one of the accountant's."""
        return math.sqrt(self.updates) / REPLACEMENT

    def spent(self, noise_multiplier: float, delta: float) -> Spent:
        return epsilon(noise_multiplier * self.gain, self.releases, delta, sampling=self.sampling)

    def noise_for(self, wanted: float, delta: float) -> float:
        return noise_multiplier_for(wanted, self.releases, delta, sampling=self.sampling) / self.gain


@dataclass(frozen=True)
class _Model:
    """Who is trusted with what, and the ways to bound ε then: each holds, so the smallest does."""

    name: str
    against: str
    routes: tuple[_Route, ...]
    assumptions: tuple[str, ...]
    failure: float = 0.0  # how likely it does not hold at all, which δ has to cover

    def delta_left(self, delta: float) -> float:
        if delta <= self.failure:
            raise PrivacyError(
                f"δ = {delta:g}: secure sums with neighbours may hide less with probability {self.failure:.2g}; take a "
                "larger δ, or neighbours = 0"
            )
        return delta - self.failure


def guarantees(config: RunConfig, delta: float) -> list[Guarantee]:
    """Return what a config guarantees in each model of trust, or raise PrivacyError if nothing is clipped."""
    noise = _clipped_noise(config)
    return [_best(model, noise, delta) for model in _models(config, delta)]


def noise_for(config: RunConfig, wanted: float, delta: float) -> dict[str, float]:
    """Return, by model of trust, the codec.noise_multiplier that gives a config the ε that is wanted."""
    _clipped_noise(config)
    return {
        model.name: min(route.noise_for(wanted, model.delta_left(delta)) for route in model.routes)
        for model in _models(config, delta)
    }


def _clipped_noise(config: RunConfig) -> float:
    if config.secure is not None:
        return config.secure.noise_multiplier
    if config.codec.clip is None:
        raise PrivacyError(
            "nothing is clipped, so that one client can change an update by any amount and there is no ε, whatever the "
            "noise and the number of bits; set codec.clip and codec.noise_multiplier, or those of secure "
            "(docs/protection.md)"
        )
    return config.codec.noise_multiplier


def _best(model: _Model, noise: float, delta: float) -> Guarantee:
    spent, route = min(
        ((route.spent(noise, model.delta_left(delta)), route) for route in model.routes),
        key=lambda found: found[0].epsilon,
    )
    sample = route.sampling
    return Guarantee(
        model=model.name,
        against=model.against,
        epsilon=spent.epsilon,
        delta=delta,
        accountant=spent.accountant,
        noise_multiplier=noise * route.gain,
        releases=route.releases,
        sampling=f"{sample.size} of {sample.population} clients" if sample else "not counted on",
        assumptions=(*model.assumptions, *_rests_on(route)),
    )


def _rests_on(route: _Route) -> tuple[str, ...]:
    if route.sampling is not None:
        return ("who takes part in a round is drawn at random and stays secret",)
    return (f"a client takes part in {route.releases} rounds at most, as with this config's seed",)


def _models(config: RunConfig, delta: float) -> list[_Model]:
    taken = most_participations(config)
    added, why = _noise_that_adds_up(config)
    always = ["noise is secret and fresh: the operating system's, not a simulation's seed"]
    if delta >= 1 / config.clients:
        always.append(f"δ = {delta:g} is not below 1/{config.clients}, one over the clients: lower it")
    aggregate = _Route(added, taken)
    # Who trusts the server has no reason to mind its friends.
    trusted, why_trusted = (added, why) if config.secure is None else _who_must_stay(config.secure, config.per_round)
    central: tuple[_Route, ...] = (_Route(trusted, taken),)
    # Where clients have directions of their own, the mean itself shows who took part.
    together = config.codec.keys == "shared" or config.secure is not None
    if together and config.per_round < config.clients:
        central = (*central, _Route(trusted, config.rounds, FixedSize(config.per_round, config.clients)))
    return [
        _Model("local", "the server, and whoever reads updates", (_Route(1, taken),), tuple(always)),
        _Model(
            "aggregate",
            "a server that sees the sum of a round and who took part, as with secure sums",
            (aggregate,),
            (*always, why, *_of_neighbours(config), "every client that is counted adds its noise"),
            failure=config.rounds * SECRECY if config.secure is not None and config.secure.neighbours else 0.0,
        ),
        _Model(
            "central",
            "whoever sees the models, while a trusted server sees updates and keeps them to itself",
            central,
            (*always, why_trusted, "losses and accuracies are not shown: they have no noise"),
        ),
    ]


def _in_a_secure_sum(secure: SecureConfig, clients: int) -> tuple[int, str]:
    """Integer noise of all who stay; a sum of such noises is one of its own kind, but for next to nothing."""
    if secure.noise_multiplier > 0:
        apart = closeness(secure.noise_in_steps(clients), clients)
        if apart > NEGLIGIBLE:
            raise PrivacyError(
                f"secure.ring_bits = {secure.ring_bits}: noise of {secure.noise_in_steps(clients):.2g} steps is too "
                "narrow for sums of it to be counted as one; take more bits, or more noise"
            )
    hiding, (_, reason) = secure.hiding(clients), _who_must_stay(secure, clients)
    if friends := secure.friends(clients):
        reason += f"; the server may know that of {friends} of them, and {hiding} are left"
    return hiding, reason


def _who_must_stay(secure: SecureConfig, clients: int) -> tuple[int, str]:
    stay = secure.threshold(clients)
    return stay, f"the noise of {stay} of {clients} clients adds up, those that must stay for a sum to be seen"


def _of_neighbours(config: RunConfig) -> tuple[str, ...]:
    if config.secure is None or not config.secure.neighbours:
        return ()
    return (
        "who drops out, and who is in league with the server, does not depend on the order of clients in a round",
        f"that secrets shared with a few hide less, once in 2^40 rounds, is in δ, for {config.rounds} rounds",
    )


def _noise_that_adds_up(config: RunConfig) -> tuple[int, str]:
    """How many updates' noise hides one client's scalars in the mean, and why."""
    if config.secure is not None:
        return _in_a_secure_sum(config.secure, config.per_round)
    codec = config.codec.build()
    assert isinstance(codec, MPDD)  # nothing else can be clipped
    if config.codec.keys != "shared":
        return 1, (
            f'noise of other clients is not counted on: keys = "{config.codec.keys}" gives them other directions, so '
            'that it lies elsewhere; keys = "shared" adds it up'
        )
    if codec.bits < 32:
        return 1, (
            f"noise of other clients is not counted on: scalars of {codec.bits} bits are rounded one "
            "by one, and their sum is no function of the sum of noisy scalars; bits = 32 adds it up"
        )
    if config.dropout > 0 or config.weighting != "equal":
        return 1, (
            "noise of other clients is not counted on: with dropout, or weights by examples, there may be none to "
            'speak of; dropout = 0 and weighting = "equal" add it up'
        )
    return config.per_round, f"the noise of all {config.per_round} clients of a round adds up, on shared directions"
