"""FedSGD with Gaussian noise, as the paper compares with."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._noise import Noise


@dataclass(frozen=True)
class Gaussian(Noise):
    """All d coordinates as float32, each with normal noise of variance `noise`.

    Nothing is clipped, so one gradient may differ from another by any amount and there is no ε: this is noise, and no
    guarantee of differential privacy.
    """

    name: ClassVar[str] = "gaussian"
    code: ClassVar[int] = 8

    def _draw(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        return generator.normal(scale=math.sqrt(self.noise), size=count)
