"""GI-NAS: the image is what an untrained network makes of noise, and the network is searched for as well."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedmpdd.errors import InputError
from fedmpdd.privacy.attacks.base import (
    Attack,
    Progress,
    Reconstruction,
    Snapshot,
    by_round,
    check_together,
    explain,
    follow,
)
from fedmpdd.privacy.attacks.dlg import keep_best
from fedmpdd.privacy.labels import enumerate_labels
from fedmpdd.privacy.matching import Cosine, Match, match_decoded, match_sent
from fedmpdd.privacy.observation import Observation, one_hot
from fedmpdd.privacy.optimise import Objective, adam
from fedmpdd.tasks.models import FlatModel

UPSAMPLINGS = ("bilinear", "bicubic", "nearest", "shuffle", "transposed")
CONVOLUTIONS = ("full", "separable")
KERNELS = (1, 3, 5, 7)
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,
    "selu": nn.SELU,
    "prelu": nn.PReLU,
}
# All ways to upsample: operation, convolution after it, its kernel, activation.
CELLS = tuple(itertools.product(UPSAMPLINGS, CONVOLUTIONS, KERNELS, ACTIVATIONS))


class Architecture(NamedTuple):
    """One point of the search space."""

    skips: tuple[tuple[bool, ...], ...]  # [level of the encoder][level of the decoder]
    upsampling: str
    convolution: str
    kernel: int
    activation: str


class Candidate(NamedTuple):
    """A generator with its initial weights, and how well the image that it starts with explains what was seen."""

    architecture: Architecture
    network: FlatModel
    weights: Tensor
    noise: Tensor  # what goes into it, one per image; it stays as it is
    loss: float


def draw(levels: int, random: np.random.Generator) -> Architecture:
    """Every skip is there or not, and every way to upsample is as likely as any other."""
    skips = random.integers(2, size=(levels, levels)).astype(bool).tolist()
    return Architecture(tuple(map(tuple, skips)), *CELLS[random.integers(len(CELLS))])


class Generator(nn.Module):
    """A U-Net from noise of an image's shape to an image in [0, 1].

    Skips are added, from any level to any other. Group instead of batch norm: a batch may be one image, and the lowest
    level a few pixels.
    """

    def __init__(self, architecture: Architecture, channels: int, image_channels: int) -> None:
        super().__init__()
        levels = range(len(architecture.skips))
        entering = [image_channels, *[channels] * (len(levels) - 1)]
        self.down = nn.ModuleList(
            nn.Sequential(*_convolve(before, channels, stride=2), *_convolve(channels, channels)) for before in entering
        )
        self.skip = nn.ModuleDict(
            {
                _between(start, end): nn.Conv2d(entering[start], channels, 1)
                for start in levels
                for end in levels
                if architecture.skips[start][end]
            }
        )
        self.up = nn.ModuleList(nn.Sequential(*_upsample(architecture, channels)) for _ in levels)
        self.merge = nn.ModuleList(nn.Sequential(*_convolve(channels, channels)) for _ in levels)
        self.out = nn.Conv2d(channels, image_channels, 3, padding=1)

    def forward(self, noise: Tensor) -> Tensor:
        """Return images."""
        entered = []
        x = noise
        for down in self.down:
            entered.append(x)
            x = down(x)
        for end in reversed(range(len(entered))):
            height, width = entered[end].shape[-2:]
            x = self.up[end](x)[..., :height, :width]  # an odd side was rounded up on the way down
            for start, features in enumerate(entered):
                if _between(start, end) in self.skip:
                    skipped = self.skip[_between(start, end)](features)
                    x = x + nn.functional.interpolate(skipped, (height, width), mode="bilinear")
            x = self.merge[end](x)
        return torch.sigmoid(self.out(x))


def _between(start: int, end: int) -> str:
    return f"{start}-{end}"


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(channels // 4, channels)  # of four channels each, so that even one pixel has a deviation


def _convolve(before: int, channels: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, channels, 3, stride=stride, padding=1)
    return [convolution, _norm(channels), nn.LeakyReLU(0.2)]


def _upsample(architecture: Architecture, channels: int) -> list[nn.Module]:
    """Twice the height and width."""
    before = channels
    first: nn.Module
    if architecture.upsampling == "shuffle":
        first, before = nn.PixelShuffle(2), channels // 4
    elif architecture.upsampling == "transposed":
        first = nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1)
    else:
        first = nn.Upsample(scale_factor=2, mode=architecture.upsampling)
    kernel = architecture.kernel
    if architecture.convolution == "full":
        then: list[nn.Module] = [nn.Conv2d(before, channels, kernel, padding=kernel // 2)]
    else:
        apart = nn.Conv2d(before, before, kernel, padding=kernel // 2, groups=before)
        then = [apart, nn.Conv2d(before, channels, 1)]
    return [first, *then, _norm(channels), ACTIVATIONS[architecture.activation]()]


@dataclass(frozen=True)
class GINAS(Attack):
    """A deep image prior: the weights of an untrained generator are optimised, never pixels.

    Of many architectures drawn at random the one is kept whose first image, before any training, matches best; then
    its weights follow the signs of their gradients. As published there are 5 levels of 128 channels, 5,000 candidates
    and up to 30,000 iterations, on larger images and a GPU.

    matching: "decoded" (the cosine with the server's estimate, as published) or "sent" (what somebody with the seed
    would do, see matching.py). Labels are granted or enumerated. Images of a batch come from one generator, each from
    noise of its own.
    """

    iterations: int = 600
    candidates: int = 100
    channels: int = 32
    levels: int = 3
    lr: float = 1e-3
    matching: str = "decoded"
    restarts: int = 1
    name: str = "gi-nas"

    def __post_init__(self) -> None:
        if self.matching not in ("decoded", "sent"):
            raise InputError(f'matching = {self.matching!r} is unknown; expected "decoded" or "sent"')
        if self.channels < 4 or self.channels % 4:
            raise InputError(f"channels = {self.channels}; expected a multiple of 4, as pixel shuffle has it")
        if min(self.iterations, self.candidates, self.levels, self.restarts) < 1:
            raise InputError("iterations, candidates, levels and restarts of gi-nas must be at least 1")

    def matches(self, observations: Sequence[Observation]) -> list[Match]:
        if self.matching == "sent":
            return by_round(observations, match_sent)
        return by_round(observations, lambda updates: Cosine(match_decoded(updates)))

    def run(
        self, observations: Sequence[Observation], *, seed: int, progress: Progress | None = None
    ) -> Reconstruction:
        check_together(observations)
        labelled = enumerate_labels(self, observations, seed)
        several = [o for o in labelled for _ in range(self.restarts)]
        reconstructions = []
        # One after the other: generators of different architectures cannot be stacked.
        for done, observation in enumerate(several):

            def report(share: float, done: int = done) -> None:
                if progress is not None:
                    progress((done + share) / len(several))

            reconstructions.append(self._run_one(observation, [seed, done], report))
        return keep_best(_side_by_side(reconstructions), self.restarts)

    def search(self, observation: Observation, random: np.random.Generator) -> Iterator[Candidate]:
        """Draw architectures and weights, and look at the first image of each; labels must be known."""
        objective = self._objective(observation)
        shape = observation.victim.shape
        noise = torch.from_numpy(random.standard_normal((observation.batch, *shape), dtype=np.float32))
        noise = noise.to(observation.device)
        for _ in range(self.candidates):
            architecture = draw(self.levels, random)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(random.integers(2**63)))
                network, weights = _flatten(Generator(architecture, self.channels, shape[0]))
            weights = weights.to(observation.device)
            with torch.no_grad():
                loss = float(objective(network(weights, noise)[None]))
            yield Candidate(architecture, network, weights, noise, loss)

    def _objective(self, observation: Observation) -> Objective:
        assert observation.labels is not None
        matches = self.matches([observation])
        labels = one_hot(observation.labels, observation.victim.classes)[None]
        return lambda images: explain([observation], matches, images, labels)

    def _run_one(self, observation: Observation, seeds: list[int], progress: Progress) -> Reconstruction:
        assert observation.labels is not None
        best = min(self.search(observation, np.random.default_rng(seeds)), key=lambda candidate: candidate.loss)
        objective = self._objective(observation)

        def images_of(x: Tensor) -> Tensor:
            return best.network(x[0], best.noise)[None]

        states = adam(
            lambda x: objective(images_of(x)),
            best.weights[None],
            self.iterations,
            lr=self.lr,
            signed=True,
            decay=False,
        )
        # All of the iterations, even when there is nothing left to gain: snapshots of all problems are put together.
        _, history = follow(states, self.iterations, images_of, progress, goal=-math.inf)
        images, labels = history[-1].images, observation.labels.cpu().numpy()[np.newaxis]
        return Reconstruction(images, labels, self.losses_at([observation], images, labels), history)


def _flatten(module: nn.Module) -> tuple[FlatModel, Tensor]:
    names, values = zip(*module.named_parameters(), strict=True)
    flat = torch.cat([value.detach().reshape(-1) for value in values])
    return FlatModel(module.requires_grad_(False), names, tuple(value.shape for value in values)), flat


def _side_by_side(reconstructions: Sequence[Reconstruction]) -> Reconstruction:
    def together(snapshots: tuple[Snapshot, ...]) -> Snapshot:
        images = np.concatenate([snapshot.images for snapshot in snapshots])
        return Snapshot(snapshots[0].iteration, images, np.concatenate([snapshot.losses for snapshot in snapshots]))

    return Reconstruction(
        np.concatenate([one.images for one in reconstructions]),
        np.concatenate([one.labels for one in reconstructions]),
        np.concatenate([one.losses for one in reconstructions]),
        tuple(map(together, zip(*(one.history for one in reconstructions), strict=True))),
    )
