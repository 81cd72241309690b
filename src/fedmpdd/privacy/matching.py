"""How well a guess explains what was sent: a loss per problem, differentiable in the guessed gradients.

Two ways to look at an update. *Decoded*: compare with the server's estimate of the gradient, as the paper does. *Sent*:
push the guess through the same directions and compare with the scalars themselves, with the likelihood of their
rounding. The second is what somebody who has the seed would do.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedmpdd.codecs.evidence import Choices, Projections
from fedmpdd.directions import Key, family_named
from fedmpdd.privacy.observation import ObservedUpdate
from fedmpdd.uplink import Protection

EXACT = 1e5  # nats of a loss that measures without noise, within what float32 can tell


class Match(Protocol):
    """Loss [problems] of guessed gradients [problems, d]: 0 or more, and small for the truth.

    Times `nats` it is a negative log-likelihood, to be weighed against a prior; large where nothing was rounded.
    """

    nats: float

    def __call__(self, gradients: Tensor) -> Tensor:
        """Return the losses."""


class Distance:
    """‖g′ − target‖² over the coordinates that are known, divided by ‖target‖²."""

    nats = EXACT

    def __init__(self, targets: Tensor, known: Tensor | None = None) -> None:
        self._targets, self._known = targets, known
        self._norms = targets.square().sum(dim=1).clamp_min(1e-30)

    def __call__(self, gradients: Tensor) -> Tensor:
        """See Match."""
        difference = gradients - self._targets
        if self._known is not None:
            difference = difference * self._known
        return difference.square().sum(dim=1) / self._norms


class SquaredDifference:
    """‖g′ − target‖² as it is: what DLG was published with."""

    nats = EXACT

    def __init__(self, targets: Tensor) -> None:
        self._targets = targets

    def __call__(self, gradients: Tensor) -> Tensor:
        """See Match."""
        return (gradients - self._targets).square().sum(dim=1)


class Cosine:
    """1 − the cosine of guess and target."""

    nats = EXACT

    def __init__(self, targets: Tensor) -> None:
        self._targets = targets

    def __call__(self, gradients: Tensor) -> Tensor:
        """See Match."""
        # ½‖a − b‖² of unit vectors is 1 − aᵀb, but keeps its precision, and its sign, near zero.
        a, b = (torch.nn.functional.normalize(rows, dim=1) for rows in (gradients, self._targets))
        return 0.5 * (a - b).square().sum(dim=1)


class ScalarMatch:
    """Compare scalars along the update's own directions.

    Exact ones: squared differences. Levels: the same, but what stochastic rounding can explain costs nothing: a scalar
    within a step of its level. Signs: a logistic loss on each, with the norm that the scale gives away.
    """

    def __init__(self, seen: Projections, protection: Protection | None, device: torch.device | str = "cpu") -> None:
        self._seen = seen
        self._levels = torch.from_numpy(np.asarray(seen.levels, dtype=np.float32)).to(device)
        self._steps = torch.from_numpy(np.asarray(seen.steps, dtype=np.float32)).to(device)
        # ‖s‖² is about m·‖g‖²: the unit in which differences of scalars are small or large.
        values = self._levels * self._steps[:, None]
        self._power = values.square().sum(dim=1).clamp_min(1e-30)
        # As docs/codec.md has it; the correction for concentrated gradients is within a few per cent.
        self._norms = self._steps / math.sqrt(math.pi / 2)
        count = self._levels.shape[1]
        self._temperature = _temperature(count)
        self.nats = count / self._temperature if seen.rounding == "signs" else EXACT
        self._bound, self._norm_weight = math.inf, 0.1
        if protection is not None:
            noise = protection.noise_deviation
            if noise > 0:  # a squared difference divided by twice the variance is a log-likelihood
                self.nats = min(self.nats, float(self._power.mean()) / (2 * noise**2))
            # What a client clips, the attacker clips; and a norm that was clipped or coarsened says little.
            self._bound = protection.bound
            self._norm_weight = 0.0 if math.isfinite(self._bound) else 0.01

    def __call__(self, gradients: Tensor) -> Tensor:
        """See Match."""
        scalars = project(gradients, self._seen.keys, self._seen.family, self._levels.shape[1])
        if math.isfinite(self._bound):
            sizes = scalars.square().sum(dim=1, keepdim=True).clamp_min(1e-30).sqrt()
            scalars = scalars * (self._bound / sizes).clamp_max(1.0)
        if self._seen.rounding == "exact":
            return (scalars - self._levels).square().sum(dim=1) / self._power
        if self._seen.rounding == "levels":
            steps = scalars / self._steps.clamp_min(1e-30)[:, None] - self._levels
            beyond = (steps.abs() - 1).clamp_min(0)
            # Inside a step every value could have been rounded so, those near the level more easily.
            unlikely = beyond.square() + 0.05 * steps.square()
            return (unlikely.sum(dim=1) * self._steps.square()) / self._power
        lengths = gradients.square().sum(dim=1).clamp_min(1e-30).sqrt()
        norms = self._norms.clamp_min(1e-30) if self._seen.sized else lengths
        margins = self._levels * scalars / norms[:, None]
        signs = torch.nn.functional.softplus(-margins / self._temperature).mean(dim=1) * self._temperature
        return signs + self._norm_weight * (lengths / norms).log().square()


class ChoiceMatch:
    """Compare peaks: of the derivatives of a group, either sign, the one that was sent should be the largest.

    The loss is that of a choice between 2·group, softened as a sign is; the scale gives the norm away.
    """

    def __init__(self, seen: Choices, device: torch.device | str = "cpu") -> None:
        self._seen = seen
        self._choices = torch.from_numpy(seen.places + seen.group * seen.negative).to(device)
        self._norms = torch.tensor(seen.norms, dtype=torch.float32, device=device)
        peaks = self._choices.shape[1]
        self._temperature = _temperature(peaks * seen.group.bit_length())
        self.nats = peaks / self._temperature

    def __call__(self, gradients: Tensor) -> Tensor:
        """See Match."""
        lengths = gradients.square().sum(dim=1).clamp_min(1e-30).sqrt()
        # Which is the largest does not depend on the length of the guess, so neither must how sure it looks.
        count = self._choices.shape[1] * self._seen.group
        derivatives = project(gradients, self._seen.keys, self._seen.family, count) / lengths[:, None]
        grouped = derivatives.view(len(gradients), -1, self._seen.group)
        either = torch.cat([grouped, -grouped], dim=2) / self._temperature
        chosen = either.gather(2, self._choices[:, :, None])[:, :, 0]
        losses = (either.logsumexp(dim=2) - chosen).mean(dim=1) * self._temperature
        return losses + 0.1 * (lengths / self._norms.clamp_min(1e-30)).log().square()


def _temperature(m: int) -> float:
    """How soft a sign is: many of them pin the gradient down, and the loss can be sharp."""
    known = ((200, 0.3), (600, 0.1), (1_600, 0.03))
    return next((value for most, value in known if m <= most), 0.01)


class _Project(torch.autograd.Function):
    """s = Uᵀg by the codec's own kernels, which never hold U; backwards it is decode."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, keys: Sequence[Key], family: str, count: int) -> Tensor:
        ctx.keys, ctx.family, ctx.d = keys, family, gradients.shape[1]
        rows = np.ascontiguousarray(gradients.detach().cpu().numpy())
        return torch.from_numpy(family_named(family).encode(rows, keys, count)).to(gradients.device)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        family, one = family_named(ctx.family), np.ones(1)
        rows = np.ascontiguousarray(outer[0].cpu().numpy())
        back = [family.decode(rows[i : i + 1], one, [key], ctx.d) for i, key in enumerate(ctx.keys)]
        return torch.from_numpy(np.stack(back)).to(outer[0].device), None, None, None


def project(gradients: Tensor, keys: Sequence[Key], family: str, count: int) -> Tensor:
    """Directional derivatives [problems, count] of gradients [problems, d], each along directions of its own key."""
    scalars: Tensor = _Project.apply(gradients, keys, family, count)  # type: ignore[no-untyped-call]
    return scalars


def match_decoded(updates: Sequence[ObservedUpdate]) -> Tensor:
    """What the server decodes from each of these updates [problems, d]."""
    return torch.stack([observed.decoded for observed in updates])


def match_sent(updates: Sequence[ObservedUpdate]) -> Match:
    """Compare with what was really sent, by what the codec says of it: one observed per problem, all of one codec."""
    seen, device = updates[0].codec.evidence([observed.update for observed in updates]), updates[0].flat.device
    if isinstance(seen, Projections):
        return ScalarMatch(seen, updates[0].protection, device)
    if isinstance(seen, Choices):
        return ChoiceMatch(seen, device)
    known = None if seen.known is None else torch.from_numpy(seen.known).float().to(device)
    return Distance(torch.from_numpy(seen.targets).to(device), known)
