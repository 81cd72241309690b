"""The server's step on arrays and on tensors: the same bits, whoever takes it."""

from typing import Any

import numpy as np
import pytest
import torch

from fedmpdd.server.step import Step, StepRule

D = 1_003  # not a multiple of any vector's width


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("lr", [1.0, 0.1, 1e-3])
def test_arrays_and_tensors_step_to_the_same_bits(optimiser: Any, lr: float) -> None:
    config = StepRule(optimiser=optimiser)
    tensors = Step(config, lr, lambda: torch.zeros(D))
    # As a client reads it from an order: what travels is the rule alone.
    arrays = Step(config, lr, lambda: np.zeros(D, np.float32))
    rng = np.random.default_rng(5)
    flat = rng.standard_normal(D).astype(np.float32)
    other = torch.from_numpy(flat.copy())
    for k in range(50):
        # Over many magnitudes, with zeros and numbers so small that their squares are not normal.
        gradient = (rng.standard_normal(D) * 10.0 ** rng.integers(-25, 5, D)).astype(np.float32)
        gradient[rng.integers(0, D, 20)] = 0.0
        flat = arrays(flat, gradient, k)
        other = tensors(other, torch.from_numpy(gradient.copy()), k)
        assert flat.dtype == np.float32
        assert flat.tobytes() == other.numpy().tobytes(), k
        for name, value in arrays.state.items():
            assert value.tobytes() == tensors.state[name].numpy().tobytes(), (k, name)


def test_a_step_size_of_numpy_computes_in_float32_too() -> None:
    step = Step(StepRule(), np.float64(0.1), lambda: np.zeros(3, np.float32))
    flat = step(np.ones(3, np.float32), np.ones(3, np.float32), 0)
    assert flat.dtype == np.float32


def test_a_step_to_infinity_is_left_to_the_caller() -> None:
    step = Step(StepRule(), 1e30, lambda: np.zeros(3, np.float32))
    assert not np.isfinite(step(np.ones(3, np.float32), np.full(3, 1e30, np.float32), 0)).any()  # and no warning
