"""What codecs that send every coordinate as float32 have in common."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs._arithmetic import weighted_sum
from fedmpdd.codecs._packing import check_finite_values, length_of
from fedmpdd.codecs.base import Arrays, Codec, Float32, Section, Update
from fedmpdd.directions import check_d


class Dense(Codec):
    """d float32 values, averaged by the server as they are."""

    def check(self, d: int, slot: int = 0) -> None:
        """See Codec."""
        check_d(d)

    def sections(self, d: int) -> tuple[Section, ...]:
        """See Codec."""
        return (Section("values", "<f4", d),)

    def check_content(self, arrays: Arrays, d: int) -> None:
        """See Codec."""
        check_finite_values(arrays[0])

    def magnitude(self, update: Update) -> float:
        """See Codec."""
        return length_of(update.arrays[0])

    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        return weighted_sum(d, factors, lambda i, part: updates[i].arrays[0][part])
