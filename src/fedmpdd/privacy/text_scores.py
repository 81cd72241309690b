"""How well guesses about a text explain an update: of which sentence it is, and of which class.

Where the gradient of the guess is all that there is to know, an update is matched as `matching` does. Where something
else has a part in it that nobody knows, the other sentences of a batch, or the words of a sentence whose class is
looked for, that part is noise. Its mean and covariance are those of public sentences.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmpdd.codecs.arithmetic import largest_normal
from fedmpdd.codecs.evidence import Choices, Coordinates, Projections
from fedmpdd.privacy.matching import match_sent, project
from fedmpdd.privacy.observation import ObservedUpdate

SHRINKAGE = 0.01  # of a covariance, towards one that is the same in all directions
LENGTH_DEVIATION = 0.05  # of the logarithm of a length that an update gives away


class Reading(NamedTuple):
    """What an update says, as numbers that are about linear in the gradient.

    Args:
        values: the numbers [n].
        variance: of what the codec adds to each of them.
        of: what the same numbers are for other gradients [guesses, d], in a matrix [guesses, n].

    """

    values: Tensor
    variance: float
    of: Callable[[Tensor], Tensor]


def read_by_server(observed: ObservedUpdate) -> Reading:
    """Return what an update tells who has its key, by what the codec says of it."""
    seen, device = observed.codec.evidence([observed.update]), observed.flat.device
    if isinstance(seen, Projections):
        return _scalars(observed, seen)
    if isinstance(seen, Choices):
        return _peaks(seen, device)
    values = torch.from_numpy(seen.targets[0]).to(device)
    if seen.known is None:
        noise = observed.codec.variance(len(values)) or 0.0  # relative to the gradient, over all coordinates
        each = noise / (1 + noise) * float(values.square().mean())
        biased = not observed.codec.unbiased
        return Reading(values, each, lambda rows: _decoded_again(observed, rows) if biased else rows)
    known = torch.from_numpy(seen.known[0]).to(device)
    return Reading(values[known], 0.0, lambda gradients: gradients[:, known])


def _decoded_again(observed: ObservedUpdate, gradients: Tensor) -> Tensor:
    """What the server would decode if these gradients had been sent: the attacker has codec and key, as the client."""
    codec, rows = observed.codec, np.ascontiguousarray(gradients.cpu().numpy())
    updates = codec.encode(rows, [observed.key] * len(rows))
    return torch.from_numpy(np.stack([codec.decode_mean([update]) for update in updates])).to(gradients.device)


def read_by_outsider(observed: ObservedUpdate) -> Reading:
    """Return what an update tells who has no key: about how long its gradient is."""
    device = observed.flat.device
    length = observed.codec.magnitude(observed.update)

    def of(gradients: Tensor) -> Tensor:
        return gradients.square().sum(dim=1, keepdim=True).clamp_min(1e-30).sqrt().log()

    value = torch.tensor([math.log(max(length, 1e-15))], device=device)
    return Reading(value, LENGTH_DEVIATION**2, of)


def _scalars(observed: ObservedUpdate, seen: Projections) -> Reading:
    step, device = float(seen.steps[0]), observed.flat.device
    values = torch.from_numpy(np.asarray(seen.levels[0] * step, dtype=np.float32)).to(device)
    # Of rounding: none, up to a quarter of a step squared, or what a sign leaves of a normal number.
    variance = {"exact": 0.0, "levels": step**2 / 6, "signs": step**2 * (1 - 2 / math.pi)}[seen.rounding]
    bound = math.inf
    if observed.protection is not None:
        variance += observed.protection.noise_deviation**2
        bound = observed.protection.bound

    def of(gradients: Tensor) -> Tensor:
        scalars = project(gradients, [seen.keys[0]] * len(gradients), seen.family, len(values))
        lengths = scalars.square().sum(dim=1, keepdim=True).clamp_min(1e-30).sqrt()
        return scalars * (bound / lengths).clamp_max(1.0)

    return Reading(values, variance, of)


def _peaks(seen: Choices, device: torch.device) -> Reading:
    """The derivatives along the directions that were chosen, with their signs: each about as large as the largest."""
    places = torch.from_numpy(seen.places[0]).to(device)
    chosen = places + seen.group * torch.arange(len(places), device=device)
    signs = torch.from_numpy(1.0 - 2.0 * seen.negative[0]).float().to(device)
    length = float(seen.norms[0])
    mean, _ = largest_normal(seen.group)

    def of(gradients: Tensor) -> Tensor:
        count = len(places) * seen.group
        return signs * project(gradients, [seen.keys[0]] * len(gradients), seen.family, count)[:, chosen]

    # A wrong guess leaves a derivative of deviation 1 in units of the length, the right one less.
    return Reading(torch.full((len(places),), length * mean, device=device), length**2, of)


def scores_of_candidates(observed: ObservedUpdate, candidates: Tensor, public: Tensor, batch: int) -> Tensor:
    """Return a score for each candidate [candidates]: higher where an update is rather of a batch that it is in.

    Args:
        observed: the update.
        candidates: the gradient of each candidate alone [candidates, d].
        public: gradients of other sentences [public, d].
        batch: sentences of the update.

    """
    if batch == 1:
        seen = observed.codec.evidence([observed.update])
        if isinstance(seen, Coordinates) and seen.known is None:
            candidates = _decoded_again(observed, candidates)
        return -match_sent([observed] * len(candidates))(candidates)
    reading = read_by_server(observed)
    others = reading.of(public).double()
    means = (reading.of(candidates).double() + (batch - 1) * others.mean(dim=0)) / batch
    spread = (others - others.mean(dim=0)) * math.sqrt((batch - 1) / (len(others) - 1)) / batch
    return -0.5 * distances(reading.values.double() - means, spread, reading.variance)


def scores_by_length(observed: ObservedUpdate, candidates: Tensor) -> Tensor:
    """Return a score for each candidate, by the length of the gradient alone."""
    reading = read_by_outsider(observed)
    return -(reading.of(candidates) - reading.values).square().sum(dim=1)


def scores_of_classes(reading: Reading, public: Tensor, labels: Tensor, prior: Tensor) -> Tensor:
    """Return a score for each class [classes]: higher where the update is rather of a sentence of that class.

    Args:
        reading: of the update.
        public: gradients of sentences [public, d].
        labels: their classes [public].
        prior: how often each class is [classes]; one without public sentences is never chosen.

    """
    numbers = reading.of(public).double()
    classes = len(prior)
    members = torch.nn.functional.one_hot(labels, classes).double().to(numbers.device)
    counts = members.sum(dim=0)
    means = members.T @ numbers / counts.clamp_min(1)[:, None]
    freedom = max(1, len(numbers) - int((counts > 0).sum()))
    within = (numbers - means[labels.to(numbers.device)]) / math.sqrt(freedom)
    scores = -0.5 * distances(reading.values.double() - means, within, reading.variance)
    scores = scores + prior.double().to(scores.device).clamp_min(1e-12).log()
    return torch.where(counts > 0, scores, -math.inf)


def distances(residuals: Tensor, spread: Tensor, variance: float) -> Tensor:
    """Return rᵀ C⁻¹ r of residuals [guesses, n] for C = spreadᵀ·spread + variance, shrunk.

    Args:
        residuals: of guesses.
        spread: rows [samples, n] whose products add up to a covariance.
        variance: of independent noise on each number.

    """
    small = spread @ spread.T  # C is never laid out: n may be millions
    ridge = variance + SHRINKAGE * float(small.trace()) / max(1, min(spread.shape)) + 1e-30
    cross = residuals @ spread.T
    inner = small + ridge * torch.eye(len(small), dtype=small.dtype, device=small.device)
    explained = (cross * torch.linalg.solve(inner, cross.T).T).sum(dim=1)
    result: Tensor = (residuals.square().sum(dim=1) - explained) / ridge
    return result
