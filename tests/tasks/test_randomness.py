"""What clients draw: the same however they are computed."""

import pytest
import torch
from torch import Tensor, nn

from fedmpdd.tasks.randomness import ClientRandomness, visible_draws
from tests.tasks.own import FEATURES

CPU = torch.device("cpu")
CLIENTS, EXAMPLES = 5, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(FEATURES, 2, dropout=0.4, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.unsqueeze(0)
        outputs: Tensor = self.inner(rows, rows, rows, need_weights=False)[0]
        return outputs.squeeze(0)


class Noisy(nn.Module):
    """Draws in every way that comes to mind: like its input, by size, in place, by index."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.inner(inputs + 0.1 * torch.randn_like(inputs)) * torch.rand(4)
        x = x + torch.empty_like(x).normal_() + torch.normal(torch.zeros(4), 0.1)
        return nn.functional.gumbel_softmax(x)


MODELS = {
    "dropout": lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
    "dropout of features": lambda: nn.Sequential(nn.Unflatten(1, (FEATURES, 1)), nn.Dropout1d(0.5), nn.Flatten()),
    "attention": Attention,
    "noise": Noisy,
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(1)
    module: nn.Module = MODELS[request.param]()
    return module.train()


def outputs(model: nn.Module, inputs: Tensor, clients: range, *, vectorised: bool) -> Tensor:
    """What some clients make of their examples, at once or one by one."""
    seeds = [(7, client) for client in clients]
    some = inputs[clients.start : clients.stop]
    with visible_draws():
        if vectorised:
            with ClientRandomness(seeds, vectorised=True, device=CPU):
                result: Tensor = torch.func.vmap(model, randomness="different")(some)
                return result
        rows = []
        for seed, one in zip(seeds, some, strict=True):
            with ClientRandomness([seed], vectorised=False, device=CPU):
                rows.append(model(one))
        return torch.stack(rows)


def test_clients_draw_the_same_together_alone_and_in_other_company(model: nn.Module) -> None:
    inputs = torch.randn(CLIENTS, EXAMPLES, FEATURES, generator=torch.Generator().manual_seed(2))
    together = outputs(model, inputs, range(CLIENTS), vectorised=True)
    alone = outputs(model, inputs, range(CLIENTS), vectorised=False)
    some = outputs(model, inputs, range(2, 4), vectorised=True)
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together[2:4], some)


def test_clients_draw_differently_and_generators_of_others_are_left_alone(model: nn.Module) -> None:
    same = torch.ones(CLIENTS, EXAMPLES, FEATURES)
    before = torch.random.get_rng_state()
    rows = outputs(model, same, range(CLIENTS), vectorised=True)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len({row.detach().numpy().tobytes() for row in rows}) == CLIENTS


def test_gradients_are_those_of_the_same_draws() -> None:
    """Backwards too: what was dropped on the way there is dropped on the way back."""
    weights = torch.ones(CLIENTS, 50)

    def loss(row: Tensor) -> Tensor:
        return nn.functional.dropout(row, 0.5).sum()

    seeds = [(1, client) for client in range(CLIENTS)]
    with ClientRandomness(seeds, vectorised=True, device=CPU) as randomness:
        gradients, values = torch.func.vmap(torch.func.grad_and_value(loss), randomness="different")(weights)
    assert torch.equal(gradients.sum(dim=1), values)
    assert randomness.draws == 1


def test_nothing_is_drawn_where_nothing_is_random() -> None:
    with ClientRandomness([(0,)], vectorised=False, device=CPU) as randomness:
        assert torch.ones(3) @ torch.ones(3) == 3
    assert randomness.draws == 0


def test_what_could_draw_and_does_not_is_no_draw() -> None:
    """Attention without dropout is the same function for all clients, whoever else computes."""
    x = torch.ones(1, 1, 4, 4)
    for dropout, draws in ((0.0, 0), (0.5, 1)):
        with ClientRandomness([(1,)], vectorised=False, device=CPU) as randomness:
            nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout)
        assert (randomness.draws > 0) == draws
