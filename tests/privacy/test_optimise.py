import pytest
import torch
from torch import Tensor

from fedmpdd.privacy.optimise import adam, lbfgs


def bowls(x: Tensor) -> Tensor:
    """Three quadratics of different shape, with minima at 1, 2, 3."""
    weights = torch.logspace(0, 2, x.shape[1])
    centres = torch.tensor([[1.0], [2.0], [3.0]])
    return (weights * (x - centres).square()).sum(dim=1)


@pytest.mark.parametrize("search", [True, False])
def test_lbfgs_finds_every_minimum(search: bool) -> None:
    *_, last = lbfgs(bowls, torch.zeros(3, 10), 60, search=search)
    assert torch.allclose(last.best, torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 10), atol=1e-3)
    assert (last.losses < 1e-5).all()


def test_rows_do_not_meet() -> None:
    """A problem ends in the same place whether others run beside it or not."""

    def one(x: Tensor) -> Tensor:
        return (x.square().sum(dim=1) - 1).square() + 0.1 * x[:, 0]

    together = torch.tensor([[0.5, 0.2], [1.5, -0.3], [5.0, 5.0]])
    *_, all_three = lbfgs(one, together, 30)
    for row in range(3):
        *_, alone = lbfgs(one, together[row : row + 1], 30)
        assert torch.allclose(all_three.best[row], alone.best[0], atol=1e-4)


def test_the_best_guess_survives_a_step_into_nothing() -> None:
    def cliff(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 1.2, float("inf"), (x[:, 0] - 1).square())

    *_, last = lbfgs(cliff, torch.tensor([[-3.0]]), 20, search=False)
    assert torch.isfinite(last.losses).all()
    assert last.losses.item() < 16


@pytest.mark.parametrize("signed", [True, False])
def test_adam_comes_close_and_stays_in_its_box(signed: bool) -> None:
    *_, last = adam(bowls, torch.zeros(3, 4), 400, lr=0.1, signed=signed, clamp=(0.0, 2.0))
    assert last.best.max() <= 2
    assert torch.allclose(last.best, torch.tensor([[1.0], [2.0], [2.0]]).expand(3, 4), atol=0.05)
