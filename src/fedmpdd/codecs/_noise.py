"""What the two codecs that add noise have in common."""

from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import chunks
from fedmpdd.codecs._dense import Dense
from fedmpdd.codecs.base import Arrays, Float32, Parameters
from fedmpdd.directions import Key, check_finite
from fedmpdd.errors import CodecError

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Noise(Dense):
    """The whole gradient plus independent noise of variance `noise` on each coordinate.

    `noise` is rounded to float32, which is how a frame carries it. The noise comes from the key, so that a run can be
    repeated: keep the seed from whoever must not remove the noise. No update carries it.
    """

    noise: float

    unbiased: ClassVar[bool] = True
    needs_key: ClassVar[bool] = False  # the server does not remove the noise
    noise_from_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = self.noise
        rounded = 0.0
        if isinstance(given, Real) and not isinstance(given, bool) and 0 < given <= _LARGEST:
            rounded = float(np.float32(given))
        if rounded == 0:
            raise CodecError(
                f"noise = {given!r} is not a variance: expected a float32 above 0; without noise use FedSGD"
            )
        object.__setattr__(self, "noise", rounded)

    def parameters(self) -> Parameters:
        """See Codec. The size is the bits of the variance as a float32."""
        return Parameters(size=int(np.float32(self.noise).view(np.uint32)))

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        return cls(float(np.uint32(parameters.size).view(np.float32)))

    def noise_variance(self, d: int, n: int = 1) -> float:
        """Return E‖mean of n updates − mean of n gradients‖², which is absolute: it does not shrink with the gradient.

        `variance` is relative to ‖gradient‖² and hence unknown.
        """
        return d * self.noise / n

    @abstractmethod
    def _draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw noise of variance `noise`."""

    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        check_finite(gradients)
        return [(self._noisy(gradient, key),) for gradient, key in zip(gradients, keys, strict=True)]

    def _noisy(self, gradient: Float32, key: Key) -> Float32:
        generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
        out = np.empty_like(gradient)
        for part in chunks(gradient.size):
            # Never infinite: noise of the largest float32 variance is below the last digit of the largest float32.
            out[part] = gradient[part] + self._draw(generator, part.stop - part.start)
        return out
