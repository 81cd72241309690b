"""Control variates and damped feedback: what both sides remember, and what it does to the error."""

import numpy as np
import pytest

from fedmpdd.codecs import MPDD, RandK, TopK
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError
from fedmpdd.uplink.control_variates import ControlVariates
from fedmpdd.uplink.error_feedback import DampedFeedback
from tests.conftest import gaussian

D, CLIENTS = 400, 6
CODEC = MPDD(100, family="hadamard")


def keys(k: int) -> list[Key]:
    return [Key(1000 * k + i) for i in range(CLIENTS)]


def rounds(memories: ControlVariates | DampedFeedback, gradients: np.ndarray, count: int) -> list[np.ndarray]:
    clients = tuple(range(CLIENTS))
    estimates = []
    for k in range(count):
        updates = memories.encode(gradients, keys(k), clients)
        estimates.append(memories.finish(memories.codec.decode_mean(updates), clients, None))
    return estimates


def test_the_error_of_a_gradient_that_stays_vanishes() -> None:
    """It shrinks by 1 − m/d a round: to (3/4)^40 of it, about 1e-5; no chance worth naming at a bound of 1 %."""
    gradients = gaussian(CLIENTS, D)
    found = rounds(ControlVariates(CODEC), gradients, 40)
    exact = gradients.mean(axis=0)
    first, last = (np.linalg.norm(estimate - exact) / np.linalg.norm(exact) for estimate in (found[0], found[-1]))
    assert first > 0.5
    assert last < 0.01


def test_the_first_round_is_the_codec_itself_and_weights_count() -> None:
    gradients = gaussian(CLIENTS, D)
    control = ControlVariates(CODEC)
    updates = control.encode(gradients, keys(0), range(CLIENTS))
    assert updates == CODEC.encode(gradients, keys(0))
    control.encode(gradients, keys(1), range(CLIENTS))
    before = dict(control._used)
    weights = [float(i) for i in range(CLIENTS)]
    finished = control.finish(np.zeros(D, np.float32), range(CLIENTS), weights)
    expected = sum(w * before[i] for i, w in enumerate(weights)) / sum(weights)
    np.testing.assert_allclose(finished, expected, rtol=1e-5, atol=1e-7)


def test_damped_feedback_divides_by_m_plus_d_minus_one() -> None:
    codec = MPDD(50)
    feedback = DampedFeedback(codec)
    assert feedback.factor(D) == pytest.approx(50 / (50 + D - 1))
    gradients = gaussian(1, D)
    (update,) = feedback.encode(gradients, [Key(1)], [7])
    decoded = codec.decode_mean([update])
    np.testing.assert_allclose(feedback.state()[7], gradients[0] - feedback.factor(D) * decoded, atol=1e-5)
    np.testing.assert_allclose(feedback.finish(decoded, [7], None), feedback.factor(D) * decoded, rtol=1e-6)


def test_damped_feedback_sends_everything_in_the_end() -> None:
    """Memories stay bounded where plain feedback is refused, and the mean of all steps tends to the gradient."""
    gradients = gaussian(CLIENTS, D)
    feedback = DampedFeedback(MPDD(20))
    found = rounds(feedback, gradients, 300)
    exact = gradients.mean(axis=0)
    assert np.linalg.norm(np.mean(found[100:], axis=0) - exact) < 0.2 * np.linalg.norm(exact)
    largest = max(float(np.linalg.norm(memory)) for memory in feedback.state().values())
    assert largest < 2 * (D / 20) * np.linalg.norm(gradients, axis=1).max()


@pytest.mark.parametrize("kind", [ControlVariates, DampedFeedback])
def test_codecs_of_unknown_error_are_refused(kind: type[ControlVariates] | type[DampedFeedback]) -> None:
    with pytest.raises(CodecError, match="not unbiased"):
        kind(TopK(5)).check(D)
    kind(RandK(5)).check(D)


@pytest.mark.parametrize("kind", [ControlVariates, DampedFeedback])
def test_state_can_be_put_back(kind: type[ControlVariates] | type[DampedFeedback]) -> None:
    gradients = gaussian(CLIENTS, D)
    one, other = kind(CODEC), kind(CODEC)
    rounds(one, gradients, 3)
    other.load(one.state())
    assert [u.arrays[0].tobytes() for u in one.encode(gradients, keys(9), range(CLIENTS))] == [
        u.arrays[0].tobytes() for u in other.encode(gradients, keys(9), range(CLIENTS))
    ]


def test_overflow_changes_no_memory() -> None:
    control = ControlVariates(CODEC)
    control.load({0: np.full(D, -3e38, np.float32)})
    with pytest.raises(CodecError, match="overflows"):
        control.encode(np.full((1, D), 3e38, np.float32), [Key(1)], [0])
    assert (control.state()[0] == np.float32(-3e38)).all()
