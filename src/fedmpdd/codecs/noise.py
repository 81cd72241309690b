"""FedSGD with Laplace or Gaussian noise, as the paper compares with."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import CHUNK, Array, Backend
from fedmpdd.codecs.base import Columns, Parameters
from fedmpdd.codecs.fedsgd import Dense
from fedmpdd.directions import Key
from fedmpdd.directions import backend as kernel_settings
from fedmpdd.errors import CodecError

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Noise(Dense):
    """The whole gradient plus independent noise of variance `noise` on each coordinate.

    `noise` is rounded to float32, which is how a frame carries it. The noise comes from the key, so that a run can be
    repeated: keep the seed from whoever must not remove the noise. No update carries it. Nothing is clipped, so one
    gradient may differ from another by any amount and there is no ε: this is no guarantee of differential privacy.
    """

    noise: float

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

    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        backend.check_finite(gradients)
        out = backend.copy(gradients)
        for row, noise in enumerate(self._noise_of(keys, gradients.shape[1])):
            # Never infinite: noise of the largest float32 variance is below the last digit of the largest float32.
            out[row] = backend.cast(backend.cast(gradients[row], "<f8") + backend.like(noise), "<f4")
        return (out,)

    def _noise_of(self, keys: Sequence[Key], d: int) -> Iterator[NDArray[np.float64]]:
        """The noise of each client: drawn on the CPU wherever the gradients are, a thread for each of a few clients."""

        def draw(key: Key) -> NDArray[np.float64]:
            generator = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
            return np.concatenate([self._draw(generator, min(CHUNK, d - start)) for start in range(0, d, CHUNK)])

        threads = kernel_settings().threads
        if len(keys) == 1 or d < CHUNK:  # a thread takes longer to start
            yield from map(draw, keys)
            return
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(keys), threads):
                yield from pool.map(draw, keys[start : start + threads])


@dataclass(frozen=True)
class Laplace(Noise):
    """All d coordinates as float32, each with Laplace noise of variance `noise`."""

    name: ClassVar[str] = "laplace"
    code: ClassVar[int] = 7

    def _draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        return generator.laplace(scale=math.sqrt(self.noise / 2), size=count)


@dataclass(frozen=True)
class Gaussian(Noise):
    """All d coordinates as float32, each with normal noise of variance `noise`, as the paper compares with."""

    name: ClassVar[str] = "gaussian"
    code: ClassVar[int] = 8

    def _draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        return generator.normal(scale=math.sqrt(self.noise), size=count)
