"""One pass for all clients gives the gradients that automatic differentiation gives client by client."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmpdd.errors import ConfigError
from fedmpdd.front.simulate import run_config
from fedmpdd.simulation.clients import Work
from fedmpdd.simulation.engine import Federation
from fedmpdd.tasks.task import Task, partition


class Adapter(nn.Module):
    """A frozen layer with a trained low-rank one beside it, as in LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Reader(nn.Module):
    """Attends over the positions of a text, with adapters, and has a trained head with a bias."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(20, width).requires_grad_(False)
        self.query, self.value = Adapter(nn.Linear(width, width)), Adapter(nn.Linear(width, width))
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = x + functional.scaled_dot_product_attention(self.query(x), x, self.value(x))
        return self.head(self.norm(x).mean(dim=1))  # type: ignore[no-any-return]


def task(model: nn.Module | None = None, clients: int = 4, **options: Any) -> Task:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 20, (40, 6), generator=generator)
    targets = torch.randint(0, 3, (40,), generator=generator)
    torch.manual_seed(0)
    made = Reader() if model is None else model
    return Task(model=made, clients=partition((tokens, targets), clients), test=(tokens, targets), **options)


def federation(problem: Task, codec: str = "fedsgd", **settings: Any) -> Federation:
    return Federation(run_config(problem, codec, rounds=3, batch=5, **settings), problem)


def test_gradients_and_losses_are_those_of_each_client_alone() -> None:
    problem = task()
    together, alone = (federation(problem, gradients=way) for way in ("layers", "loop"))
    flat = together.flat + 0.1 * torch.randn(together.flat.shape, generator=torch.Generator().manual_seed(2))
    plan = together._plan_of(0)
    work = Work(plan.round, plan.present, plan.batches)
    by_layers, by_loop = (each._client_step(flat, work) for each in (together, alone))
    torch.testing.assert_close(by_layers.rows, by_loop.rows, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_layers.losses, by_loop.losses)
    assert by_layers.rows.abs().sum() > 0


def test_local_steps_are_those_of_each_client_alone() -> None:
    problem = task()
    settings: dict[str, Any] = {"local_steps": 3, "local_lr": 0.3}
    together, alone = (federation(problem, gradients=way, **settings) for way in ("auto", "loop"))
    assert together._client_step._method == "layers"
    for _ in range(2):
        together.run_round()
        alone.run_round()
    torch.testing.assert_close(together.flat, alone.flat, rtol=1e-4, atol=1e-6)


def test_it_is_chosen_where_linear_layers_are_all_that_is_trained() -> None:
    norm_too = Reader()
    norm_too.norm.requires_grad_(True)
    assert federation(task())._client_step._method == "layers"
    assert federation(task(norm_too))._client_step._method == "vmap"
    unknown = task(loss=lambda outputs, targets: functional.cross_entropy(outputs, targets))
    assert federation(unknown)._client_step._method == "vmap"  # the loss of an example is not known


def test_all_trained_layers_are_asked_for_by_name() -> None:
    def plain() -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 20).requires_grad_(False), nn.Flatten(), nn.Linear(120, 3))

    assert federation(task(plain()), gradients="layers")._client_step._method == "layers"
    everything = task(Reader().requires_grad_(True))
    with pytest.raises(ConfigError, match="only linear layers are trained"):
        federation(everything, gradients="layers")


class Sideways(Reader):
    """Puts the positions of a text first, so that clients are not in a row any more."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.value(self.words(tokens).transpose(0, 1)).mean(dim=0))  # type: ignore[no-any-return]


def test_a_model_that_mixes_up_the_examples_goes_client_by_client() -> None:
    torch.manual_seed(0)
    assert federation(task(Sideways()))._client_step._method != "layers"
    with pytest.raises(ConfigError, match="first dimension"):
        federation(task(Sideways()), gradients="layers")


def test_padding_counts_in_no_clients_mean() -> None:
    class Tagger(Reader):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.value(self.words(tokens))).transpose(1, 2)  # type: ignore[no-any-return]

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 20, (40, 6), generator=generator)
    targets = torch.where(tokens < 8, -100, tokens % 3)
    torch.manual_seed(0)
    problem = Task(model=Tagger(), clients=partition((tokens, targets), 4), test=(tokens, targets))
    together, alone = (federation(problem, gradients=way) for way in ("layers", "loop"))
    ours, theirs = together.run_round(), alone.run_round()
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    torch.testing.assert_close(together.flat, alone.flat, rtol=1e-4, atol=1e-6)
    assert np.isfinite(together.flat.numpy()).all()


@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        ("decomfl:m=5:keys=shared", {}),
        ("decomfl:m=4:keys=shared", {"local_steps": 2, "local_lr": 0.01}),
        ("fedkseed:m=4:pool=16:keys=derived", {"local_steps": 2, "local_lr": 0.01}),
    ],
)
def test_losses_at_many_models_are_those_of_each_alone(
    codec: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = task()
    together, alone = (federation(problem, codec, gradients=way, **settings) for way in ("auto", "loop"))
    monkeypatch.setattr("fedmpdd.simulation.clients.CHUNK_EXAMPLES", 64)  # three models of four clients at a time
    ours, theirs = together.run_round(), alone.run_round()
    assert together._client_step._method == "layers"
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    torch.testing.assert_close(together.flat, alone.flat, rtol=1e-3, atol=1e-4)
    assert not torch.equal(together.flat, problem.build("default", 0)[1])
