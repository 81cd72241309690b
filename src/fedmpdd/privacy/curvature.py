"""What a network does between two images, which decides how it is attacked: it bends, it has kinks, or it is straight.

L-BFGS needs a loss whose gradient changes little by little. A network of ReLUs has no second derivative: along a line
its slope stands still, and jumps where a unit goes on or off. So slopes at both ends of a line are compared with the
second derivative, summed up in between. Where the second derivative explains how the slope changed, the network is
smooth; where it does not, there are kinks; where the slope is the same all along, the network is linear.
"""

import copy
from typing import Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedmpdd.privacy.observation import Victim
from fedmpdd.tasks.models import FlatModel

Curvature = Literal["linear", "kinked", "smooth"]
LINES = 8  # between pairs of images
POINTS = 16  # on a line where the second derivative is looked at: sigmoids with large weights bend within a few
STRAIGHT = 1e-4  # of the slope: what changes less is linear for an optimiser. LeNet at PyTorch's start: 3e-2
# Of the slope's change, what second derivatives may leave unexplained. Sigmoid, tanh and GELU leave up to 0.01 at these
# points, ELU 0.2, whose second derivative jumps; ReLU, alone or after a norm, 1 or more.
UNEXPLAINED = 0.5


def curvature_of(victim: Victim, flat: Tensor, images: Tensor, seed: int = 0) -> Curvature:
    """Return what a network does along lines between images.

    Args:
        victim: the network, and how pixels become its inputs.
        flat: its parameters.
        images: [examples, channels, height, width], of the kind that it is for, in [0, 1]; one or more.
        seed: of the lines that are drawn.

    Returns:
        "linear", "kinked" as networks of ReLUs are, or "smooth".

    Example:
        >>> curvature_of(victim, flat, torch.rand(16, 1, 28, 28))
        'linear'

    """
    generator = torch.Generator().manual_seed(seed)
    starts = images[torch.randint(len(images), (LINES,), generator=generator)].cpu()
    others = images[torch.randint(len(images), (LINES,), generator=generator)].cpu()
    drawn = torch.rand(starts.shape, generator=generator)
    is_same = (starts == others).flatten(1).all(dim=1)
    ends = torch.where(is_same[:, None, None, None], drawn, others)
    model = victim.model
    try:  # in float64 a straight line is told from one that hardly bends
        network = FlatModel(copy.deepcopy(model.module).double(), model.names, model.shapes)
        line = _Line(network, flat.double(), victim, starts.double(), ends.double())
        return line.curvature()
    except RuntimeError:  # a module that makes float32 of its own accord
        return _Line(model, flat, victim, starts, ends).curvature()


class _Line:
    """Lines between images, and the slope of a network along each."""

    def __init__(self, network: FlatModel, flat: Tensor, victim: Victim, starts: Tensor, ends: Tensor) -> None:
        self._network, self._flat, self._victim = network, flat, victim
        self._starts, self._ways = starts.to(flat), (ends - starts).to(flat)

    def curvature(self) -> Curvature:
        first, last = self._at(0.0)[0], self._at(1.0)[0]
        change = last - first
        if change.abs().sum() <= STRAIGHT * (first.abs() + last.abs()).sum():
            return "linear"
        bends = torch.stack([self._at((point + 0.5) / POINTS)[1] for point in range(POINTS)]).mean(dim=0)
        return "smooth" if (bends - change).abs().sum() <= UNEXPLAINED * change.abs().sum() else "kinked"

    def _at(self, share: float) -> tuple[Tensor, Tensor]:
        """The first and second derivatives of a mix of the network's outputs, so far along every line."""
        place = torch.full((len(self._starts),), share, dtype=self._flat.dtype, device=self._flat.device)
        place.requires_grad_()
        images = self._starts + place[:, None, None, None] * self._ways
        outputs = self._network(self._flat, self._victim.inputs(images).to(self._flat))
        mix = torch.Generator().manual_seed(1)
        total = torch.zeros((), dtype=self._flat.dtype, device=self._flat.device)
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                weights = torch.randn(leaf.shape, generator=mix, dtype=torch.float64)
                total = total + (leaf * weights.to(leaf)).sum()
        slopes = torch.autograd.grad(total, place, create_graph=True)[0]
        if not slopes.requires_grad:  # they do not depend on the place
            return slopes, torch.zeros_like(slopes)
        bends = torch.autograd.grad(slopes.sum(), place, allow_unused=True)[0]
        return slopes.detach(), torch.zeros_like(slopes) if bends is None else bends
