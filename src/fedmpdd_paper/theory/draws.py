"""Many estimates of the same gradients, drawn with the package's kernels."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD
from fedmpdd.directions import Key, partitioned_keys

Float64 = NDArray[np.float64]


def spread_gradients(clients: int, d: int, seed: int, common: float = 0.0) -> NDArray[np.float32]:
    """Gradients [clients, d] of normal entries; `common` is the size of what all of them share."""
    rng = np.random.default_rng([seed, clients, d])
    return (common * rng.standard_normal(d) + rng.standard_normal((clients, d))).astype(np.float32)


def estimates(
    codec: MPDD, gradients: NDArray[np.float32], draws: int, seed: int, *, partitioned: bool = False
) -> Iterator[Float64]:
    """Yield the decoded mean [d] of the gradients in so many rounds, each with fresh keys."""
    rng = np.random.default_rng([seed, codec.m, codec.bits, draws])
    clients = len(gradients)
    for _ in range(draws):
        seeds: list[int] = rng.integers(2**63, size=clients).tolist()
        keys = partitioned_keys(seeds[0], clients) if partitioned else [Key(number) for number in seeds]
        yield codec.decode_mean(codec.encode(gradients, keys)).astype(np.float64)


def squared(vector: NDArray[np.floating]) -> float:
    """‖vector‖², in float64."""
    exact = vector.astype(np.float64).ravel()
    return float(exact @ exact)


def relative_errors(
    codec: MPDD, gradients: NDArray[np.float32], draws: int, seed: int, *, partitioned: bool = False
) -> Float64:
    """‖decoded mean − mean gradient‖² / mean ‖gradient‖² of each round."""
    mean = gradients.astype(np.float64).mean(axis=0)
    scale = squared(gradients) / len(gradients)
    means = estimates(codec, gradients, draws, seed, partitioned=partitioned)
    return np.array([squared(estimate - mean) for estimate in means]) / scale
