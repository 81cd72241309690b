"""Levels and bits in bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.packing import (
    check_spare_bits,
    pack_indices,
    pack_nibbles,
    packed_bytes,
    unpack_indices,
    unpack_nibbles,
)
from fedmpdd.errors import ContentError


@given(st.lists(st.integers(-7, 7), min_size=1, max_size=30))
def test_nibbles_are_half_bytes_of_twos_complement(levels: list[int]) -> None:
    packed = pack_nibbles(HOST, np.array([levels] * 2, dtype=np.int8))
    number = sum((level & 15) << 4 * j for j, level in enumerate(levels))
    assert packed[1].tobytes() == number.to_bytes(packed_bytes(len(levels), 4), "little")
    assert unpack_nibbles(HOST, packed, len(levels)).tolist() == [levels] * 2


@given(st.integers(1, 4), st.data())
def test_indices_are_one_little_endian_number(bits: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=30))
    packed = pack_indices(HOST, np.array([indices], dtype=np.uint8), bits)[0]
    number = sum(index << bits * j for j, index in enumerate(indices))
    assert packed.tobytes() == number.to_bytes(packed_bytes(len(indices), bits), "little")
    assert unpack_indices(HOST, packed[np.newaxis], bits, len(indices)).tolist() == [indices]
    check_spare_bits(packed, len(indices), bits)
    if len(indices) * bits % 8:
        packed[-1] |= 0x80
        with pytest.raises(ContentError, match="bits after the last"):
            check_spare_bits(packed, len(indices), bits)
