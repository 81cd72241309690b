"""What the server of a secure sum sees is random, and all that it can work out is the sum.

Statistical tests draw fresh randomness, as the protocol does. Each of the eleven comparisons raises a false alarm with
probability ALARM = 1e-9, or about; controls show what they do not miss.
"""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedmpdd.secure_sum import Phase, primitives
from fedmpdd.secure_sum.client import pair_mask, self_mask
from fedmpdd.secure_sum.messages import HEADER_BYTES
from tests.secure_sum.rounds import Round, terms_of

ALARM = 1e-9


def chi_square(octets: NDArray[np.uint8]) -> float:
    """The p value of bytes being uniform."""
    return float(stats.chisquare(np.bincount(octets, minlength=256)).pvalue)


def views(value: int, rounds: int, *, lifted: bool = False) -> NDArray[np.uint32]:
    """Masked vectors [rounds, 3, 64] of three clients that all send one value; or these less their own masks."""
    terms = terms_of(3, 64)
    seen = []
    for _ in range(rounds):
        # Unmasked with nobody gone, the server knows every seed, and no mask that two clients agreed on.
        this = Round(terms, np.full((3, 64), value, np.uint64), until=Phase.UNMASK)
        rows = [this.masked(i) for i in range(3)]
        if lifted:
            rows = [terms.ring.reduced(row - self_mask(terms, i, this.clients[i]._seed)) for i, row in enumerate(rows)]
        seen.append(np.stack(rows))
    return np.stack(seen).astype(np.uint32)


ROUNDS = 150
CONSTANT = 12_345


@pytest.fixture(scope="module")
def seen() -> NDArray[np.uint32]:
    return views(CONSTANT, ROUNDS)


@pytest.fixture(scope="module")
def seen_lifted() -> NDArray[np.uint32]:
    return views(CONSTANT, ROUNDS, lifted=True)


def test_masked_constants_look_uniform(seen: NDArray[np.uint32]) -> None:
    assert chi_square(seen.view(np.uint8).ravel()) > ALARM
    assert len(np.unique(seen)) > 0.999 * seen.size  # 2^32 values for 28,800 draws: hardly two alike


def test_even_with_the_seeds_a_single_vector_stays_uniform_and_only_the_sum_is_fixed(
    seen_lifted: NDArray[np.uint32],
) -> None:
    for pair in itertools.combinations(range(3), 2):
        two = seen_lifted[:, pair]
        assert chi_square(two.view(np.uint8).ravel()) > ALARM
        # The two together: the leading hex digits of both make 256 cells.
        digits = (two[:, 0] >> 28 << 4 | two[:, 1] >> 28).astype(np.uint8)
        assert chi_square(digits.ravel()) > ALARM
    assert (seen_lifted.sum(axis=1, dtype=np.uint64) % 2**32 == 3 * CONSTANT).all()


def test_two_inputs_give_views_that_no_test_tells_apart(seen: NDArray[np.uint32]) -> None:
    other = views(2**32 - 1, ROUNDS)
    counts = [np.bincount(sample.view(np.uint8).ravel(), minlength=256) for sample in (seen, other)]
    assert stats.chi2_contingency(np.stack(counts)).pvalue > ALARM
    assert stats.ks_2samp(seen.ravel(), other.ravel()).pvalue > ALARM


def test_the_tests_would_see_masks_that_are_missing_weak_or_repeated(seen: NDArray[np.uint32]) -> None:
    """Controls: without them, passing would say little."""
    plain = np.full_like(seen, CONSTANT)
    assert chi_square(plain.view(np.uint8).ravel()) < ALARM
    small_masks = (seen >> 6) + np.uint32(CONSTANT)  # masks of 26 bits
    assert chi_square(small_masks.view(np.uint8).ravel()) < ALARM
    repeated = np.broadcast_to(seen[:1], seen.shape)  # the same masks in every round
    assert chi_square(np.ascontiguousarray(repeated).view(np.uint8).ravel()) < ALARM


def test_sealed_shares_look_uniform_too() -> None:
    boxes = b"".join(
        message[HEADER_BYTES:]
        for _ in range(40)
        for message in Round(terms_of(5), until=Phase.MASK).sent[Phase.SHARE].values()
    )
    assert chi_square(np.frombuffer(boxes, np.uint8)) > ALARM


def test_who_was_called_a_drop_out_and_comes_late_stays_hidden() -> None:
    """The reason for the second mask: the server then knows the key, and so all masks of pairs."""
    terms = terms_of(3, 2_000, threshold=2)
    this = Round(terms, until=Phase.MASK)
    this.answers(Phase.MASK)
    late = 0
    for i in (1, 2):
        this.server.receive(i, this.sent[Phase.MASK][i])
    opening = this.server.advance()
    assert set(opening) == {1, 2}
    for i in (1, 2):
        this.server.receive(i, this.clients[i].unmask(opening[i]))
    assert not this.server.finish().any()
    secret = this.clients[late]._mask_secret
    vector = this.masked(late)
    for other in (1, 2):
        vector = vector - pair_mask(terms, late, other, secret, this.clients[other]._mask_keys[other])
    assert (vector == self_mask(terms, late, this.clients[late]._seed)).all()  # of zeros, the mask alone is left
    assert chi_square(vector.view(np.uint8)) > ALARM


def test_masks_cancel_and_no_two_rounds_clients_or_purposes_share_one() -> None:
    secrets = [primitives.new_secret() for _ in range(2)]
    public = [primitives.public_of(secret) for secret in secrets]
    terms, later = terms_of(2, 50), terms_of(2, 50, round=4)
    here = pair_mask(terms, 0, 1, secrets[0], public[1])
    there = pair_mask(terms, 1, 0, secrets[1], public[0])
    assert not (here + there).any()
    agreed = primitives.agree(secrets[0], public[1])
    masks = [
        here,
        pair_mask(later, 0, 1, secrets[0], public[1]),
        self_mask(terms, 0, agreed),
        self_mask(terms, 1, agreed),
        self_mask(later, 0, agreed),
    ]
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    first, second = (Round(terms, until=Phase.UNMASK) for _ in range(2))
    assert first.sent[Phase.MASK][0] != second.sent[Phase.MASK][0]  # even with the same terms and vectors
