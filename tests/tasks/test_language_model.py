"""The transformer, and text as a dataset."""

import numpy as np
import pytest
import torch

from fedmpdd.errors import ConfigError
from fedmpdd.simulation import make_federation, parse_config
from fedmpdd.tasks import models
from fedmpdd.tasks.data import load, python_docs
from fedmpdd.tasks.language_model import Transformer

TEXT = {
    "dataset": "python-docs",
    "pixels": "raw",
    "model": "transformer-tiny",
    "device": "cpu",
    "clients": 10,
    "clients_per_round": 3,
    "batch": 2,
    "lr": 0.003,
    "rounds": 3,
    "evaluate_every": 3,
    "server": {"optimiser": "adam"},
    "codec": {"name": "mpdd", "m": 4000, "bits": 1, "family": "hadamard", "keys": "partitioned"},
}


def test_nothing_later_reaches_a_prediction() -> None:
    torch.manual_seed(0)
    model = Transformer(12, 30, width=16, depth=2, heads=2)
    texts = torch.randint(0, 30, (2, 1, 1, 12)).float()
    changed = texts.clone()
    changed[..., 7:] = 3
    before, after = model(texts), model(changed)
    assert before.shape == (2, 30, 12)
    torch.testing.assert_close(before[..., :7], after[..., :7])
    assert not torch.allclose(before[..., 7:], after[..., 7:])


def test_the_large_one_has_ten_million_parameters() -> None:
    model, flat = models.build("transformer", (1, 1, 256), 256, init="default", seed=0)
    assert model.d == flat.numel() == 10_942_464


def test_text_is_windows_and_the_bytes_that_follow() -> None:
    data = load("python-docs")
    assert data.train.images.shape[1:] == (1, 1, python_docs.WINDOW)
    assert data.train.labels.shape == (len(data.train.images), python_docs.WINDOW)
    np.testing.assert_array_equal(data.train.images[5, 0, 0, 1:], data.train.labels[5, :-1])
    assert len(data.test.images) == pytest.approx(len(data.train.images) / 19, abs=1)
    assert len(python_docs.text_sha256()) == 64


def test_a_federation_learns_from_text_and_counts_every_position() -> None:
    federation = make_federation(parse_config(TEXT))
    loss, measured = federation.evaluate(federation.flat)
    assert loss == pytest.approx(np.log(256), rel=0.05)  # it knows nothing yet
    assert 0 <= measured["accuracy"] < 0.1
    for _ in range(3):
        metrics = federation.run_round()
    assert metrics.test_loss is not None
    assert metrics.test_loss < loss - 0.2


def test_text_has_no_classes_and_no_pixels() -> None:
    models_then = set()
    for pixels in ("raw", "normalised", "unit"):
        federation = make_federation(parse_config({**TEXT, "pixels": pixels}))
        federation.run_round()
        models_then.add(federation.flat.numpy().tobytes())
    assert len(models_then) == 1  # bytes of text are bytes, whatever is done with those of images
    with pytest.raises(ConfigError, match="has none"):
        make_federation(parse_config({**TEXT, "partition": {"kind": "classes"}}))
