"""Rounds of several codecs: the weights, the mean, and what is refused."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd.codecs import EDEN, MPDD, Codec, FedSGD, Peaks, TopK, Update
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError, InputError
from fedmpdd.server.replica import Replica
from fedmpdd.server.step import Step, StepRule
from fedmpdd.uplink import (
    ErrorFeedback,
    MixedMean,
    MixedMemory,
    MixedUplink,
    MixedUploads,
    Protection,
    RobustMean,
    Uplink,
    client_weights,
    middle_spread,
    mixed_mean,
    read_mean,
)
from tests.conftest import gaussian

D = 300
SMALL, MIDDLE, LARGE = Peaks(1, group=64), Peaks(4, group=64), MPDD(64, bits=1, family="hadamard")
CODECS = (SMALL, MIDDLE, LARGE)


def updates_of(gradients: NDArray[np.float32], seed: int = 1) -> list[Update]:
    """Client i has codec i mod 3."""
    return [CODECS[i % 3].encode(row, Key(1000 * seed + i)) for i, row in enumerate(gradients)]


def uplink_of(keys: str = "derived", spread: float | None = 1.0, **parts: object) -> MixedUplink:
    return MixedUplink([Uplink(codec, D, keys, **parts) for codec in CODECS], (0, 1, 2), spread)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 40.0])
@pytest.mark.parametrize("weights", [None, [1.0, 4.0, 2.0, 0.5, 1.0]])
def test_weights_minimise_the_error_of_the_mean(spread: float, weights: list[float] | None) -> None:
    """Against the minimum itself: Σ w² (v + spread) / b over w that add up to one, b how much of each client there is.

    A Lagrange system, solved as such: (2·diag(c), −1; 1ᵀ, 0)·(w, λ) = (0, 1).
    """
    codecs = [SMALL, MIDDLE, LARGE, LARGE, SMALL]
    base = np.array(weights or [1.0] * 5)
    costs = np.array([float(codec.variance(D) or 0) + spread for codec in codecs]) / base
    system = np.block([[2 * np.diag(costs), -np.ones((5, 1))], [np.ones((1, 5)), np.zeros((1, 1))]])
    best = np.linalg.solve(system, np.array([0, 0, 0, 0, 0, 1.0]))[:5]
    assert np.allclose(client_weights(codecs, D, weights, spread=spread), best, rtol=1e-9)


def test_weights_beat_others_in_the_error_that_is_measured() -> None:
    """Equal gradients, 300 rounds: equal weights have 1.94 times the error, as the codecs state.

    Over eight other blocks of 300 seeds the measured ratio has a deviation of 0.012; 0.08 is six of these, which a
    normal variable exceeds once in 10^9 seeds.
    """
    gradient = gaussian(1, D, seed=3)[0]
    errors: dict[str, list[float]] = {"variance": [], "equal": []}
    for seed in range(300):
        updates = updates_of(np.tile(gradient, (9, 1)), seed)
        for name, spread in (("variance", 0.0), ("equal", math.inf)):
            estimate = mixed_mean(updates, CODECS, spread=spread).estimate()
            errors[name].append(float(np.square(estimate - gradient).sum()))
    expected = _error(math.inf) / _error(0.0)
    assert expected == pytest.approx(1.94, abs=0.005)
    assert np.mean(errors["equal"]) / np.mean(errors["variance"]) == pytest.approx(expected, abs=0.08)


def _error(spread: float) -> float:
    weights = client_weights(CODECS * 3, D, spread=spread)
    return math.fsum(w * w * float(codec.variance(D) or 0) for w, codec in zip(weights, CODECS * 3, strict=True))


def test_an_infinite_spread_weighs_all_alike_and_asks_for_no_variance() -> None:
    assert client_weights([SMALL, LARGE, TopK(3)], D, spread=math.inf) == pytest.approx((1 / 3,) * 3)
    assert client_weights([SMALL, LARGE], D, [1.0, 3.0], spread=math.inf) == pytest.approx((0.25, 0.75))


def test_the_middle_spread_takes_the_root_of_what_weights_differ_by() -> None:
    largest, smallest = (client_weights([LARGE, SMALL], D, spread=0.0)[i] for i in (0, 1))
    weights = client_weights([LARGE, SMALL], D)
    assert weights[0] / weights[1] == pytest.approx(math.sqrt(largest / smallest))
    assert middle_spread([0.0, 9.0, None]) == middle_spread([None]) == 1.0


def test_absent_links_do_not_move_the_spread() -> None:
    """It is that of the run's codecs: a round without some of them weighs the others as any round does."""
    updates = updates_of(gaussian(6, D))
    shares = [{part.codec: part.share for part in mixed_mean(some, CODECS).parts} for some in (updates, updates[:2])]
    assert shares[0][0] / shares[0][1] == pytest.approx(shares[1][0] / shares[1][1])


def test_codecs_that_state_no_error_are_refused() -> None:
    with pytest.raises(CodecError, match="topk does not state the error of its updates"):
        client_weights([SMALL, TopK(3)], D)
    with pytest.raises(CodecError, match="topk does not state"):
        MixedUplink([Uplink(codec, D) for codec in (SMALL, TopK(3))], (0, 1))
    MixedUplink([Uplink(codec, D) for codec in (SMALL, TopK(3))], (0, 1), math.inf)


@pytest.mark.parametrize("spread", [-1.0, math.nan, True, "1"])
def test_a_spread_is_a_number_from_0(spread: float) -> None:
    with pytest.raises(CodecError, match="expected 0 or more"):
        client_weights([SMALL], D, spread=spread)


def test_who_loses_nothing_does_not_silence_the_others() -> None:
    with pytest.raises(CodecError, match="fedsgd loses nothing"):
        client_weights([SMALL, FedSGD()], D, spread=0.0)
    assert client_weights([SMALL, FedSGD()], D, spread=1.0)[1] > 0.9
    assert client_weights([SMALL, FedSGD()], D)[1] > 0.9


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0]])
def test_weights_of_clients_are_checked(weights: list[float]) -> None:
    with pytest.raises(CodecError, match="weights"):
        client_weights([SMALL, LARGE], D, weights)
    with pytest.raises(CodecError, match="weights"):
        mixed_mean(updates_of(gaussian(2, D)), CODECS, weights)


# --------------------------------------------------------------------------------------------------------- mean


def test_the_mean_is_unbiased() -> None:
    """2,000 rounds of unequal gradients and weights: every coordinate within 5.5 deviations of the weighted mean.

    For each of 300 normal coordinates that is missed with probability 4·10^-8, for any of them with 1.1·10^-5.
    """
    gradients, weights = gaussian(6, D, seed=5), [1.0, 2.0, 0.5, 1.0, 3.0, 1.0]
    codecs = [CODECS[i % 3] for i in range(6)]
    expected = np.array(client_weights(codecs, D, weights)) @ gradients.astype(np.float64)
    estimates = np.stack(
        [mixed_mean(updates_of(gradients, seed), CODECS, weights).estimate() for seed in range(2000)]
    ).astype(np.float64)
    deviation = estimates.std(axis=0, ddof=1) / math.sqrt(len(estimates))
    assert np.abs((estimates.mean(axis=0) - expected) / deviation).max() < 5.5


def test_the_mean_is_the_sum_of_shares_one_operation_at_a_time() -> None:
    gradients, weights = gaussian(5, D), [1.0, 2.0, 0.5, 1.0, 3.0]
    updates = updates_of(gradients)
    mean = mixed_mean(updates, CODECS, weights, spread=2.0)
    total = np.zeros(0, np.float32)
    each = client_weights([update.codec for update in updates], D, weights, spread=2.0)
    shares = [math.fsum(each[i] for i in range(5) if i % 3 == number) for number in range(3)]
    assert [part.share for part in mean.parts] == pytest.approx(shares)
    for number, part in enumerate(mean.parts):
        places = [i for i in range(5) if i % 3 == number]
        decoded = CODECS[number].decode_mean([updates[i] for i in places], [weights[i] for i in places])
        product = decoded * np.float32(part.share / math.fsum(one.share for one in mean.parts))
        total = product if number == 0 else total + product
    assert mean.estimate().dtype == np.float32
    assert mean.estimate().tobytes() == total.tobytes()


def test_one_codec_alone_has_the_bits_of_a_plain_mean() -> None:
    updates = MIDDLE.encode(gaussian(3, D), [Key(1), Key(2), Key(3)])
    assert mixed_mean(updates, CODECS).estimate().tobytes() == MIDDLE.decode_mean(updates).tobytes()


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 1.0, 3.0]])
def test_a_follower_gets_the_same_bits_from_the_bundle(weights: list[float] | None) -> None:
    mean = mixed_mean(updates_of(gaussian(5, D)), CODECS, weights)
    data = mean.bundle().pack()
    again = read_mean(data, CODECS, D)
    assert isinstance(again, MixedMean)
    assert again.estimate().tobytes() == mean.estimate().tobytes()
    replicas = [
        Replica(np.ones(D, np.float32), Step(StepRule("adam"), 0.1, lambda: np.zeros(D, np.float32))) for _ in "ab"
    ]
    replicas[0].take(mean, 0.5)
    replicas[1].apply(data, CODECS, 0.5)
    assert replicas[0].flat.tobytes() == replicas[1].flat.tobytes()
    assert replicas[1].next_round == 1


def test_a_round_without_answers_changes_nothing() -> None:
    replica = Replica(np.ones(D, np.float32), Step(StepRule(), 0.1, lambda: np.zeros(D, np.float32)))
    replica.apply(bytes(8), CODECS)
    assert (replica.flat == 1).all()
    assert replica.next_round == 1


def test_who_weighs_nothing_is_left_out_with_its_part() -> None:
    updates = updates_of(gaussian(4, D))
    mean = mixed_mean(updates, CODECS, [1.0, 0.0, 1.0, 0.0])
    assert [part.codec for part in mean.parts] == [0, 2]
    assert read_mean(mean.bundle().pack(), CODECS, D) is not None


def test_updates_of_other_codecs_are_refused() -> None:
    with pytest.raises(CodecError, match="update 0 is from"):
        mixed_mean([FedSGD().encode(gaussian(1, D)[0], Key(1))], CODECS)
    with pytest.raises(CodecError, match="no updates"):
        mixed_mean([], CODECS)
    with pytest.raises(CodecError, match="0 and 1 have the same codec"):
        mixed_mean(updates_of(gaussian(1, D)), (SMALL, SMALL))


# ------------------------------------------------------------------------------------------------------- uplink


def uploads_of(uplink: MixedUplink, gradients: NDArray[np.float32], clients: list[int]) -> MixedUploads:
    return uplink.encode(0, gradients, [Key(50 + client) for client in clients], clients)


def test_clients_have_the_codec_of_their_link() -> None:
    uplink, gradients = uplink_of(), gaussian(6, D)
    uploads = uploads_of(uplink, gradients, [0, 2, 4, 5, 7, 9])
    assert uploads.places == ((0, 5), (2, 4), (1, 3))
    for codec, part, places in zip(CODECS, uploads.parts, uploads.places, strict=True):
        assert part is not None
        alone = codec.encode(gradients[list(places)], [Key(50 + [0, 2, 4, 5, 7, 9][place]) for place in places])
        assert part.batch.updates() == alone
    sizes = [codec.bytes_per_update(D) for codec in CODECS]
    assert uploads.payload_bytes == 2 * sum(sizes)
    assert uploads.frame_bytes == 2 * sum(size + 8 for size in sizes)


def test_several_links_can_have_one_codec() -> None:
    uplink = MixedUplink([Uplink(codec, D, "derived") for codec in (SMALL, LARGE)], (0, 0, 1))
    assert uplink.places([0, 1, 2, 3, 4, 5]) == [[0, 1, 3, 4], [2, 5]]


def test_groups_of_clients_change_no_bit() -> None:
    uplink, gradients, clients = uplink_of(), gaussian(7, D), [0, 1, 3, 4, 6, 8, 10]
    weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    whole = uploads_of(uplink, gradients, clients)
    cuts = [slice(0, 3), slice(3, 4), slice(4, 7)]
    joined = MixedUploads.joined([uploads_of(uplink, gradients[cut], clients[cut]) for cut in cuts])
    assert joined.places == whole.places
    assert (joined.frame_bytes, joined.payload_bytes) == (whole.frame_bytes, whole.payload_bytes)
    means = [uplink.mean(uploads, weights) for uploads in (whole, joined, uplink.through_frames(0, whole))]
    assert len({mean.bundle().pack() for mean in means}) == 1


def test_the_uplink_and_loose_updates_make_the_same_bundle() -> None:
    uplink, gradients, clients = uplink_of(spread=7.0), gaussian(6, D), list(range(6))
    updates = [CODECS[i % 3].encode(gradients[i], Key(50 + i)) for i in clients]
    weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    mean = uplink.mean(uploads_of(uplink, gradients, clients), weights)
    assert mean.bundle() == mixed_mean(updates, CODECS, weights, spread=7.0).bundle()


@pytest.mark.parametrize(("keys", "words"), [("shared", "have the same error"), ("partitioned", "slots of different")])
def test_keys_that_links_cannot_have_are_refused(keys: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        uplink_of(keys)


def test_noise_of_protected_updates_holds_weights_together() -> None:
    """It is as large in all parts, whatever m: a large update is then not worth as much more."""
    codecs = (MPDD(8), MPDD(64))
    gradients = gaussian(4, D)
    shares = []
    for noise in (0.0, 5.0):
        protections = [Protection(codec, clip=2.0, noise_multiplier=noise) for codec in codecs]
        pairs = zip(codecs, protections, strict=True)
        uplink = MixedUplink([Uplink(codec, D, "derived", protection=one) for codec, one in pairs], (0, 1), 1.0)
        uploads = uplink.encode(0, gradients, [Key(i) for i in range(4)], list(range(4)))
        shares.append([part.share for part in uplink.mean(uploads).parts])
    assert shares[0][1] / shares[0][0] == pytest.approx(8, rel=0.2)
    assert shares[1][1] / shares[1][0] < 1.2


def test_memories_are_kept_by_client() -> None:
    codecs = (EDEN(1), EDEN(2))
    memories = [ErrorFeedback(codec) for codec in codecs]
    uplinks = [Uplink(codec, D, "derived", memory=one) for codec, one in zip(codecs, memories, strict=True)]
    uplink, memory = MixedUplink(uplinks, (0, 1)), MixedMemory(memories, (0, 1))
    gradients = gaussian(3, D)
    uplink.encode(0, gradients, [Key(i) for i in range(3)], [0, 1, 3])
    state = memory.state()
    assert sorted(state) == [0, 1, 3]
    alone = ErrorFeedback(codecs[1])
    alone.encode(gradients[1:], [Key(1), Key(2)], [1, 3])
    assert all(state[client].tobytes() == vector.tobytes() for client, vector in alone.state().items())
    again = [ErrorFeedback(codec) for codec in codecs]
    MixedMemory(again, (0, 1)).load(state)
    assert sorted(again[0].state()) == [0]
    assert sorted(again[1].state()) == [1, 3]


def test_a_liar_alone_in_its_part_moves_the_robust_mean_little() -> None:
    """It is as large as the median of all parts at most, and claims of others' parts do not bound it alone."""
    honest = np.tile(gaussian(1, D, seed=2), (9, 1))
    lying = honest.copy()
    lying[2] *= -1000  # the one client of link 2
    clients = [0, 1, 2, 3, 4, 6, 7, 9, 10]
    sizes = []
    for robust in (None, RobustMean()):
        uplink = uplink_of(robust=robust)
        estimates = [uplink.mean(uploads_of(uplink, rows, clients)).estimate() for rows in (honest, lying)]
        sizes.append(float(np.linalg.norm(estimates[1] - estimates[0]) / np.linalg.norm(estimates[0])))
    assert sizes[0] > 100
    assert sizes[1] < 3


def test_robust_rounds_go_through_bytes() -> None:
    uplink = uplink_of(robust=RobustMean())
    mean = uplink.mean(uploads_of(uplink, gaussian(18, D), list(range(18))), [float(i + 1) for i in range(18)])
    again = read_mean(mean.bundle().pack(), CODECS, D)
    assert again is not None
    assert again.estimate().tobytes() == mean.estimate().tobytes()


def test_codecs_know_their_round() -> None:
    growing: Codec = Peaks(1, group=16, grows_to=4, grows_after=2)
    uplink = MixedUplink([Uplink(codec, D, "derived") for codec in (growing, Peaks(4, group=16))], (0, 1), 0.0)
    gradients, keys = gaussian(2, D), [Key(1), Key(2)]
    ratios = []
    for k in (0, 10):
        parts = uplink.mean(uplink.encode(k, gradients, keys, [0, 1]), round_number=k).parts
        ratios.append(parts[1].share / parts[0].share)
    assert ratios[0] > 3
    assert ratios[1] == 1
