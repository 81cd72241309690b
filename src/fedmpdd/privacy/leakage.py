"""What updates reveal by counting alone, whatever the attack: no more bits than they have."""

import lzma
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import Codec


def entropy_bound(images: NDArray[np.uint8]) -> float:
    """Bits per image that are enough to write these images down, by a general compressor: their entropy is below."""
    return 8 * len(lzma.compress(np.ascontiguousarray(images).tobytes(), preset=6)) / len(images)


@dataclass(frozen=True)
class Leakage:
    """What one client reveals over a whole run, on average.

    `share` is the bits revealed divided by the bits that its examples hold at most. Below 1, all of them cannot be
    recovered together by anybody; single ones can. `paper` is T·m/d, the paper's measure, which must stay below 1
    there; None for codecs without directions.
    """

    bits_per_update: float
    updates_per_client: float
    bits_revealed: float
    bits_of_data: float
    share: float
    paper: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the meter as it stands in the JSON document."""
        return asdict(self)


def meter(
    codec: Codec, d: int, *, rounds: int, participation: float, examples_per_client: float, bits_per_example: float
) -> Leakage:
    """Count over a run in which each client takes part in a share of the rounds."""
    codecs = [codec] if _is_the_same_throughout(codec, rounds) else [codec.at_round(k) for k in range(rounds)]
    bits = fmean(one.revealed_bits(d) for one in codecs)
    updates = rounds * participation
    data = examples_per_client * bits_per_example
    directions = [one.scalar_codec.m for one in codecs if one.scalar_codec is not None]
    paper = updates * fmean(directions) / d if directions else None
    return Leakage(bits, updates, bits * updates, data, bits * updates / data, paper)


def _is_the_same_throughout(codec: Codec, rounds: int) -> bool:
    return codec.at_round(0) == codec.at_round(rounds - 1) == codec
