"""What every codec must do, whoever wrote it: the package's own codecs go through these checks too.

A check is a function of a codec and a number of coordinates. It raises CodecCheckError where the codec does not pass,
and returns a reason where the codec says of itself that the check is not for it.

The statistical checks have fixed seeds, so that they give one outcome. They compare means with five standard errors:
with fresh seeds a right codec would fail one comparison in 1.7 million by chance.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs import NO_KEY, Codec, Update
from fedmpdd.codecs.base import Float32
from fedmpdd.codecs.registry import check_is_codec
from fedmpdd.directions import Key, available_isas, partitioned_keys, using
from fedmpdd.errors import CodecCheckError, CodecError, FedmpddError, GradientError, InputError, KeyRangeError
from fedmpdd.imports import words_and_line_of
from fedmpdd.wire.frames import Session, pack, unpack

DEVIATIONS = 5  # standard errors that a mean may be off
UNBIASED_TRIALS, VARIANCE_TRIALS, MEAN_TRIALS = 4_000, 1_500, 1_000


Check = Callable[[Codec, int], str | None]


def check_codec(codec: Codec, d: int = 200) -> list[str]:
    """Put a codec through all common checks.

    Args:
        codec: with parameters that suit gradients of d coordinates.
        d: coordinates of the gradients that it is tried with.

    Returns:
        A line for each check that was left out, with the reason.

    Raises:
        CodecCheckError: with a line for each check that failed.

    Example:
        >>> check_codec(MPDD(m=24, bits=8))
        []

    """
    codec = check_is_codec(codec)
    if not isinstance(d, int) or isinstance(d, bool):
        raise CodecCheckError(f"d = {d!r}: expected a number of coordinates, like 200")
    try:
        codec = codec.for_shapes([(d,)])
        codec.check(d)
    except InputError as error:
        raise CodecCheckError(f"{codec} cannot be tried at d = {d}: {error}; or give another d=") from None
    failures: list[str] = []
    left_out: list[str] = []
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            reason = check(codec, d)
            left_out += [f"{name}: {reason}"] if reason else []
        except CodecCheckError as error:
            failures.append(f"{name}: {error}")
        except Exception as error:  # somebody else's codec
            failures.append(f"{name}: {words_and_line_of(error)}")
    if failures:
        lines = "\n  ".join(failures)
        raise CodecCheckError(f"{codec} fails {len(failures)} of {len(CHECKS)} checks at d = {d}:\n  {lines}")
    return left_out


def gaussian(clients: int, d: int, seed: int = 0) -> Float32:
    """Return gradients [clients, d] of standard normal coordinates, the same ones for a seed."""
    return np.random.default_rng(seed).standard_normal((clients, d)).astype(np.float32)


# ------------------------------------------------------------------------------------------------------ bytes


def check_frames_hold_updates(codec: Codec, d: int) -> None:
    """An update comes back from every kind of frame as it was, and frames have the length that the codec says."""
    sent, assigned = (Session(codec, d, sends_seed=sends) for sends in (True, False))
    for update in codec.encode(gaussian(3, d), [0, 2**64 - 1, 12345]):
        if codec.fits_header():
            _require(unpack(pack(update)) == update, "an update changes on its way through pack and unpack")
        if codec.needs_key:
            _require(sent.unpack(sent.pack(update)) == update, "an update changes on its way through a session")
            way_back = assigned.unpack(assigned.pack(update), update.key)
            _require(way_back == update, "an update changes on its way through a session that assigns keys")
        else:
            _require(update.key == NO_KEY, "needs_key is False, and an update has a key; it would travel")
            _require(sent.unpack(sent.pack(update)) == update, "an update changes on its way through a session")
        length = codec.bytes_per_update(d) + 8
        _require(len(assigned.pack(update)) == length, f"a frame has not the {length} bytes that `sections` makes it")


def check_bytes_decode_to_the_same_bits(codec: Codec, d: int) -> None:
    """Updates that were read from frames decode as those that were encoded."""
    updates = codec.encode(gaussian(4, d), partitioned_keys(7, 4))
    session = Session(codec, d, sends_seed=False)
    keys = [update.key if session.assigns_key else None for update in updates]
    travelled = [session.unpack(session.pack(update), key) for update, key in zip(updates, keys, strict=True)]
    _require(_same(codec.decode_mean(travelled), codec.decode_mean(updates)), "the estimate changes by way of frames")


def check_parameters_rebuild_the_codec(codec: Codec, d: int) -> str | None:
    """A header's parameters give back an equal codec, where frames are self-contained."""
    if not codec.fits_header():
        return "its frames are read in a session only (self_contained is False, or it has no number)"
    rebuilt = type(codec).from_parameters(codec.parameters())
    _require(rebuilt == codec and hash(rebuilt) == hash(codec), f"parameters() and _from_parameters() give {rebuilt}")
    return None


# ------------------------------------------------------------------------------------------------ determinism


def check_same_input_gives_the_same_updates(codec: Codec, d: int) -> None:
    """Gradients and keys alone decide the updates, on every kernel and number of threads."""
    outcomes = set()
    for isa in available_isas():
        for threads in (1, 2):
            with using(isa=isa, threads=threads):
                updates = codec.encode(gaussian(3, d), [5, 6, 7])
                frames = [_frame(update) for update in updates]
                outcomes.add((*frames, codec.decode_mean(updates).tobytes()))
    _require(len(outcomes) == 1, "updates or estimates differ from call to call, or between kernels")


def check_a_batch_is_its_clients_one_by_one(codec: Codec, d: int) -> None:
    """Whoever is encoded with a client changes nothing of its update."""
    gradients = gaussian(3, d)
    alone = [codec.encode(gradients[i : i + 1], [5 + i])[0] for i in range(3)]
    _require(codec.encode(gradients, [5, 6, 7]) == alone, "a client's update depends on the others of its batch")


def check_updates_keep_no_gradient(codec: Codec, d: int) -> None:
    """An update does not change when the caller's array does."""
    gradients = gaussian(2, d)
    updates = codec.encode(gradients, [5, 6])
    before = [_frame(update) for update in updates]
    gradients[:] = 0
    _require([_frame(update) for update in updates] == before, "an update is a view of the gradient; copy it")


# --------------------------------------------------------------------------------------------- bias and variance


def check_estimate_is_unbiased(codec: Codec, d: int) -> str | None:
    """The mean estimate, looked at along the gradient, along one coordinate and along a random vector."""
    if not codec.unbiased:
        return "it says that it is biased (unbiased is False)"
    gradient = gaussian(1, d)
    updates = codec.encode(np.tile(gradient, (UNBIASED_TRIALS, 1)), range(UNBIASED_TRIALS))
    estimates = np.stack([codec.decode_mean([update]) for update in updates]).astype(np.float64)
    looks = np.stack([gradient[0], np.eye(d)[min(3, d - 1)], gaussian(1, d, seed=9)[0]]).astype(np.float64)
    seen = (estimates - gradient) @ looks.T
    standard_errors = seen.std(axis=0) / math.sqrt(UNBIASED_TRIALS)
    # A millionth on top: an estimate that is always exact along a look has nothing but float32 rounding there.
    rounding = 1e-6 * np.linalg.norm(gradient) * np.linalg.norm(looks, axis=1)
    off = np.abs(seen.mean(axis=0)) - rounding
    _require(
        bool((off < DEVIATIONS * standard_errors).all()),
        f"unbiased is True, and the mean of {UNBIASED_TRIALS} estimates is off by {np.max(off):.3g} along one of three "
        f"vectors, with standard errors of {np.max(standard_errors):.3g} at most",
    )
    return None


def check_variance_is_that_of_the_formula(codec: Codec, d: int, slack: float = 0.005) -> str | None:
    """The error of the mean of one and of eight clients is `variance`, or no more where that is a bound.

    slack: by how much a formula that takes projections to be normally distributed may be off, relative.
    """
    for clients in (1, 8):
        expected = codec.variance(d, clients)
        if expected is None:
            return "it has no formula for its variance (variance returns None)"
        errors = relative_errors(codec, gaussian(clients, d), VARIANCE_TRIALS)
        mean, allowed = errors.mean(), DEVIATIONS * errors.std() / math.sqrt(VARIANCE_TRIALS)
        text = f"the relative error of {clients} clients is {mean:.5g} where variance says {expected:.5g}"
        if codec.variance_is_bound:
            _require(mean <= expected, f"{text} at most")
        else:
            _require(abs(mean - expected) < allowed + slack * expected + 1e-12, text)
    return None


def check_error_falls_as_one_over_n(codec: Codec, d: int) -> str | None:
    """Sixteen times the clients with one gradient make a sixteenth of the error."""
    if not codec.unbiased or codec.variance(d) == 0:
        return "it has a bias that no mean removes, or no error at all"
    gradient = gaussian(1, d)
    few, many = (relative_errors(codec, np.tile(gradient, (n, 1)), MEAN_TRIALS) for n in (2, 32))
    ratio = few.mean() / many.mean()
    relative = math.hypot(few.std() / few.mean(), many.std() / many.mean()) / math.sqrt(MEAN_TRIALS)
    _require(abs(ratio / 16 - 1) < DEVIATIONS * relative, f"2 clients have {ratio:.3g} times the error of 32, not 16")
    return None


def relative_errors(codec: Codec, gradients: Float32, trials: int) -> NDArray[np.float64]:
    """Return ‖estimate − mean‖² / mean ‖g‖² of so many rounds with keys of their own.

    Args:
        codec: that is tried.
        gradients: of the clients of a round [clients, d].
        trials: rounds.

    """
    mean = gradients.mean(axis=0, dtype=np.float64)
    norm = (gradients.astype(np.float64) ** 2).sum(axis=1).mean()
    errors = []
    for trial in range(trials):
        updates = codec.encode(gradients, [1_000_003 * trial + i for i in range(len(gradients))])
        errors.append(((codec.decode_mean(updates) - mean) ** 2).sum() / norm)
    return np.array(errors)


def check_weights_are_those_of_a_mean(codec: Codec, d: int) -> None:
    """A weighted mean is the sum of the estimates times their weights, and a weight of zero leaves an update out."""
    updates = codec.encode(gaussian(3, d), [1, 2, 3])
    alone = [codec.decode_mean([update]).astype(np.float64) for update in updates]
    expected = sum(weight * estimate for weight, estimate in zip((0.2, 0.5, 0.3), alone, strict=True))
    largest = max(float(np.abs(estimate).max()) for estimate in alone)
    together = codec.decode_mean(updates, [2, 5, 3])
    _require(bool(np.allclose(together, expected, atol=1e-4 * max(1.0, largest))), "a weighted mean is not that")
    _require(_same(codec.decode_mean(updates, [0, 1, 0]), codec.decode_mean([updates[1]])), "a weight of 0 counts")
    for weights in ([1.0, 2.0], [-1.0], [float("nan")], [float("inf")], [0.0], ["heavy"]):
        _refuses(CodecError, f"weights = {weights}", codec.decode_mean, updates[:1], weights)


# ----------------------------------------------------------------------------------------------------- sizes


def check_tiny_large_and_zero_gradients_survive(codec: Codec, d: int) -> None:
    """Whatever the size of a gradient, the estimate is finite, or encode says that it is too large."""
    for magnitude in (0.0, 1e-42, 1e-30, 1e25, 3e38):
        gradient = np.clip(gaussian(1, d), -1, 1) * np.float32(magnitude)
        try:
            updates = codec.encode(gradient, [4])
        except CodecError as error:
            refusal = str(error)
            _require(
                magnitude > 1e20 and "too large" in refusal,
                f"a gradient of about {magnitude:g} is refused, with {refusal!r}; only one that is too large may be",
            )
            continue
        estimate = codec.decode_mean(updates)
        _require(bool(np.isfinite(estimate).all()), f"a gradient of about {magnitude:g} decodes to what is not finite")


def check_magnitude_grows_with_the_gradient(codec: Codec, d: int) -> str | None:
    """`magnitude` is about the length of the gradient, by which a server tells an update that is too large."""
    gradients = np.vstack([gaussian(1, d) * factor for factor in (1, 10, 1_000)]).astype(np.float32)
    one, ten, thousand = (codec.magnitude(update) for update in codec.encode(gradients, [Key(3)] * 3))
    if one == ten == thousand:
        return "its updates have one magnitude, whatever the gradient"
    length = float(np.linalg.norm(gradients[0]))
    _require(0.15 * length < one < 5 * length, f"magnitude is {one:.3g} for a gradient of length {length:.3g}")
    for factor, larger in ((10, ten), (1_000, thousand)):
        text = f"magnitude grows by {larger / one:.3g} where the gradient grows by {factor}"
        _require(factor / 2 < larger / one < 2 * factor, text)
    return None


# -------------------------------------------------------------------------------------------------- bad input


def bad_gradients(d: int) -> Iterable[tuple[Any, str]]:
    """Yield gradients that no codec takes, and what is wrong with them."""
    one = np.ones((1, d), dtype=np.float32)
    for value in (math.nan, -math.inf):
        spoiled = one.copy()
        spoiled[0, -1] = value
        yield spoiled, f"a coordinate that is {value}"
    yield one[:0], "no client"
    yield one[:, :0], "no coordinate"
    yield one.astype(np.float64), "float64"
    yield one.astype(np.int32), "integers"
    yield np.ones((2, 2 * d), dtype=np.float32)[:, ::2], "an array that is not contiguous"
    yield one.tolist(), "a list"


def check_bad_gradients_are_refused(codec: Codec, d: int) -> None:
    """What is no gradient raises GradientError, and makes no update."""
    for gradients, what in bad_gradients(d):
        _refuses(GradientError, what, codec.encode, gradients, [1] * len(gradients))


def check_bad_keys_are_refused(codec: Codec, d: int) -> None:
    """What is no key raises KeyRangeError."""
    gradients = gaussian(2, d)
    bad: list[Any] = [[1], [1, -2], [1, 2**64], [Key(1), Key(1, 2**32)], 5, None]
    for keys in bad:
        _refuses(KeyRangeError, f"keys = {keys}", codec.encode, gradients, keys)


def check_updates_that_do_not_belong_together_are_refused(codec: Codec, d: int) -> None:
    """No updates, or one with an array that is too short, raise CodecError."""
    update = codec.encode(gaussian(1, d), [1])[0]
    cut = Update(codec, d, update.key, (*update.arrays[:-1], update.arrays[-1][:-1]))
    _refuses(CodecError, "no updates", codec.decode_mean, [])
    _refuses(CodecError, "an array that is cut off", codec.decode_mean, [update, cut])


CHECKS: tuple[Check, ...] = (
    check_frames_hold_updates,
    check_bytes_decode_to_the_same_bits,
    check_parameters_rebuild_the_codec,
    check_same_input_gives_the_same_updates,
    check_a_batch_is_its_clients_one_by_one,
    check_updates_keep_no_gradient,
    check_estimate_is_unbiased,
    check_variance_is_that_of_the_formula,
    check_error_falls_as_one_over_n,
    check_weights_are_those_of_a_mean,
    check_tiny_large_and_zero_gradients_survive,
    check_magnitude_grows_with_the_gradient,
    check_bad_gradients_are_refused,
    check_bad_keys_are_refused,
    check_updates_that_do_not_belong_together_are_refused,
)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CodecCheckError(message)


def _refuses(error: type[FedmpddError], what: str, call: Callable[..., object], *arguments: Any) -> None:
    """Raise CodecCheckError unless a call raises an error of this kind."""
    try:
        call(*arguments)
    except error:
        return
    except Exception as other:
        raise CodecCheckError(f"{what} raises {type(other).__name__} ({other}), expected {error.__name__}") from None
    raise CodecCheckError(f"{what} is taken without a word, expected {error.__name__}")


def _frame(update: Update) -> bytes:
    return Session(update.codec, update.d, sends_seed=False).pack(update)


def _same(one: Float32, other: Float32) -> bool:
    return one.tobytes() == other.tobytes()
