from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import FedSGD, SAFedLora
from fedmpdd.errors import CodecError
from tests.conftest import gaussian

SHAPES = [(8, 3, 5, 5), (8,), (10, 200), (10,)]
D = 600 + 8 + 2_000 + 10


def test_shapes_are_those_of_the_model() -> None:
    codec = SAFedLora(rank=4).for_shapes(SHAPES)
    assert codec.shapes == ((8, 75), (8, 0), (10, 200), (10, 0))
    # rank 4: 4·(8 + 75) and 4·(10 + 200) floats, and the biases whole
    assert codec.bytes_per_update(D) == 4 * (4 * 83 + 8 + 4 * 210 + 10)


def test_floats_per_unit_of_rank_of_the_cifar_cnn() -> None:
    """4,773 for the CNN of mcmahan2017, biases apart."""
    shapes = [(128, 3, 3, 3), (128,), (128, 128, 3, 3), (128,), (128, 128, 3, 3), (128,), (10, 2048), (10,)]
    one, two = (SAFedLora(rank=r).for_shapes(shapes).bytes_per_update(319_242) for r in (1, 2))
    assert (two - one) // 4 == 4_773


def test_a_gradient_of_low_rank_comes_back_whole() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for shape in SHAPES:
        rows, columns = shape[0], int(np.prod(shape[1:]))
        parts.append((rng.standard_normal((rows, 2)) @ rng.standard_normal((2, columns))).reshape(-1)[: rows * columns])
    g = np.concatenate(parts).astype(np.float32)[np.newaxis]
    codec = SAFedLora(rank=2).for_shapes(SHAPES)
    assert np.allclose(codec.decode_mean(codec.encode(g, [1])), g[0], atol=1e-4)


def test_more_rank_is_closer_and_never_further_than_nothing() -> None:
    g = gaussian(1, D)
    errors = []
    for rank in (1, 2, 4, 7):
        codec = SAFedLora(rank=rank).for_shapes(SHAPES)
        errors.append(float(((codec.decode_mean(codec.encode(g, [1])) - g[0]) ** 2).sum() / (g**2).sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 1


def test_the_rank_cools_after_the_warmup() -> None:
    codec = SAFedLora(rank=8, warmup=3, cooling=0.5).for_shapes(SHAPES)
    assert codec.at_round(2) == FedSGD()
    ranks = []
    for k in range(3, 9):
        cooled = codec.at_round(k)
        assert isinstance(cooled, SAFedLora)
        ranks.append(cooled.rank)
    assert ranks == [8, 4, 2, 1, 1, 1]


@pytest.mark.parametrize(
    "parameters", [{"rank": 0}, {"rank": 2, "smallest": 3}, {"cooling": 0.0}, {"cooling": 1.5}, {"warmup": -1}]
)
def test_parameters_that_no_codec_has(parameters: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="expected"):
        SAFedLora(**parameters)


def test_a_gradient_of_another_model_is_refused() -> None:
    with pytest.raises(CodecError, match="use for_shapes first"):
        SAFedLora().encode(gaussian(1, 5), [1])
