from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import DeComFL
from fedmpdd.directions import Key, reference
from fedmpdd.errors import CodecError
from tests.conftest import gaussian


def test_differences_of_losses_are_directional_derivatives() -> None:
    """A quadratic has no third derivative, so central differences are exact: scalars are uᵀ∇f(x)."""
    d, codec, key = 30, DeComFL(m=5, log2_step=4), Key(9)
    x, target = gaussian(2, d).astype(np.float64)

    def loss(at: Any) -> float:
        return float(0.5 * ((at - target) ** 2).sum())

    directions = [reference.signs(9, j, d).astype(np.float64) for j in range(5)]
    differences = np.array([[loss(x + codec.step * u) - loss(x - codec.step * u) for u in directions]])
    (update,) = codec.encode_scalars(differences / (2 * codec.step), [key], d).updates()
    (exact,) = codec.encode((x - target)[np.newaxis].astype(np.float32), [key])
    assert np.allclose(update.arrays[0], exact.arrays[0], rtol=1e-5)
    estimate = sum(s * u for s, u in zip(update.arrays[0], directions, strict=True)) / 5
    assert np.allclose(codec.decode_mean([update]), estimate, rtol=1e-4)


def test_four_bytes_a_scalar() -> None:
    assert DeComFL(m=10).bytes_per_update(10**6) == 40


@pytest.mark.parametrize(
    ("field", "value"), [("m", 0), ("log2_step", -1), ("log2_step", 21), ("log2_step", True), ("log2_step", 0.5)]
)
def test_parameters_that_no_codec_has(field: str, value: Any) -> None:
    with pytest.raises(CodecError, match=field):
        DeComFL(**{field: value})


def test_scalars_must_fit() -> None:
    with pytest.raises(CodecError, match=r"expected \[1, 10\]"):
        DeComFL().encode_scalars(np.zeros((1, 9)), [Key(1)], 5)
    with pytest.raises(CodecError, match="too large"):
        DeComFL(m=1).encode_scalars(np.full((1, 1), 1e39), [Key(1)], 5)
