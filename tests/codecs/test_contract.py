"""What every codec must do, run over the table of codecs.

The statistical tests have fixed seeds and compare z-scores with 5: with fresh seeds each comparison would fail
by chance with probability 6e-7, the whole file with less than 2e-4.
"""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import Key, Session, pack, partitioned_keys, unpack
from fedmpdd.codecs import CODECS, EDEN, NO_KEY, QSGD, Codec, FeedSign, Gaussian, Laplace, Peaks, SignSGD, Update
from fedmpdd.directions import available_isas, using
from fedmpdd.errors import CodecError, GradientError, KeyRangeError
from tests.codecs.table import BARE_SIGNS, CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

NOISY = (Laplace, Gaussian)  # they add noise to every gradient, zero or not
every_codec = pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)


def relative_errors(codec: Codec, gradients: NDArray[np.float32], trials: int, n: int) -> NDArray[np.float64]:
    """‖estimate − mean‖² / mean ‖g‖² of `trials` rounds of n clients with independent keys."""
    d = gradients.shape[1]
    mean = gradients.mean(axis=0, dtype=np.float64)
    norm = (gradients.astype(np.float64) ** 2).sum(axis=1).mean()
    errors = []
    for trial in range(trials):
        updates = codec.encode(gradients, [1_000_003 * trial + i for i in range(n)])
        errors.append(((codec.decode_mean(updates) - mean) ** 2).sum() / norm)
    assert d == updates[0].d
    return np.array(errors)


def frame_of(update: Update) -> bytes:
    """The frame that the codec allows: self-contained where there is one."""
    return (
        pack(update) if update.codec.self_contained else Session(update.codec, update.d, sends_seed=False).pack(update)
    )


def travel(update: Update) -> Update:
    """There and back as bytes."""
    if update.codec.self_contained:
        return unpack(pack(update))
    session = Session(update.codec, update.d, sends_seed=False)
    return session.unpack(frame_of(update), update.key if session.assigns_key else None)


def test_the_registry_is_in_the_table() -> None:
    assert {codec.name for codec in CODECS_UNDER_TEST} == set(CODECS)
    assert len({codec.code for codec in CODECS.values()}) == len(CODECS)
    assert all(name == codec.name for name, codec in CODECS.items())


@every_codec
def test_round_trip_through_both_kinds_of_frame(codec: Codec) -> None:
    session = Session(codec, D, sends_seed=True)
    assigned = Session(codec, D, sends_seed=False)
    for update in codec.encode(gaussian(3, D), [0, 2**64 - 1, 12345]):
        if codec.self_contained:
            assert unpack(pack(update)) == update
        else:
            with pytest.raises(CodecError, match="use a Session"):
                pack(update)
        if not codec.needs_key:  # the key is not sent, and not missed
            assert update.key == NO_KEY
            assert session.unpack(session.pack(update)) == update
            assert len(session.pack(update)) == codec.bytes_per_update(D) + 8 == session.frame_bytes
            continue
        assert session.unpack(session.pack(update)) == update
        assert assigned.unpack(assigned.pack(update), update.key) == update
        assert len(assigned.pack(update)) == codec.bytes_per_update(D) + 8 == assigned.frame_bytes
        assert len(session.pack(update)) == codec.bytes_per_update(D) + 16 == session.frame_bytes


@every_codec
def test_update_from_bytes_decodes_to_the_same_bits(codec: Codec) -> None:
    updates = codec.encode(gaussian(4, D), partitioned_keys(7, 4))
    travelled = [travel(update) for update in updates]
    assert codec.decode_mean(travelled).tobytes() == codec.decode_mean(updates).tobytes()


@every_codec
def test_same_input_same_updates_on_every_path(codec: Codec) -> None:
    gradients = gaussian(3, D)
    outcomes = set()
    for isa in available_isas():
        for threads in (1, 2):
            with using(isa=isa, threads=threads):
                updates = codec.encode(gradients, [5, 6, 7])
                outcomes.add((*(frame_of(update) for update in updates), codec.decode_mean(updates).tobytes()))
    assert len(outcomes) == 1


@every_codec
def test_a_batch_is_its_clients_one_by_one(codec: Codec) -> None:
    gradients = gaussian(3, D)
    together = codec.encode(gradients, [5, 6, 7])
    alone = [codec.encode(gradients[i : i + 1], [5 + i])[0] for i in range(3)]
    assert together == alone
    uses_the_key = codec.needs_key or isinstance(codec, (QSGD, *NOISY))
    assert (together != codec.encode(gradients, [5, 6, 8])) == uses_the_key


@every_codec
def test_updates_do_not_change_with_the_gradients(codec: Codec) -> None:
    gradients = gaussian(2, D)
    updates = codec.encode(gradients, [5, 6])
    before = [frame_of(update) for update in updates]
    gradients[:] = 0
    assert [frame_of(update) for update in updates] == before


@every_codec
def test_parameters_rebuild_the_codec(codec: Codec) -> None:
    if not codec.self_contained:
        with pytest.raises(CodecError, match="in a Session"):
            type(codec).from_parameters(codec.parameters())
        return
    assert type(codec).from_parameters(codec.parameters()) == codec
    assert hash(type(codec).from_parameters(codec.parameters())) == hash(codec)


@every_codec
def test_parameters_are_those_of_one_codec(codec: Codec) -> None:
    """A header with one field changed is that of another codec or of none: no two frames carry the same update."""
    parameters = codec.parameters()
    if not codec.self_contained:
        pytest.skip(f"{codec.name} cannot be rebuilt from a header")
    for field, value in [(field, value) for field in ("first", "second") for value in (0, 1, 2, 7, 255)]:
        other = parameters._replace(**{field: value})
        try:
            found = type(codec).from_parameters(other)
        except CodecError:
            continue
        assert (found == codec) == (other == parameters)


@every_codec
def test_estimate_is_unbiased(codec: Codec) -> None:
    """The mean estimate, looked at along the gradient, along one coordinate and along a random vector."""
    if not codec.unbiased:
        pytest.skip(f"{codec} says that it is biased")
    g = gaussian(D)
    trials = 4_000
    updates = codec.encode(np.tile(g, (trials, 1)), range(trials))
    estimates = np.stack([codec.decode_mean([update]) for update in updates]).astype(np.float64)
    looks = np.stack([g, np.eye(D)[3], gaussian(D, seed=9)]).astype(np.float64)
    seen = (estimates - g) @ looks.T
    standard_errors = seen.std(axis=0) / math.sqrt(trials)
    # A millionth on top: an estimate that is always exact along a look has nothing but float32 rounding there.
    rounding = 1e-6 * np.linalg.norm(g) * np.linalg.norm(looks, axis=1)
    assert (np.abs(seen.mean(axis=0)) < 5 * standard_errors + rounding).all()


@every_codec
@pytest.mark.parametrize("n", [1, 8])
def test_variance_is_that_of_the_formula(codec: Codec, n: int) -> None:
    expected = codec.variance(D, n)
    if expected is None:
        pytest.skip(f"{codec} has no formula for its variance")
    trials = 1_500
    errors = relative_errors(codec, gaussian(n, D), trials, n)
    if codec.variance_is_bound:
        assert errors.mean() <= expected
        return
    standard_error = errors.std() / math.sqrt(trials)
    # Half a percent on top: the formulas for few bits take a projection to be normally distributed. With 3 or 4 bits at
    # this small d the tails that are missing are a good part of what EDEN loses at all; test_eden.py has larger ones.
    slack = 0.03 if isinstance(codec, EDEN) else 0.005
    # And float32 rounding, for codecs that lose nothing else.
    assert abs(errors.mean() - expected) < 5 * standard_error + slack * expected + 1e-12


@every_codec
def test_error_of_the_mean_falls_as_one_over_n(codec: Codec) -> None:
    if not codec.unbiased or codec.variance(D) == 0:
        pytest.skip(f"{codec} has a bias that no mean removes, or no error at all")
    g = gaussian(D)
    few, many = (relative_errors(codec, np.tile(g, (n, 1)), trials, n) for n, trials in ((2, 1_000), (32, 400)))
    ratio = few.mean() / many.mean()
    relative = math.hypot(*(errors.std() / errors.mean() / math.sqrt(len(errors)) for errors in (few, many)))
    assert abs(ratio / 16 - 1) < 5 * relative


@every_codec
def test_weights_are_those_of_a_weighted_mean(codec: Codec) -> None:
    updates = codec.encode(gaussian(3, D), [1, 2, 3])
    expected = sum(w * codec.decode_mean([u]).astype(np.float64) for w, u in zip((0.2, 0.5, 0.3), updates, strict=True))
    assert np.allclose(codec.decode_mean(updates, [2, 5, 3]), expected, atol=1e-4)
    assert codec.decode_mean(updates, [0, 1, 0]).tobytes() == codec.decode_mean([updates[1]]).tobytes()


@every_codec
def test_zero_gradient_decodes_to_zero(codec: Codec) -> None:
    update = codec.encode(np.zeros((1, D), dtype=np.float32), [4])[0]
    estimate = codec.decode_mean([travel(update)])
    if isinstance(codec, NOISY):
        assert estimate.all()  # noise and nothing else
    elif codec in BARE_SIGNS:
        assert estimate.any()  # one bit has no zero
    else:
        assert not estimate.any()


@every_codec
@pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1e25])
def test_tiny_and_large_gradients_survive(codec: Codec, magnitude: float) -> None:
    g = (gaussian(1, D) * np.float32(magnitude)).astype(np.float32)
    if isinstance(codec, Peaks) and magnitude > 1e9:  # its scale is a byte, and ends at 2^31.75
        with pytest.raises(CodecError, match="too large"):
            codec.encode(g, [4])
        return
    estimate = codec.decode_mean([travel(update) for update in codec.encode(g, [4])])
    assert np.isfinite(estimate).all()
    # gᵀĝ ≥ 0, per client, is a theorem for all that add no noise. FedMPDD, LpProj, EDEN and Peaks: a sum of products
    # uᵀg · Q(uᵀg) of numbers of one sign. FedSGD, QSGD, TopK, RandK and SignSGD: the same, coordinate by coordinate.
    if not isinstance(codec, NOISY):
        assert float(estimate.astype(np.float64) @ g[0].astype(np.float64)) >= 0


def refusal_of_the_largest(codec: Codec) -> str | None:
    try:
        codec.encode(np.full((1, D), 3e38, dtype=np.float32), [4])
    except CodecError as error:
        return str(error)
    return None


@every_codec
def test_a_gradient_too_large_is_refused_or_survives(codec: Codec) -> None:
    """Codecs that sum or scale leave float32 and must say so; those that only pick or round need not."""
    refusal = refusal_of_the_largest(codec)
    if refusal is not None:
        assert "too large; scale or clip" in refusal
        return
    updates = codec.encode(np.full((1, D), 3e38, dtype=np.float32), [4])
    assert np.isfinite(codec.decode_mean([travel(update) for update in updates])).all()


def test_which_codecs_refuse_a_gradient_too_large() -> None:
    refusing = {codec.name for codec in CODECS_UNDER_TEST if refusal_of_the_largest(codec) is not None}
    projecting = {"mpdd", "randk", "lp-proj", "decomfl", "peaks", "fedkseed", "feedsign", "ferret"}
    assert refusing == projecting | {"qsgd", "eden", "sa-fedlora"}


BAD_GRADIENTS: list[tuple[Any, str]] = [
    (np.array([[1.0, np.nan]], dtype=np.float32), r"gradients\[0, 1\] is nan"),
    (np.array([[1.0, 2.0], [-np.inf, 1.0]], dtype=np.float32), r"gradients\[1, 0\] is -inf"),
    (np.zeros((0, 5), dtype=np.float32), "are empty"),
    (np.zeros((1, 0), dtype=np.float32), "are empty"),
    (np.zeros(5, dtype=np.float32), r"gradient\[np\.newaxis\]"),
    (np.zeros((1, 5)), "got float64; convert with"),
    (np.zeros((1, 5), dtype=np.int32), "got int32"),
    (np.zeros((2, 10), dtype=np.float32)[:, ::2], r"make a copy with gradients\.copy"),
    (np.zeros((10, 2), dtype=np.float32).T, r"make a copy with gradients\.copy"),
    (np.frombuffer(bytes(41), dtype=np.uint8)[1:].view(np.float32).reshape(2, 5), r"make a copy with gradients\.copy"),
    (np.ma.MaskedArray(np.zeros((1, 5), dtype=np.float32)), "got MaskedArray"),
    ([[1.0, 2.0]], "NumPy array .* got list"),
]


@pytest.mark.parametrize(("gradients", "message"), BAD_GRADIENTS)
def test_bad_gradients_are_refused_with_the_remedy(gradients: Any, message: str) -> None:
    for codec in CODECS.values():
        chosen = next(c for c in CODECS_UNDER_TEST if isinstance(c, codec)).for_shapes([(2,)])
        with pytest.raises(GradientError, match=message):
            chosen.encode(gradients, [1] * len(gradients))


@every_codec
def test_bad_keys_are_refused(codec: Codec) -> None:
    g = gaussian(2, D)
    for keys, message in [
        ([1], "2 gradients came with 1 keys"),
        ([1, -2], "out of range"),
        ([1, 2**64], "out of range"),
    ]:
        with pytest.raises(KeyRangeError, match=message):
            codec.encode(g, keys)
    with pytest.raises(KeyRangeError, match="slot"):
        codec.encode(g, [Key(1), Key(1, 2**32)])
    for not_keys in (5, None):
        with pytest.raises(KeyRangeError, match="a sequence of keys"):
            codec.encode(g, not_keys)  # type: ignore[arg-type]


@every_codec
def test_updates_that_do_not_belong_together_are_refused(codec: Codec) -> None:
    update = codec.encode(gaussian(1, D), [1])[0]
    with pytest.raises(CodecError, match="no updates"):
        codec.decode_mean([])
    if codec.self_contained:  # the others are made for one d
        with pytest.raises(CodecError, match="update 1 is from"):
            codec.decode_mean([update, codec.encode(gaussian(1, D + 111), [1])[0]])
    for weights in ([1.0, 2.0], [-1.0], [float("nan")], [float("inf")], [0.0], ["heavy"], {"a": 1}):
        with pytest.raises(CodecError, match="weights"):
            codec.decode_mean([update], weights)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="weights"):
        codec.decode_mean([update, update], [1e308, 1e308])


def test_updates_are_values() -> None:
    codec = CODECS_UNDER_TEST[0]
    a, b = (codec.encode(gaussian(1, D), [1])[0] for _ in range(2))
    assert a == b
    assert len({a, b}) == 1
    assert a != "an update"
    assert isinstance(a, Update)


@every_codec
def test_an_update_of_another_size_is_refused(codec: Codec) -> None:
    update = codec.encode(gaussian(1, D), [1])[0]
    cut = Update(codec, D, update.key, (*update.arrays[:-1], update.arrays[-1][:-1]))
    with pytest.raises(CodecError, match="update 1 has arrays of"):
        codec.decode_mean([update, cut])


SIZED = [codec for codec in CODECS_UNDER_TEST if codec not in BARE_SIGNS]


@pytest.mark.parametrize("codec", SIZED, ids=label)
def test_magnitude_is_about_the_length_of_the_gradient_and_grows_with_it(codec: Codec) -> None:
    """By how much it may be off is chosen by codec; Top-k and lp-proj see a part of the gradient."""
    gradients = np.vstack([gaussian(1, D) * factor for factor in (1, 10, 1_000)]).astype(np.float32)
    updates = codec.encode(gradients, [Key(3)] * 3)
    one, ten, thousand = (codec.magnitude(update) for update in updates)
    length = float(np.linalg.norm(gradients[0]))
    assert 0.15 * length < one < 5 * length
    assert 5 < ten / one < 20
    assert 500 < thousand / one < 2_000


def test_signs_without_a_scale_have_one_magnitude() -> None:
    codec = SignSGD(scaled=False)
    small, large = codec.encode(np.vstack([gaussian(1, D), 1e6 * gaussian(1, D)]).astype(np.float32), [Key(1)] * 2)
    assert codec.magnitude(small) == codec.magnitude(large) == math.sqrt(D)


@pytest.mark.parametrize("codec", [codec for codec in CODECS_UNDER_TEST if codec.scalar_codec is not None], ids=label)
def test_scalars_of_updates_with_one_key_add_up(codec: Codec) -> None:
    updates = codec.encode(gaussian(3, D), [Key(3)] * 3)
    scalar_codec = codec.along_directions()
    mean = scalar_codec.mean_update(updates, 32)
    expected = codec.decode_mean(updates)
    assert np.allclose(mean.codec.decode_mean([mean]), expected, atol=1e-5 * float(np.abs(expected).max()))
    if isinstance(codec, FeedSign):  # whose mean is a vote
        return
    scalars = np.mean([scalar_codec.scalars_of(update) for update in updates], axis=0)
    same = scalar_codec.update_of(scalars, D, Key(3), 32)
    assert np.allclose(same.arrays[0], mean.arrays[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("codec", [codec for codec in CODECS_UNDER_TEST if codec.scalar_codec is None], ids=label)
def test_codecs_without_such_scalars_say_so(codec: Codec) -> None:
    with pytest.raises(CodecError, match="no scalars along directions"):
        codec.along_directions()
