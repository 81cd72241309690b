"""Forward-mode clients: the updates of backpropagation, without a backward pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedmpdd.codecs import MPDD, Update
from fedmpdd.directions import Key, reference
from fedmpdd.errors import CodecError, ConfigError
from fedmpdd.runs.folders import Run
from fedmpdd.simulation import Federation, parse_config, sampling
from fedmpdd.simulation import forward as forward_mode
from fedmpdd.simulation.clients import ClientStep, Work
from fedmpdd.simulation.devices import reproducible_arithmetic
from fedmpdd.simulation.replay import replay
from tests.simulation.test_engine import BASE, federation, train

M = 40
PARTITIONED = {"family": "hadamard", "keys": "partitioned"}
CODECS: dict[str, dict[str, Any]] = {
    "rademacher": {},
    "rademacher, partitioned": {"keys": "partitioned"},
    "hadamard, partitioned": PARTITIONED,
    "hadamard, shared": {"family": "hadamard", "keys": "shared"},
}


def forward(codec: dict[str, Any], **changes: Any) -> Federation:
    return federation(client="forward", codec={"name": "mpdd", "m": M, **codec}, **changes)


def scalars_of(fed: Federation, clients: int = 4) -> tuple[NDArray[np.float64], NDArray[np.float32], list[Key]]:
    """What forward mode computes for some clients of round 0, their gradients, and their keys."""
    numbers = sampling.sample_clients(fed.config, 0)
    keys = sampling.round_keys(fed.config, 0, numbers)[:clients]
    examples = [fed.partition.examples_of(int(c)) for c in numbers[:clients]]
    batches = sampling.sample_batches(fed.config, 0, numbers[:clients], examples)
    assert isinstance(fed.codec, MPDD)
    with reproducible_arithmetic(fed.config):
        work = Work(0, numbers[:clients], batches)
        scalars, losses, _ = fed._client_step.derivatives(fed.flat, work, fed.codec, keys)
        gradients, expected, _ = fed._client_step(fed.flat, work)
    assert torch.allclose(losses.float(), expected, rtol=1e-5)
    return scalars, gradients.numpy(), keys


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_directions_are_those_of_the_standard(family: str) -> None:
    codec, key, d = MPDD(10, family=family), Key(2024, slot=3), 300
    rows = forward_mode.directions(codec, key, 4, 7, d).numpy()
    numbers = (34, 35, 36)  # slot 3 begins with direction 30
    if family == "rademacher":
        expected = [reference.signs(2024, j, d) for j in numbers]
    else:
        expected = [reference.hadamard_direction(2024, d, j) for j in numbers]
    assert (rows == np.stack(expected)).all()


@pytest.mark.parametrize(
    ("codec", "how", "model"),
    [
        *((name, "vmap", "logistic") for name in CODECS),
        ("rademacher", "loop", "logistic"),
        ("hadamard, shared", "loop", "lenet"),
        ("rademacher", "vmap", "lenet"),
        ("hadamard, partitioned", "vmap", "cnn-lin2022"),
    ],
)
def test_scalars_are_those_of_the_gradient(codec: str, how: str, model: str) -> None:
    fed = forward({**CODECS[codec], "m": 8}, gradients=how, model=model)
    scalars, gradients, keys = scalars_of(fed)
    exact = np.stack([update.arrays[0] for update in fed.codec.encode(gradients, keys)])
    errors = np.linalg.norm(scalars - exact, axis=1)
    assert (errors < 1e-4 * np.linalg.norm(exact, axis=1)).all()


def sent(fed: Federation, scalars: NDArray[np.float64], keys: list[Key]) -> list[Update]:
    """The updates that really travel."""
    return fed._uplink.encode_scalars(0, scalars, keys).batch.updates()  # type: ignore[no-any-return]


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_updates_are_those_of_backpropagation(bits: int) -> None:
    """Also where scalars are rounded: with the same random numbers, so that only one at an edge falls elsewhere."""
    fed = forward({**PARTITIONED, "bits": bits})
    scalars, gradients, keys = scalars_of(fed)
    backward, ours = fed.codec.encode(gradients, keys), sent(fed, scalars, keys)
    assert isinstance(fed.codec, MPDD)
    for mine, theirs in zip(ours, backward, strict=True):
        assert mine.key == theirs.key
        assert mine.arrays[0][:1] == pytest.approx(theirs.arrays[0][:1], rel=1e-4)
        levels = fed.codec.written([mine, theirs]).numbers
        if bits < 32:
            assert (levels[0] != levels[1]).sum() <= 1
            assert np.abs(levels[0] - levels[1]).max() <= 1
    mean, expected = fed.codec.decode_mean(ours), fed.codec.decode_mean(backward)
    step = 0.0 if bits in (32, 16) else 1.0 / (2 ** (bits - 1) - 1)
    assert np.linalg.norm(mean - expected) <= (1e-3 + step) * np.linalg.norm(expected)


def test_one_bit_has_the_signs_of_backpropagation_and_a_scale_from_them() -> None:
    """The scale of m = 400 scalars is off by 1/√(2m) = 3.5 %; 5 deviations: false alarm below 4 · 6e-7."""
    fed = forward({**PARTITIONED, "bits": 1, "m": 400})
    scalars, gradients, keys = scalars_of(fed)
    backward, ours = fed.codec.encode(gradients, keys), sent(fed, scalars, keys)
    assert isinstance(fed.codec, MPDD)
    for mine, theirs, row in zip(ours, backward, scalars, strict=True):
        levels = fed.codec.written([mine, theirs]).numbers
        differ = levels[0] != levels[1]
        assert np.abs(row[differ]).max(initial=0) < 1e-4 * np.abs(row).max()
        assert mine.arrays[0][0] == pytest.approx(theirs.arrays[0][0], rel=5 * 0.036)
    mean, expected = fed.codec.decode_mean(ours), fed.codec.decode_mean(backward)
    assert np.linalg.norm(mean - expected) < 0.2 * np.linalg.norm(expected)


@pytest.mark.parametrize("codec", [{}, {**PARTITIONED, "bits": 8}], ids=["float32", "8 bits"])
def test_training_follows_backpropagation(codec: dict[str, Any]) -> None:
    chosen = {"name": "mpdd", "m": M, **codec}
    ours, theirs = federation(client="forward", codec=chosen), federation(codec=chosen)
    start = ours.flat.clone()
    for _ in range(4):
        mine, expected = ours.run_round(), theirs.run_round()
        assert mine.loss == pytest.approx(expected.loss, rel=1e-3)
        for name in ("clients", "uplink_bytes", "payload_bytes", "downlink_bytes"):
            assert getattr(mine, name) == getattr(expected, name)
    assert (ours.flat - theirs.flat).norm() < 1e-2 * (theirs.flat - start).norm()


def test_one_bit_learns_as_well() -> None:
    chosen = {"name": "mpdd", "m": 64, "bits": 1, **PARTITIONED}
    accuracies = []
    for client in ("forward", "backward"):
        fed = federation(client=client, codec=chosen, lr=0.05, batch=8)
        train(fed, 25)
        accuracies.append(fed.evaluate(fed.flat)[0])
    assert min(accuracies) > 0.5
    assert abs(accuracies[0] - accuracies[1]) < 0.1


def test_there_is_no_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every door to backpropagation is locked, and no tensor remembers how it was made."""

    def locked(*_: Any, **__: Any) -> Any:
        raise AssertionError("a backward pass, or an activation saved for one")

    monkeypatch.setattr(torch.autograd, "grad", locked)
    monkeypatch.setattr(torch.autograd, "backward", locked)
    monkeypatch.setattr(torch.Tensor, "backward", locked)
    monkeypatch.setattr(torch.func, "grad_and_value", locked)
    monkeypatch.setattr(torch.func, "vjp", locked)
    monkeypatch.setattr(ClientStep, "_gradients", locked)

    with torch.autograd.graph.saved_tensors_hooks(locked, locked):
        with pytest.raises(AssertionError, match="saved"):
            torch.ones(3, requires_grad=True).exp()
        for how in ("vmap", "loop"):
            fed = forward({}, gradients=how)
            fed.run_round()
            assert not fed.flat.requires_grad
    slopes, losses = forward_mode.along(lambda flat: (flat**2).sum(0, keepdim=True), torch.ones(3), torch.eye(3))
    assert slopes.squeeze(1).tolist() == [2.0, 2.0, 2.0]
    assert not slopes.requires_grad
    assert not losses.requires_grad


@pytest.mark.parametrize("codec", [{}, {"keys": "shared"}], ids=["sent", "shared"])
def test_the_same_config_gives_the_same_bits_whatever_the_threads(codec: dict[str, Any]) -> None:
    from fedmpdd.directions import using

    outcomes = set()
    for threads in (1, 3):
        with using(threads=threads):
            outcomes.add(train(forward(codec), 2))
    assert len(outcomes) == 1


def test_directions_go_in_runs_that_fit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one direction at a time is all that fits, the scalars stay the same."""
    whole, _, _ = scalars_of(forward({"keys": "shared"}))
    monkeypatch.setattr("fedmpdd.simulation.clients.CHUNK_BYTES", 1)
    fed = forward({"keys": "shared"})
    assert fed._client_step._fitting(4, 32) == 1
    np.testing.assert_allclose(scalars_of(fed)[0], whole, atol=1e-4 * np.abs(whole).max())


JOURNALS: dict[str, dict[str, Any]] = {
    "one bit": {"codec": {"name": "mpdd", "m": M, "bits": 1, **PARTITIONED}, "dropout": 0.3},
    "shared": {
        "codec": {"name": "mpdd", "m": M, "bits": 1, "keys": "shared"},
        "downlink": "replay",
        "downlink_bits": 4,
    },
}


@pytest.mark.parametrize("changes", JOURNALS.values(), ids=JOURNALS.keys())
def test_the_journal_has_what_was_trained(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = parse_config({**BASE, "client": "forward", "rounds": 5, "journal": True, **changes})
    summary = Run.create(tmp_path / "run", config).train()
    found = replay(tmp_path / "run")
    assert (found.matches, found.rounds) == (True, 5)
    assert found.as_dict()["sha256"] == summary["model_sha256"]


def test_protected_updates_are_those_of_backpropagation_too() -> None:
    """Clipping and noise are on the scalars, so that the clients' way to them does not matter."""
    for protected in ({"clip": 0.5, "noise_multiplier": 0.1}, {"clip": 0.5, "bits": 1, "scale_grid": 2.0}):
        chosen = {"name": "mpdd", "m": M, **protected}
        ours, theirs = federation(client="forward", codec=chosen), federation(codec=chosen)
        start = ours.flat.clone()
        ours.run_round()
        theirs.run_round()
        assert (ours.flat - theirs.flat).norm() < 1e-3 * (theirs.flat - start).norm()
    assert train(forward({"bits": 1, "scale_grid": 2.0}), 1) != train(forward({"bits": 1}), 1)


def test_a_model_that_diverged_is_told() -> None:
    fed = forward({})
    fed.begin_at(torch.full_like(fed.flat, torch.nan))
    with pytest.raises(CodecError, match="a scalar is beyond float32"):
        fed.run_round()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": {"name": "fedsgd"}}, "no scalars along directions"),
        ({"codec": {"name": "mpdd", "m": 8, "error_feedback": True}}, r"clients without one .* cannot know"),
        ({"client": "sideways"}, "client = 'sideways': input should be 'backward' or 'forward'"),
        ({"model": "tests.simulation.test_forward:Backwards"}, "cannot differentiate the model forwards.*client = "),
    ],
)
def test_what_forward_mode_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(**{"client": "forward", **changes})


class OnlyBackwards(torch.autograd.Function):
    """An operation as many extensions have it, with one of two derivatives."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Backwards(torch.nn.Module):
    """A model with such an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(784, 10)

    def forward(self, images: torch.Tensor) -> Any:
        return OnlyBackwards.apply(self.linear(images.flatten(1)))  # type: ignore[no-untyped-call]
