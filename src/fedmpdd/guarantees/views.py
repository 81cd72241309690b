"""Who sees what of a training: the table that every stated ε rests on (docs/protection.md).

A view is somebody who looks on. What reaches them of a round is composed from parts of a config: the keys, the bits,
secure sums, the downlink, the journal. Nothing here computes an ε; `fedmpdd.guarantees.guarantees` does, row by row.
"""

from dataclasses import dataclass

from fedmpdd.errors import PrivacyError
from fedmpdd.secure_sum.neighbours import SECRECY
from fedmpdd.simulation import RunConfig
from fedmpdd.tasks.data import PartitionKind, idx, mnist_5k
from fedmpdd.tasks.data.cifar10 import BATCHES, ROWS
from fedmpdd.uplink import SecureRounds
from fedmpdd.uplink.discrete_gaussian import NEGLIGIBLE, closeness

# Training examples of the datasets whose number is known without reading them.
TRAINING_EXAMPLES = {
    "mnist-5k": mnist_5k.TRAIN,
    "mnist": idx.SIZES[0],
    "fashion-mnist": idx.SIZES[0],
    "cifar-10": (len(BATCHES) - 1) * ROWS,
}


@dataclass(frozen=True)
class Exposure:
    """What can be seen of one round, and whose noise is in it.

    what: in words.
    noises: how many clients' noise lies on one client's scalars in it; 0 where something is shown without any.
    reason: why so many.
    tells_who: why it tells who took part, or "" where it is alike whoever did.
    """

    what: str
    noises: int
    reason: str
    tells_who: str = ""


@dataclass(frozen=True)
class View:
    """Somebody who looks on: what reaches them, and what they know already.

    model: the name of the row in `fedmpdd epsilon`.
    who: against whom a guarantee of this row holds.
    carrier: what they read: updates, sums, models, bundles, files.
    known_noise: how many of a round's clients are theirs, so that they know that noise and can take it off.
    knows_sample: why they know who takes part in a round, or "" where they do not.
    knows_seed: whether they have the seed of the config, which batches are drawn by as well.
    failure: how likely they see more than this, in all rounds together.
    assumptions: what else this row rests on.
    """

    model: str
    who: str
    carrier: str
    exposure: Exposure
    known_noise: int = 0
    knows_sample: str = ""
    knows_seed: bool = False
    failure: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def sees(self) -> str:
        """What they read, and what that tells of a round."""
        return f"{self.carrier}: {self.exposure.what}"

    @property
    def noises(self) -> int:
        """How many clients' noise hides one client from them: its own at least, where there is any."""
        return min(self.exposure.noises, max(1, self.exposure.noises - self.known_noise))

    @property
    def sample_is_known_because(self) -> str:
        """Why sampling hides nobody from them, or "" where it does."""
        return self.knows_sample or self.exposure.tells_who


@dataclass(frozen=True)
class Holdings:
    """What a config tells of the examples that clients hold.

    fewest: how many a client holds at least; None where only the data can tell.
    overlap: whether several clients may hold the same example; None where only the data can tell.
    """

    fewest: int | None
    overlap: bool | None


def views(config: RunConfig, colluding: int | None = None) -> tuple[View, ...]:
    """Return everybody who can look on a training of this config, whose updates are clipped, with what they see.

    colluding: how many clients put together what they see, in the row of other clients; by default one, or as many as
        `secure.colluding` allows for.
    """
    single, mean = _single_update(), _round_mean(config)
    bundle = mean if _bundle_is_mean(config) else single
    rows = [
        _of_updates(config, single),
        _of_sums(config, mean),
        _of_models(config, mean),
        _of_clients(config, bundle if config.downlink == "replay" else mean, _in_league(config, colluding)),
    ]
    if config.journaled:
        rows.append(_of_journal(bundle))
    return (*rows, _of_run_folder())


def holdings(config: RunConfig) -> Holdings:
    """Return what a config tells of the examples that its clients hold."""
    total = TRAINING_EXAMPLES.get(config.dataset)
    if total is None:
        return Holdings(None, None)
    if config.clients > total:  # virtual clients draw theirs from all
        return Holdings(None, True)
    by_class = config.partition.kind is PartitionKind.CLASSES
    return Holdings(None if by_class else total // config.clients, False)


# ---------------------------------------------------------------------------------------- what there is to be seen


def _single_update() -> Exposure:
    return Exposure(
        "the noisy scalars of each client by themselves",
        1,
        "a single update has its client's own noise and no other",
        "updates come one by one, in the order of the clients",
    )


def _round_mean(config: RunConfig) -> Exposure:
    """What a model, or a bundle of one update, tells of a round: the sum of scalars, or more than that."""
    if config.secure is not None:
        return _secure_sum(config.secure, config.per_round)
    if config.robust is not None:
        return Exposure(
            "a robust mean of a round, whose weights follow from single updates",
            1,
            "noise of other clients is not counted on: how much of it a robust mean takes depends on each update; "
            "leave robust out to add it up",
            "a robust mean weighs clients by what each of them sent",
        )
    if config.codec.keys != "shared":
        return Exposure(
            "the mean of a round, from which each client's noisy scalars follow while n·m is below d",
            1,
            f'noise of other clients is not counted on: keys = "{config.codec.keys}" gives them other directions, so '
            'that it lies elsewhere; keys = "shared" adds it up',
            "each client has directions of its own in the mean",
        )
    protection = config.codec.protection()
    rounded = protection is not None and not protection.codec.adds_up
    weighted = config.weighting != "equal"
    # Two means of which one has a heavy client in it differ in the width of their noise, which is plain to see.
    tells_who = "weights by examples make the noise of a mean wider or narrower with who is in it" if weighted else ""
    what = "the sum of a round's noisy scalars along shared directions"
    if rounded:
        reason = (
            f"noise of other clients is not counted on: scalars of {config.codec.build()} are rounded one "
            "by one, and their sum is no function of the sum of noisy scalars; bits = 32 adds it up"
        )
    elif config.dropout > 0 or weighted or not config.arrivals.waits_for_all:
        reason = (
            "noise of other clients is not counted on: with dropout, weights by examples, or a server that does not "
            'wait for all, there may be none to speak of; dropout = 0, weighting = "equal" and no arrivals add it up'
        )
    else:
        reason = f"the noise of all {config.per_round} clients of a round adds up, on shared directions"
        return Exposure(what, config.per_round, reason)
    return Exposure(what, 1, reason, tells_who)


def _secure_sum(secure: SecureRounds, clients: int) -> Exposure:
    """Integer noise of all who stay; a sum of such noises is one of its own kind, but for next to nothing."""
    if secure.noise_multiplier > 0 and closeness(secure.noise_in_steps(clients), clients) > NEGLIGIBLE:
        raise PrivacyError(
            f"secure.ring_bits = {secure.ring_bits}: noise of {secure.noise_in_steps(clients):.2g} steps is too "
            "narrow for sums of it to be counted as one; take more bits, or more noise"
        )
    stay = secure.threshold(clients)
    return Exposure(
        f"the sum of the noisy numbers of a round's clients, {stay} of {clients} at least",
        stay,
        f"the noise of {stay} of {clients} clients adds up, those that must stay for a sum to be seen",
    )


def _bundle_is_mean(config: RunConfig) -> bool:
    """Whether a bundle holds one update, the mean of a round, and not those of all clients."""
    return config.mean_bits is not None or config.secure is not None


# -------------------------------------------------------------------------------------------------- who looks on


def _of_updates(config: RunConfig, single: Exposure) -> View:
    who = "the server and whoever reads updates, alone or in league with clients"
    if config.secure is not None:
        who = "whoever gets hold of a single client's numbers, which nobody does while the secure sum holds"
    return View("local", who, "updates", single, knows_sample="the server knows whom it asked")


def _of_sums(config: RunConfig, mean: Exposure) -> View:
    knows = "the server asks clients by name"
    if config.secure is None:
        who = "a server that sees the sum of a round and who took part, as with secure sums; here it sees updates"
        return View("aggregate", who, "sums, if secure sums were used", mean, knows_sample=knows)
    colluders = config.secure.colluders(config.per_round)
    league = "no client is in league with the server (secure.colluding)"
    who = "a server that sees the sum of a round and who took part"
    if colluders:
        left = config.secure.honest_minimum(config.per_round)
        league = f"the server may know that of {colluders} of them, and {left} are left"
        who += f", in league with {colluders} clients of a round"
    return View(
        "aggregate",
        who,
        "sums",
        mean,
        known_noise=colluders,
        knows_sample=knows,
        failure=config.rounds * SECRECY if config.secure.neighbours else 0.0,
        assumptions=(league, *_of_neighbours(config)),
    )


def _of_neighbours(config: RunConfig) -> tuple[str, ...]:
    if config.secure is None or not config.secure.neighbours:
        return ()
    return (
        "who drops out, and who is in league with the server, does not depend on the order of clients in a round",
        f"that secrets shared with a few hide less, once in 2^40 rounds, is in δ, for {config.rounds} rounds",
    )


def _of_models(config: RunConfig, mean: Exposure) -> View:
    insiders = "the server and all clients" if config.downlink == "replay" else "the server"
    trust = f"{insiders} can be trusted not to pass on what else they see"
    return View(
        "central",
        "outsiders who see nothing but models, one or all of them",
        "models",
        mean,
        assumptions=(trust,),
    )


def _of_clients(config: RunConfig, exposure: Exposure, together: int) -> View:
    who = "any other client" if together == 1 else f"any {together} other clients that put together what they see"
    knows = ""
    if config.downlink == "replay":
        knows = "replay begins with the journal's header, whose seed says who is drawn"
    elif config.secure is not None:
        knows = "clients of a secure round are shown each other's keys"
    return View(
        "clients",
        who,
        "models, or bundles of the rounds that they missed" if config.downlink == "replay" else "models",
        exposure,
        known_noise=together,
        knows_sample=knows,
        knows_seed=config.downlink == "replay",
        assumptions=("the server can be trusted, and shows clients nothing else",),
    )


def _of_journal(bundle: Exposure) -> View:
    return View(
        "journal",
        "whoever reads the bundles of the journal, and not the notes beside them",
        "journal.fmpj",
        bundle,
        knows_sample="the journal's header holds the seed, which says who is drawn",
        knows_seed=True,
    )


def _of_run_folder() -> View:
    loss = "the mean loss of a round's clients is written down without noise"
    return View(
        "run folder",
        "whoever reads metrics.jsonl, or the notes of a journal",
        "metrics.jsonl, notes of a journal",
        Exposure("the mean loss of a round's clients on their own examples", 0, loss),
        knows_sample="config.json holds the seed, which says who is drawn",
        knows_seed=True,
    )


def _in_league(config: RunConfig, colluding: int | None) -> int:
    if colluding is None:
        return 1 if config.secure is None else max(1, config.secure.colluders(config.per_round))
    if not 1 <= colluding < config.clients:
        raise PrivacyError(
            f"colluding = {colluding}: expected how many of the {config.clients} clients put together what they see, "
            "from 1 to all but one"
        )
    return colluding
