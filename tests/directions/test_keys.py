from typing import Any

import numpy as np
import pytest

from fedmpdd.directions import Key, check_key, derive_seed, partitioned_keys, reference, round_seed, spec
from fedmpdd.directions.keys import check_client
from fedmpdd.errors import KeyRangeError


def test_integers_are_seeds_of_slot_zero() -> None:
    assert check_key(5) == Key(5, 0)
    assert check_key(np.uint64(2**64 - 1)) == Key(2**64 - 1, 0)  # type: ignore[arg-type]
    assert check_key(Key(1, 2)) == Key(1, 2)


@pytest.mark.parametrize("key", [-1, 2**64, Key(0, -1), Key(0, 2**32), 1.5, "7", None, (1, None), (1,), (1, 2, 3)])
def test_keys_out_of_range_are_refused(key: Any) -> None:
    with pytest.raises(KeyRangeError, match=r"expected|pass an int"):
        check_key(key)


def test_derived_seeds_follow_the_spec_and_differ() -> None:
    client = 2**40 + 17
    counter = np.array([[client % 2**32, 3, spec.DOMAIN_SEEDS, client >> 32]], dtype=np.uint64)
    low, high, _, _ = reference.philox4x32(counter, 99)[0].tolist()
    assert derive_seed(99, 3, client) == low | high << 32
    seeds = {derive_seed(s, r, c) for s in range(5) for r in range(20) for c in range(50)}
    assert len(seeds) == 5 * 20 * 50


@pytest.mark.parametrize(("session", "round_number", "client"), [(-1, 0, 0), (0, 2**32, 0), (0, 0, 2**64), (0, -1, 0)])
def test_derived_seeds_out_of_range_are_refused(session: int, round_number: int, client: int) -> None:
    with pytest.raises(KeyRangeError, match="out of range"):
        derive_seed(session, round_number, client)


def test_derived_seeds_take_numpy_integers_and_no_others() -> None:
    assert derive_seed(1, np.int8(2), np.int32(5)) == derive_seed(1, 2, 5)  # type: ignore[arg-type]
    with pytest.raises(KeyRangeError, match="must be integers"):
        derive_seed(1, 0, 2.5)  # type: ignore[arg-type]


def test_the_seed_of_a_round_is_that_of_no_client() -> None:
    assert round_seed(99, 3) == derive_seed(99, 3, 2**64 - 1)
    assert check_client(2**64 - 3) == 2**64 - 3
    for nobody in (2**64 - 2, 2**64 - 1):
        with pytest.raises(KeyRangeError, match="the two above are the server's"):
            check_client(nobody)


def test_partitioned_keys_share_a_seed_and_not_a_slot() -> None:
    assert partitioned_keys(8, 3) == [Key(8, 0), Key(8, 1), Key(8, 2)]
