"""What protects an update: clipping and Gaussian noise on its scalars, and a coarsened scale.

None of it is on the wire, so this is a wrapper around a codec: updates are those of the codec and decode as such. What
is guaranteed, and what is not, is in docs/protection.md; the ε comes from fedmpdd.guarantees.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import Batch, Codec, ScalarCodec
from fedmpdd.codecs.arithmetic import sphere_factor
from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.base import LARGEST_COORDINATE, Float32
from fedmpdd.codecs.scalar_codes import SignCode
from fedmpdd.directions import Key, family_named
from fedmpdd.errors import CodecError

if TYPE_CHECKING:
    from torch import Tensor

Float64 = NDArray[np.float64]

# Clipped a hair short of the bound, so that no rounding of float64 carries a vector over it.
_JUST_BELOW_ONE = 1 - 2.0**-40
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class SystemNoise:
    """Randomness of the operating system, every number fresh: nobody can compute it again, not even who drew it."""

    def random(self, size: int) -> Float64:
        """Draw uniform numbers from 0 to 1, 1 excluded, in steps of 2^-53."""
        words = np.frombuffer(os.urandom(8 * size), dtype="<u8") >> np.uint64(11)
        return np.asarray(words * 2.0**-53)

    def standard_normal(self, size: int) -> Float64:
        """Draw normal numbers, by Box and Muller's transform; none is beyond 8.6 deviations."""
        pairs = (size + 1) // 2
        radius = np.sqrt(-2 * np.log1p(-self.random(pairs)))
        angle = 2 * math.pi * self.random(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


NoiseSource = SystemNoise | np.random.Generator  # a generator makes a simulation repeatable, and protects nobody


@dataclass(frozen=True)
class Protection:
    """FedMPDD whose scalars are clipped and noisy, whose one-bit scale is coarse, or both.

    clip: the scalars s of an update are shrunk, all by one factor, to ‖s‖ ≤ √m·clip. A gradient of norm `clip` has
        scalars of about that length. It is s that is clipped, not the gradient: who knows the directions sees s, and
        its length exceeds √m·‖g‖ as often as it falls short of it.
    noise_multiplier: each scalar then gets normal noise of deviation noise_multiplier·√m·clip. Bits and scale come
        after that and see nothing but noisy scalars, so that they cost no privacy.
    scale_grid: the scale of one-bit scalars becomes a power of this number, one of the two around it, drawn so that
        its mean is right.
    """

    codec: Codec
    clip: float | None = None
    noise_multiplier: float = 0.0
    scale_grid: float | None = None

    def __post_init__(self) -> None:
        self.codec.along_directions()
        if self.clip is not None and not (_is_number(self.clip) and 0 < self.clip < math.inf):
            raise CodecError(f"clip = {self.clip!r}: expected a finite number above 0, about the norm of a gradient")
        if not (_is_number(self.noise_multiplier) and 0 <= self.noise_multiplier < math.inf):
            raise CodecError(f"noise_multiplier = {self.noise_multiplier!r}: expected a finite number, 0 for no noise")
        if self.scale_grid is not None and not (_is_number(self.scale_grid) and 1 < self.scale_grid < math.inf):
            raise CodecError(f"scale_grid = {self.scale_grid!r}: expected a finite number above 1, such as 2")
        if self.noise_multiplier > 0 and self.clip is None:
            raise CodecError(
                f"noise_multiplier = {self.noise_multiplier} is relative to clip, and there is none: without a bound "
                "on the scalars no noise is enough; set clip to about the norm of a gradient"
            )
        if self.scale_grid is not None and not self._has_signs:
            raise CodecError(
                f"scale_grid = {self.scale_grid} with {self.codec} hides nothing: the size of its scalars tells the "
                "norm, or nothing does; it is for bits = 1"
            )
        if self.clip is None and self.scale_grid is None:
            raise CodecError("neither clip nor scale_grid is set, so that nothing is protected; use the codec itself")

    @property
    def _scalar_codec(self) -> ScalarCodec:
        return self.codec.along_directions()

    @property
    def _has_signs(self) -> bool:
        """Whether scalars are signs that come with a scale."""
        return isinstance(self._scalar_codec.scalars, SignCode)

    @property
    def bound(self) -> float:
        """The largest ‖s‖ after clipping, √m·clip: what one update can change."""
        return math.inf if self.clip is None else math.sqrt(self._scalar_codec.count) * self.clip

    @property
    def noise_deviation(self) -> float:
        """The deviation of the noise on each scalar."""
        return self.noise_multiplier * self.bound if self.noise_multiplier > 0 else 0.0

    def encode(
        self,
        gradients: "Float32 | Tensor",
        keys: Sequence[Key | int],
        sources: Sequence[NoiseSource] | None = None,
    ) -> Batch:
        """Encode gradients [clients, d] with noise from these sources, one per client.

        By default it is the operating system's. Whoever knows a source can take the noise off again: generators with
        a seed are for simulations.
        """
        sources = _one_each(sources, len(gradients))
        if self.clip is None:
            return self._with_coarse_scales(self.codec.encode_batch(gradients, keys), sources)
        exact = self._scalar_codec.with_bits(32).encode_batch(gradients, keys)
        scalars = np.stack([update.arrays[0] for update in exact.updates()]).astype(np.float64)
        return self.encode_scalars(scalars, exact.keys, exact.d, sources)

    def encode_scalars(
        self, scalars: Float64, keys: Sequence[Key], d: int, sources: Sequence[NoiseSource] | None = None
    ) -> Batch:
        """Encode scalars [clients, count] that somebody computed without a gradient; sources as for `encode`.

        The scale of signs is then always made from the scalars.
        """
        sources = _one_each(sources, len(scalars))
        if self.clip is None:
            return self._with_coarse_scales(self._scalar_codec.encode_scalars(scalars, keys, d), sources)
        noisy = clipped_rows(scalars, self.bound)
        if self.noise_multiplier > 0:
            noise = np.stack([source.standard_normal(scalars.shape[1]) for source in sources])
            noisy = noisy + self.noise_deviation * noise
        return self.from_noisy(noisy, keys, d, sources)

    def from_noisy(self, noisy: Float64, keys: Sequence[Key], d: int, sources: Sequence[NoiseSource]) -> Batch:
        """Turn noisy scalars [clients, count] into updates. The gradient has no part in it: it is post-processing."""
        if not (np.abs(noisy) <= _LARGEST_FLOAT32).all():
            raise CodecError("a noisy scalar overflows float32: clip and noise are too large; lower them")
        codec, rows = self._scalar_codec, noisy.astype(np.float32)
        if not self._has_signs:
            return Batch(self.codec, d, tuple(keys), codec.write(HOST, rows, None, list(keys)))
        # Unbiased where scalars are normal: E[‖s‖·|s_1|] = E‖s‖²·E|θ_1|, θ uniform on the sphere.
        scales = sphere_factor(codec.count) * np.sqrt((noisy * noisy).mean(axis=1))
        if self.scale_grid is not None:
            scales = np.array([self._coarse(scale, source) for scale, source in zip(scales, sources, strict=True)])
        return Batch(self.codec, d, tuple(keys), codec.write(HOST, rows, None, list(keys), scales))

    def _with_coarse_scales(self, batch: Batch, sources: Sequence[NoiseSource]) -> Batch:
        scales, signs = (np.stack(rows) for rows in zip(*(one.arrays for one in batch.updates()), strict=True))
        coarse = np.array([self._coarse(float(row[0]), source) for row, source in zip(scales, sources, strict=True)])
        if (coarse > LARGEST_COORDINATE).any():
            raise CodecError(
                f"the coarse scale is above {LARGEST_COORDINATE:.4g}, beyond which an estimate could leave float32: "
                "scale or clip the gradient before encoding"
            )
        sent = coarse.astype(np.float32)[:, np.newaxis]
        return Batch(batch.codec, batch.d, batch.keys, (sent, np.where(sent > 0, signs, 0).astype(np.uint8)))

    def _coarse(self, scale: float, source: NoiseSource) -> float:
        """One of the two powers of the grid around a scale, with a mean that is the scale; 0 stays 0."""
        assert self.scale_grid is not None
        if scale == 0:
            return 0.0
        below = self.scale_grid ** math.floor(math.log(scale) / math.log(self.scale_grid))
        # The logarithm may be off by its last digit, where the scale is a power itself.
        if below > scale:
            below /= self.scale_grid
        above = below * self.scale_grid
        return above if float(source.random(1)[0]) * (above - below) < scale - below else below

    def variance(self, d: int, n: int = 1, *, norm: float) -> float:
        """Return E‖mean of n estimates − mean of n gradients‖² / norm², for gradients of that norm.

        For independent keys and gradients that clipping leaves as they are. With a scale grid it is the largest
        possible; scales at a power of the grid lose nothing.
        """
        if not (_is_number(norm) and 0 < norm < math.inf):
            raise CodecError(f"norm = {norm!r}: expected the norm of a gradient, finite and above 0")
        self.codec.variance(d, n)  # checks d and n
        m = self._scalar_codec.count
        second = self._scalar_codec.scalars.second_moment(m)
        if self.clip is not None:
            if self._has_signs:
                second = sphere_factor(m) ** 2
            second *= 1 + (self.noise_deviation / norm) ** 2
        square = d / m * second + (1 - 1 / m) * family_named(self._scalar_codec.family).overlap(d)  # E‖ĝ‖² / ‖g‖²
        if self.scale_grid is not None:
            # (above − x)(x − below) / x² is largest at the harmonic mean of the two.
            square *= 1 + (self.scale_grid - 1) ** 2 / (4 * self.scale_grid)
        return (square - 1) / n


def _one_each(sources: Sequence[NoiseSource] | None, clients: int) -> Sequence[NoiseSource]:
    if sources is None:
        return [SystemNoise()] * clients
    if len(sources) != clients:
        raise CodecError(f"{clients} gradients came with {len(sources)} sources of noise; each needs one")
    return sources


def clipped_rows(rows: Float64, bound: float) -> Float64:
    """Shrink each row that is longer than `bound` to it."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    too_long = lengths > bound
    factors = np.where(too_long, bound * _JUST_BELOW_ONE / np.where(too_long, lengths, 1.0), 1.0)
    return np.asarray(rows * factors)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
