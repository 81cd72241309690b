"""Error feedback: nothing is ever lost, only late; and what is biased converges."""

from typing import Any

import numpy as np
import pytest

from fedmpdd import MPDD
from fedmpdd.codecs import EDEN, QSGD, Codec, FedSGD, LpProj, RandK, SignSGD, TopK
from fedmpdd.errors import CodecError, GradientError
from fedmpdd.uplink.error_feedback import ErrorFeedback
from tests.conftest import gaussian


@pytest.mark.parametrize("codec", [TopK(5), SignSGD(), QSGD(4), EDEN(1)], ids=lambda codec: codec.name)
def test_what_was_sent_and_what_is_remembered_is_all_there_was(codec: Codec) -> None:
    d, rounds, clients = 60, 40, [3, 8, 1]
    feedback = ErrorFeedback(codec)
    total, sent = np.zeros((3, d)), np.zeros((3, d))
    for t in range(rounds):
        gradients = gaussian(3, d, seed=t)
        total += gradients
        updates = feedback.encode(gradients, [1_000 * t + i for i in range(3)], clients).updates()
        sent += [codec.decode_mean([update]) for update in updates]
    memory = np.array([feedback.state()[client] for client in clients])
    assert np.allclose(sent + memory, total, atol=1e-4)
    assert not np.allclose(sent, total, atol=0.1)


def test_topk_of_one_round_is_the_definition() -> None:
    feedback = ErrorFeedback(TopK(2))
    g = gaussian(1, 9)
    first = feedback.encode(g, [1], [0]).updates()[0]
    memory = g[0] - TopK(2).decode_mean([first])
    assert feedback.state()[0].tolist() == memory.tolist()
    assert np.count_nonzero(memory) == 7
    second = feedback.encode(g, [1], [0]).updates()[0]
    assert second == TopK(2).encode((g[0] + memory)[np.newaxis], [1])[0]


def distance_after(codec: Codec, with_feedback: bool, rate: float, rounds: int) -> float:
    """Gradient descent of four clients, each with a quadratic of its own; distance to the minimum of their mean.

    Large gradients that differ between clients and cancel in the mean hide the small ones that agree.
    """
    d, clients = 20, 4
    pull = gaussian(clients, d, seed=5) * 10
    pull -= pull.mean(axis=0)
    target = gaussian(d, seed=6)
    x = np.zeros(d, dtype=np.float32)
    feedback = ErrorFeedback(codec)
    for t in range(rounds):
        gradients = (x - target - pull).astype(np.float32)
        keys = [clients * t + i for i in range(clients)]
        batch = (
            feedback.encode(gradients, keys, range(clients)) if with_feedback else codec.encode_batch(gradients, keys)
        )
        x = x - np.float32(rate) * batch.decode()
    return float(np.linalg.norm(x - target) / np.linalg.norm(target))


@pytest.mark.parametrize("codec", [TopK(1), SignSGD()], ids=lambda codec: codec.name)
def test_it_makes_biased_codecs_converge(codec: Codec) -> None:
    plain, corrected = (distance_after(codec, with_feedback, 0.005, 3_000) for with_feedback in (False, True))
    assert corrected < 0.1
    assert plain > 1  # further away than where it started
    assert distance_after(FedSGD(), False, 0.005, 3_000) < 1e-4


def test_only_clients_that_took_part_are_remembered() -> None:
    feedback = ErrorFeedback(TopK(1))
    assert feedback.state() == {}
    feedback.encode(gaussian(2, 10), [1, 2], [7, 5])
    feedback.encode(gaussian(1, 10), [3], [7])
    assert set(feedback.state()) == {5, 7}


def test_state_goes_through_a_checkpoint() -> None:
    first, second = ErrorFeedback(TopK(3)), ErrorFeedback(TopK(3))
    first.encode(gaussian(2, 30), [1, 2], [0, 1])
    state = first.state()
    second.load(state)
    state[0][:] = 99  # neither side holds on to the caller's arrays
    g = gaussian(2, 30, seed=1)
    assert first.encode(g, [1, 2], [0, 1]).updates() == second.encode(g, [1, 2], [0, 1]).updates()
    assert {c: m.tolist() for c, m in first.state().items()} == {c: m.tolist() for c, m in second.state().items()}
    second.load({})
    assert second.state() == {}


def test_a_round_that_fails_changes_no_memory() -> None:
    feedback = ErrorFeedback(TopK(1))
    feedback.encode(gaussian(2, 10), [1, 2], [0, 1])
    before = {client: memory.tolist() for client, memory in feedback.state().items()}
    g = gaussian(2, 10)
    g[1, 4] = np.nan
    with pytest.raises(GradientError, match=r"gradients\[1, 4\] is nan"):
        feedback.encode(g, [1, 2], [0, 1])
    g[1, 4] = 1
    with pytest.raises(CodecError, match="2 gradients came with clients"):
        feedback.encode(g, [1, 2], [0])
    with pytest.raises(CodecError, match="none twice"):
        feedback.encode(g, [1, 2], [0, 0])
    with pytest.raises(CodecError, match="a new model needs a new ErrorFeedback"):
        feedback.encode(gaussian(2, 11), [1, 2], [0, 1])
    largest = np.full((1, 10), np.finfo(np.float32).max)
    feedback.load({4: largest[0]})
    with pytest.raises(CodecError, match="too large; scale or clip"):
        feedback.encode(largest, [1], [4])
    assert feedback.state()[4].tolist() == largest[0].tolist()
    feedback.load({client: np.array(memory, dtype=np.float32) for client, memory in before.items()})
    assert {client: memory.tolist() for client, memory in feedback.state().items()} == before


@pytest.mark.parametrize("codec", [RandK(10), MPDD(m=10), EDEN(1, rows=10)], ids=lambda codec: codec.name)
def test_codecs_that_lose_more_than_they_are_given_are_refused(codec: Codec) -> None:
    with pytest.raises(CodecError, match="would grow without bound"):
        ErrorFeedback(codec).encode(gaussian(1, 100), [1], [0])


def test_codecs_that_lose_less_are_not() -> None:
    for codec in (RandK(60), EDEN(1), LpProj(5), QSGD(4), FedSGD()):
        assert len(ErrorFeedback(codec).encode(gaussian(1, 100), [1], [0])) == 1


def test_checkpoints_that_cannot_be_used() -> None:
    feedback = ErrorFeedback(TopK(1))
    memory: Any
    for memory in ([1.0, 2.0], np.zeros(3), np.zeros((1, 3), dtype=np.float32)):
        with pytest.raises(CodecError, match="pass what state"):
            feedback.load({0: memory})
    with pytest.raises(CodecError, match="checkpoint is damaged"):
        feedback.load({0: np.array([1, np.nan], dtype=np.float32)})
