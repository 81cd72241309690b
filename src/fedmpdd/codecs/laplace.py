"""FedSGD with Laplace noise, as the paper compares with."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._noise import Noise


@dataclass(frozen=True)
class Laplace(Noise):
    """All d coordinates as float32, each with Laplace noise of variance `noise`, that is of scale √(noise/2).

    Nothing is clipped, so one gradient may differ from another by any amount and there is no ε: this is noise, and no
    guarantee of differential privacy.
    """

    name: ClassVar[str] = "laplace"
    code: ClassVar[int] = 7

    def _draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        return generator.laplace(scale=math.sqrt(self.noise / 2), size=count)
