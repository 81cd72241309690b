"""What a config guarantees to whom: an (ε, δ) with neighbours, adversary and assumptions, or none at all.

Who sees what is in `fedmpdd.guarantees.views`; each view becomes one row here.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedmpdd.errors import PrivacyError
from fedmpdd.guarantees.accounting import FixedSize, Spent, epsilon, noise_multiplier_for
from fedmpdd.guarantees.views import View, holdings, views
from fedmpdd.simulation import RunConfig
from fedmpdd.simulation.sampling import most_participations

NEIGHBOURS = "all gradients of one client replaced by any others"
PROTECTS = "everything one client holds, and so any one example that no other client holds"
# Two clipped vectors differ by up to twice their bound.
REPLACEMENT = 2
NO_NOISE = "there is no noise, or next to none"


@dataclass(frozen=True)
class ExampleGuarantee:
    """What a row says of one example instead of a client: ε is None where nothing can be said."""

    epsilon: float | None
    reason: str

    @property
    def statement(self) -> str:
        """The ε in words."""
        number = "no ε" if self.epsilon is None else f"ε = {self.epsilon:.4g}"
        return f"{number}: {self.reason}"


@dataclass(frozen=True)
class Guarantee:
    """One line of what can be said: ε is infinite where nothing can."""

    model: str  # who is trusted: "local", "aggregate", "central"; or who looks on: "clients", "journal", "run folder"
    against: str
    epsilon: float
    delta: float
    accountant: str
    noise_multiplier: float  # deviation of the noise that hides a client, divided by what a neighbour changes
    releases: int  # that were composed
    sampling: str
    assumptions: tuple[str, ...]
    sees: str
    example: ExampleGuarantee
    none_because: str = NO_NOISE  # where ε is infinite
    unit: str = "client"
    neighbours: str = NEIGHBOURS
    protects: str = PROTECTS

    def as_dict(self) -> dict[str, Any]:
        """Return the guarantee as it stands in the JSON document, an infinite ε as null."""
        finite = math.isfinite(self.epsilon)
        return {
            **asdict(self),
            "epsilon": self.epsilon if finite else None,
            "none_because": None if finite else self.none_because,
        }

    @property
    def statement(self) -> str:
        """The ε in words."""
        if math.isinf(self.epsilon):
            return f"no ε at all: {self.none_because}"
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


def guarantees(config: RunConfig, delta: float, colluding: int | None = None) -> list[Guarantee]:
    """Return what a config guarantees against everybody who can look on, or raise PrivacyError if nothing is clipped.

    Args:
        config: the training.
        delta: the δ of (ε, δ), below one over the number of clients.
        colluding: how many clients put together what they see; by default one, or what `secure.colluding` says.

    Returns:
        A row for each view: "local", "aggregate", "central", "clients", "journal" where there is one, "run folder".
    """
    noise, taken = _clipped_noise(config), most_participations(config)
    return [_guarantee(config, view, taken, noise, delta) for view in views(config, colluding)]


def noise_for(config: RunConfig, wanted: float, delta: float, colluding: int | None = None) -> dict[str, float]:
    """Return the noise multiplier that gives a config the ε that is wanted, by view; views that no noise helps are out.

    It is codec.noise_multiplier, or secure.noise_multiplier where sums are secure.
    """
    _clipped_noise(config)
    taken = most_participations(config)
    return {
        view.model: min(route.noise_for(wanted, _delta_left(view, delta)) for route in _routes(config, view, taken))
        for view in views(config, colluding)
        if view.noises
    }


def _clipped_noise(config: RunConfig) -> float:
    if config.batch_norm == "averaged":
        raise PrivacyError(
            'batch_norm = "averaged" sends the means and variances of minibatches beside updates, without noise, so '
            'that there is no ε; use batch_norm = "local", or group norm in the place of batch norm'
        )
    if config.secure is not None:
        return config.secure.noise_multiplier
    if config.codec.clip is None:
        raise PrivacyError(
            "nothing is clipped, so that one client can change an update by any amount and there is no ε, whatever the "
            "noise and the number of bits; set codec.clip and codec.noise_multiplier, or those of secure "
            "(docs/protection.md)"
        )
    return config.codec.noise_multiplier


def _delta_left(view: View, delta: float) -> float:
    """What of δ is left when the failures of what hides clients are taken off."""
    if 0 < delta <= view.failure:
        raise PrivacyError(
            f"δ = {delta:g}: secure sums with neighbours may hide less with probability {view.failure:.2g}; take a "
            "larger δ, or neighbours = 0"
        )
    return delta - view.failure


def _routes(config: RunConfig, view: View, taken: int) -> tuple[_Route, ...]:
    """The ways to bound ε: each holds, so the smallest does."""
    routes = [_Route(view.noises, taken)]
    # Who looks on knows which rounds were theirs: the others are drawn from the rest.
    population = config.clients - view.known_noise
    if not view.sample_is_known_because and config.per_round < population:
        routes.append(_Route(view.noises, config.rounds, FixedSize(config.per_round, population)))
    return tuple(routes)


def _guarantee(config: RunConfig, view: View, taken: int, noise: float, delta: float) -> Guarantee:
    left = _delta_left(view, delta)
    spent, route = min(
        ((route.spent(noise, left), route) for route in _routes(config, view, taken)), key=lambda pair: pair[0].epsilon
    )
    sample = route.sampling
    return Guarantee(
        model=view.model,
        against=view.who,
        epsilon=spent.epsilon,
        delta=delta,
        accountant=spent.accountant,
        noise_multiplier=noise * route.gain,
        releases=route.releases,
        sampling=f"{sample.size} of {sample.population} clients" if sample else "not counted on",
        assumptions=_assumptions(config, view, route, delta),
        sees=view.sees,
        example=_of_an_example(config, view, spent.epsilon, _Route(view.noises, taken), noise, left),
        none_because=NO_NOISE if view.noises else view.exposure.reason,
    )


def _assumptions(config: RunConfig, view: View, route: _Route, delta: float) -> tuple[str, ...]:
    """What a row rests on, in words; nothing where it promises nothing."""
    if not view.noises:
        return ()
    rests_on = [
        "noise is secret and fresh: the operating system's, not a simulation's seed",
        "losses and metrics of clients are neither sent nor shown: they have no noise",
        *([view.exposure.reason] if view.model != "local" else []),
        *_known_noise(view),
        *view.assumptions,
    ]
    if view.noises > 1:
        rests_on.append("every client that is counted adds its noise")
    if config.dropout > 0 or config.secure is not None:
        rests_on.append("who drops out does not depend on what clients hold")
    if config.weighting == "examples":
        rests_on.append("how many examples a client holds is not hidden: weights tell it")
    if delta >= 1 / config.clients:
        rests_on.append(f"δ = {delta:g} is not below 1/{config.clients}, one over the clients: lower it")
    return (*rests_on, *_of_sampling(config, view, route))


def _known_noise(view: View) -> tuple[str, ...]:
    known = view.exposure.noises - view.noises
    if view.model != "clients" or known == 0:
        return ()
    return (
        f"they know their own noise: that of {known} of a round's clients is taken off, and {view.noises} are left",
    )


def _of_sampling(config: RunConfig, view: View, route: _Route) -> tuple[str, ...]:
    if route.sampling is not None:
        return ("who takes part in a round is drawn at random and stays secret",)
    counted = f"a client takes part in {route.releases} rounds at most, as with this config's seed"
    if config.per_round == config.clients or not view.sample_is_known_because:
        return (counted,)
    return (counted, f"sampling is not counted on: {view.sample_is_known_because}")


def _of_an_example(
    config: RunConfig, view: View, of_client: float, everywhere: _Route, noise: float, delta: float
) -> ExampleGuarantee:
    """ε of one example replaced: never above the client's, and below it where the batch is a small secret sample."""
    if math.isinf(of_client):
        return ExampleGuarantee(None, "as for a client")
    held = holdings(config)
    if held.overlap:
        return ExampleGuarantee(None, "clients outnumber examples and share them, and ε is that of one client")
    if held.overlap is None:
        return ExampleGuarantee(of_client, "as for a client, if no other client holds the example")
    if held.fewest == 1:
        return ExampleGuarantee(of_client, "as for a client, who holds one")
    if held.fewest is None or held.fewest <= config.batch or config.trains_locally:
        return ExampleGuarantee(of_client, "as for a client: the sampling of batches is not counted on")
    if view.knows_seed:
        return ExampleGuarantee(
            of_client, "as for a client: the seed that they have says which examples are in a batch"
        )
    batch = FixedSize(config.batch, held.fewest)
    sampled = _Route(everywhere.updates, everywhere.releases, batch).spent(noise, delta).epsilon
    if sampled >= of_client:
        return ExampleGuarantee(of_client, "as for a client: sampling batches gives no smaller bound")
    drawn = f"a batch is a secret sample, {batch.size} of {batch.population} examples"
    return ExampleGuarantee(sampled, f"{drawn}, if clients draw it themselves and not by the config's seed")
